"""What holds for every test: no credential or server of the machine it runs on is used, Ctrl-C
works also where the tests' parent ignores it, and a test that hangs is ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.soak import IS_SOAK
from tinkex.engine.process.amx_tiles import WITHOUT_TILES, has_broken_tiles

TESTS = Path(__file__).parent
WITH_PROCESSES = {
    "cli",
    "contract",
    "deploy",
    "docs",
    "faults",
    "launch",
    "openai_tools",
    "security",
    "server",
}
"""Folders whose tests start servers and wait for them; they have twice the usual time."""
WITH_PROCESSES_S = 120
FOREIGN = ("TINKER_", "TINKEX_API_KEY", "TINKEX_BASE_URL", "CLOUDFLARE_ACCESS_")


def pytest_configure() -> None:
    """Has SIGINT and SIGQUIT act as in a terminal, here and in every program the tests start.

    A parent may have them ignored (`nohup make test &` in a script, cron), and programs inherit
    that.
    """
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if has_broken_tiles():  # the oracles compute in this process, the engines in workers
        os.environ.update(WITHOUT_TILES)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests of servers their time, unless they say another; in a soak all have hours."""
    if IS_SOAK:
        return
    for item in items:
        is_slow = item.path.relative_to(TESTS).parts[0] in WITH_PROCESSES
        if is_slow and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(WITH_PROCESSES_S))


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(FOREIGN)}
    yield
    os.environ.update(removed)
