"""kill -9 again and again under three busy official clients: they see nothing but some delay."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

from tests.server.children import start_module
from tests.server.driving import null_config
from tinkex.scheduler import SchedulerConfig
from tinkex.server.embedded import EmbeddedServer

STEPS = 6
SEED = 5


def run(folder: Path, kills: int) -> Any:
    """What three clients saw while the server was killed so many times."""
    scheduler = SchedulerConfig(hole_grace_s=60.0, snapshot_after_operations=9)
    chance = random.Random(SEED)
    with EmbeddedServer(null_config(folder, scheduler=scheduler, poll_hold_s=20.0)) as server:
        clients = start_module(
            "tests.server.chaos_client", server.base_url, server.api_key, str(STEPS)
        )
        assert clients.stdout is not None
        first = clients.stdout.readline()
        for _ in range(kills):
            time.sleep(chance.uniform(0.1, 1.0))
            server.kill()
            server.start()
        output, errors = clients.communicate(timeout=90)
        assert clients.returncode == 0, f"{first}{errors[-3000:]}\n{server.log()[-3000:]}"
    return json.loads(output.strip().splitlines()[-1])


def test_clients_see_the_same_numbers_when_processes_are_killed(tmp_path: Path) -> None:
    assert run(tmp_path / "killed", kills=2) == run(tmp_path / "quiet", kills=0)
