"""What holds for every test: no credential or server of the machine it runs on is used, and Ctrl-C
works also where the tests' parent ignores it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tinkex.engine.process.amx_tiles import WITHOUT_TILES, has_broken_tiles

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


@pytest.fixture(autouse=True, scope="session")
def _own_environment() -> Iterator[None]:
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(FOREIGN)}
    yield
    os.environ.update(removed)
