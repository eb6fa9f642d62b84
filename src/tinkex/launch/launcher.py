"""`python -m tinkex.launch.launcher SETTINGS`: keeps a server's workers on a Ray cluster.

A child process of the server, because Ray ends a driver's process 60 s after its head is gone; the
server starts it again until Ray is back. The actors are detached and outlive it: a new launcher
finds them by name, removes those that are not wanted and creates those that are missing.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from tinkex.launch.actor import WorkerActor
from tinkex.launch.operator_calls import OperatorCalls
from tinkex.launch.scaling import SamplerCount, ScalingPolicy, next_count
from tinkex.launch.settings import LaunchSettings, actor_name

__all__ = ["Launcher", "main"]

_logger = logging.getLogger(__name__)


class Launcher:
    """One round of `keep` after another; what it knows can be read from Ray and the server."""

    def __init__(self, ray: Any, settings: LaunchSettings) -> None:
        self._ray = ray
        self._settings = settings
        self._token = Path(settings.token_file).read_text(encoding="utf-8").split()[0]
        host = ray.util.get_node_ip_address()
        join = settings.spec.join or f"{host}:{settings.worker_port}"
        self._spec = msgspec.structs.replace(settings.spec, join=join)
        self._calls = OperatorCalls(settings.server_url, Path(settings.operator_token_file))
        self._policy = ScalingPolicy(
            min_samplers=settings.min_samplers,
            max_samplers=settings.max_samplers,
            target_sample_tokens=settings.target_sample_tokens,
            idle_s=settings.idle_s,
        )
        existing = set(ray.util.list_named_actors()) & set(self._samplers(settings.max_samplers))
        self._count = SamplerCount(wanted=max(settings.min_samplers, len(existing)))

    def keep(self) -> None:
        """Creates and removes actors until they are those that are wanted."""
        draining = self._scale()
        wanted = dict.fromkeys(self._trainers(), "train")
        wanted |= dict.fromkeys(self._samplers(self._count.wanted), "sample")
        there = set(self._ray.util.list_named_actors())
        for name in sorted(there - set(wanted) - draining):
            self._remove(name)
        for name, role in wanted.items():
            if name not in there:
                self._create(name, role)

    def _trainers(self) -> list[str]:
        return [
            actor_name("trainer", index, self._spec, self._token)
            for index in range(self._settings.num_trainers)
        ]

    def _samplers(self, count: int) -> list[str]:
        return [actor_name("sampler", index, self._spec, self._token) for index in range(count)]

    def _scale(self) -> set[str]:
        """Counts samplers anew; returns superfluous ones that still have work."""
        every = self._samplers(self._settings.max_samplers)
        try:
            report = self._calls.workers()
            # Remote workers are known to the server by the name given here, their `worker`.
            by_name = {each.get("worker") or each["name"]: each for each in report["workers"]}
            samplers = {name: by_name[name] for name in every if name in by_name}
            idle = [
                name
                for name, each in samplers.items()
                if not each["is_draining"] and not each["num_samples"]
            ]
            self._count = next_count(
                self._policy,
                self._count,
                waiting_tokens=report["waiting"]["sample_tokens"],
                num_idle=len(idle),
                now=time.monotonic(),
            )
            return self._drain(samplers, set(every[: self._count.wanted]))
        except (OSError, ValueError, KeyError) as error:
            _logger.warning("The server could not be asked about its workers: %s", error)
            return set(every)  # nothing is removed unasked

    def _drain(self, samplers: dict[str, dict[str, Any]], wanted: set[str]) -> set[str]:
        busy = set()
        for name, each in samplers.items():
            if name in wanted and each["is_draining"]:
                self._calls.resume(each["name"])
            elif name not in wanted and not each["is_draining"]:
                self._calls.drain(each["name"])
                busy.add(name)
            elif name not in wanted and (each["num_samples"] or each["num_models"]):
                busy.add(name)
        return busy

    def _create(self, name: str, role: str) -> None:
        _logger.info("Starting the worker %s on Ray.", name)
        settings = self._settings
        bundle = {"CPU": settings.cpus_per_worker}
        if settings.gpus_per_worker:
            bundle["GPU"] = settings.gpus_per_worker
        group = self._group(name)
        if group is None:
            labels = [settings.labels] if settings.labels else None
            group = self._ray.util.placement_group(
                [bundle], name=name, lifetime="detached", bundle_label_selector=labels
            )
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        actor_class = self._ray.remote(WorkerActor).options(
            name=name,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=settings.cpus_per_worker,
            num_gpus=settings.gpus_per_worker,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group),
        )
        actor_class.remote(name, role, msgspec.json.encode(self._spec).decode(), self._token)

    def _remove(self, name: str) -> None:
        _logger.info("Removing the worker %s from Ray.", name)
        with contextlib.suppress(ValueError):  # it is gone already
            self._ray.kill(self._ray.get_actor(name), no_restart=True)
        group = self._group(name)
        if group is not None:
            self._ray.util.remove_placement_group(group)

    def _group(self, name: str) -> Any | None:
        try:
            return self._ray.util.get_placement_group(name)
        except ValueError:
            return None


def _end_with_server(stopping: threading.Event) -> None:
    """The server holds the other end of standard input; it closes when the server ends."""
    while os.read(0, 4096):
        pass
    stopping.set()


def main() -> None:
    """Runs until a signal, the server's end, or the loss of Ray."""
    settings = msgspec.json.decode(sys.argv[1], type=LaunchSettings)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    threading.Thread(target=_end_with_server, args=(stopping,), daemon=True).start()
    ray: Any = importlib.import_module("ray")
    ray.init(
        address=settings.address,
        namespace=settings.namespace,
        log_to_driver=False,
        configure_logging=False,
    )
    launcher = Launcher(ray, settings)
    while not stopping.is_set():
        launcher.keep()
        stopping.wait(settings.look_every_s)


if __name__ == "__main__":
    main()
