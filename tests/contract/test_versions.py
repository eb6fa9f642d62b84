"""One program, several versions of the official client: all see the same numbers.

`TINKEX_CONTRACT_VERSIONS=all` runs every version; a list with commas runs those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.clients import NEWEST, chosen_versions, run_client
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

SCRIPT = Path(__file__).with_name("version_run.py")
MODEL = "tiny"

# Also the time to install a version for the first time.
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    from tinkex.engine.convert.tiny_model import make_tiny_model

    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("versions-server"),
        port=0,
        models=(ServedModel(name=MODEL, source=str(folder)),),
        num_threads=1,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture(scope="module")
def expected(
    server: EmbeddedServer, shared: Callable[[str, Callable[[], Any]], Any]
) -> dict[str, Any]:
    """What the newest version sees; another server of the same model gives the same."""
    seen: dict[str, Any] = shared("newest", lambda: _run(NEWEST, server))
    return seen


def _run(version: str, server: EmbeddedServer) -> Any:
    return run_client(version, SCRIPT, server.base_url, server.api_key, MODEL)


@pytest.mark.parametrize("version", chosen_versions())
def test_the_same_program_gives_the_same_numbers(
    version: str, server: EmbeddedServer, expected: dict[str, Any]
) -> None:
    seen = _run(version, server)
    assert seen["version"] == version
    missing = {name for name in expected["numbers"] if name not in seen["numbers"]}
    assert missing <= {"export"}, "only what the version's API does not have is left out"
    for name, value in seen["numbers"].items():
        assert_close(value, expected["numbers"][name], name)
    assert _shapes(seen["sent"]) == _shapes_of(version)


def _shapes(sent: list[str]) -> dict[str, str]:
    """How training is sent, and how its results are asked for."""
    by_name = {line.split()[0]: line.split()[1:] for line in sent}
    return {
        "forward": "its own path" if "forward" in by_name else "forward_backward",
        "training": by_name["forward_backward"][0],
        "archive": "yes" if "archive" in by_name else "no",
    }


def _shapes_of(version: str) -> dict[str, str]:
    number = int(version.split(".")[1])
    is_old = number < 25
    return {
        "forward": "its own path" if is_old else "forward_backward",
        "training": "application/json" if is_old else "application/x-protobuf",
        "archive": "yes" if number < 36 else "no",
    }


def test_the_newest_version_ran_everything(expected: dict[str, Any]) -> None:
    numbers = expected["numbers"]
    assert numbers["losses"] == sorted(numbers["losses"], reverse=True)
    assert numbers["category"] == "user"
    assert numbers["stop reasons"] == ["length", "stop"]
    assert numbers["stopped"][0] == numbers["tokens"][0][:4]
    assert numbers["left"] == ["sampler_weights/named"]
    assert numbers["chunked outputs"] == 1030
    assert "external weights" in expected["did"]


def assert_close(ours: Any, theirs: Any, where: str) -> None:
    """Equal, but for the last digits of float32 in numbers."""
    if isinstance(theirs, list):
        assert isinstance(ours, list), where
        assert len(ours) == len(theirs), where
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_close(*pair, f"{where}[{index}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=1e-5, rel=1e-5), where
    else:
        assert ours == theirs, where
