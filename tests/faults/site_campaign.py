"""A campaign against a site: the clients and judges of every campaign, under faults of workers,
connections, the server and the object store."""

from __future__ import annotations

import contextlib
import random
import time
from pathlib import Path
from typing import Any

from tests.faults.campaign import Campaign, Outcome
from tests.faults.site import Site
from tests.faults.site_workers import SiteKind
from tests.support.faulty_link import FaultyLink
from tinkex.engine.interface import Engine
from tinkex.engine.options import EngineOptions
from tinkex.server.config import ServerConfig

__all__ = ["SiteCampaign"]


class SiteCampaign(Campaign):
    """One server, its workers and its clients, from start to judgement."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        kind: SiteKind,
        config: ServerConfig,
        store: FaultyLink | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, seed, config=config, **options)
        dice = random.Random(f"{kind}/{seed}")
        self._site = Site(self._server, config, folder, dice, kind=kind, store=store)

    def run(self, kills: list[str]) -> Outcome:
        """The outcome of a campaign with these faults, one after the other."""
        with self._site:
            clients = [self._start_client(library) for library in self._libraries]
            try:
                for fault in kills:
                    self._await_answers()
                    time.sleep(self._dice.uniform(0.0, 0.5))
                    self._require_running(clients)
                    self._site.require_running()
                    began = time.monotonic()
                    self._site.strike(fault)
                    if fault in ("kill server", "stop server"):
                        self.outcome.ready_s.append(time.monotonic() - began)
                self._stop_file.touch()
                self._join(clients)
            finally:
                for client in clients:
                    client.kill()
                    client.wait()
            self._server.stop()
            self._site.start_server()  # sweeps up what the last crash left
            self._server.stop()
        self.outcome.deaths += self._site.struck
        with contextlib.suppress(FileNotFoundError):
            self._judge()
            return self.outcome
        raise AssertionError("a folder that a row names is missing")

    def _client_url(self) -> str:
        return self._site.url

    def _make_engine(self) -> Engine:
        """A worker's engine: one thread, and each request alone."""
        from tinkex.engine.torch_engine import TorchEngine

        (model, *_) = self._config.models
        return TorchEngine(EngineOptions(models={model.name: model.source}, num_threads=1))
