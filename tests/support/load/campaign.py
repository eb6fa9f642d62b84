"""A server under load: started with its tenants' keys, driven, and judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import psutil

from tests.server.children import start_module
from tests.support.load import judge, work
from tests.support.load.driver import Load, Report
from tinkex.scheduler import SchedulerConfig
from tinkex.server.admin import create_key
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer


class Outcome(msgspec.Struct, frozen=True):
    """What was measured, and what went wrong."""

    report: Report
    mistakes: list[str]


def run(folder: Path, *, tenants: int, timeout_s: float, **load: Any) -> Outcome:
    """The outcome of a load on a fresh server with the null engine."""
    config = server_config(folder / "server")
    keys = [
        create_key(config.data_dir, None, name=f"t{n}", is_new_owner=True).key
        for n in range(tenants)
    ]
    records = folder / "records"
    with EmbeddedServer(config) as server:
        engine = psutil.Process(server.pid).children()[0].pid
        request = Load(
            base_url=server.base_url,
            keys=keys,
            records=str(records),
            pids=[server.pid, engine],
            **load,
        )
        running = start_module("tests.support.load.driver", msgspec.json.encode(request).decode())
        output, errors = running.communicate(timeout=timeout_s)
        assert running.returncode == 0, f"{errors[-4000:]}\n{server.log()[-2000:]}"
    report = msgspec.json.decode(output, type=Report)
    kept = msgspec.msgpack.decode(records.read_bytes(), type=work.Records, strict=False)
    return Outcome(report, judge.mistakes(kept, config.data_dir / "tinkex.db"))


def server_config(data_dir: Path) -> ServerConfig:
    """A server as people start it, but for the engine, and with limits that hold the backlog."""
    return ServerConfig(
        data_dir=data_dir,
        port=0,
        device="null",
        models=(ServedModel(name=work.BASE_MODEL, source=""),),
        scheduler=SchedulerConfig(hole_grace_s=24 * 3600.0),
    )
