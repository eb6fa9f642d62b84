"""`python -m tinkex.launch.launcher SETTINGS`: keeps a server's workers on a Ray cluster.

A child process of the server, because Ray ends a driver's process 60 s after its head is lost; the
server restarts it until Ray is back. The actors are detached and outlive it: a new launcher finds
them by name, removes those that are not wanted and creates those that are missing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from tinkex.launch.cluster import Cluster
from tinkex.launch.operator_calls import OperatorCalls
from tinkex.launch.ray_connection import EXIT_TOLD, CannotConnectError, connect, one_line
from tinkex.launch.scaling import SamplerCount, ScalingPolicy, next_count
from tinkex.launch.settings import LaunchSettings, actor_name

__all__ = ["Launcher", "main"]

_logger = logging.getLogger(__name__)

_STOP_S = 4.0


class Launcher:
    """Reconciles the actors with the settings, by repeated calls of `keep`.

    All of its state can be read again from Ray and the server.
    """

    def __init__(self, cluster: Cluster, host: str, settings: LaunchSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._token = Path(settings.token_file).read_text(encoding="utf-8").split()[0]
        join = settings.spec.join or f"{host}:{settings.worker_port}"
        self._spec = msgspec.structs.replace(settings.spec, join=join)
        self._calls = OperatorCalls(settings.server_url, Path(settings.operator_token_file))
        self._has_answered = True
        self._policy = ScalingPolicy(
            min_samplers=settings.min_samplers,
            max_samplers=settings.max_samplers,
            target_sample_tokens=settings.target_sample_tokens,
            idle_s=settings.idle_s,
        )
        existing = cluster.names() & set(self._samplers(settings.max_samplers))
        self._count = SamplerCount(wanted=max(settings.min_samplers, len(existing)))

    def keep(self) -> None:
        """Creates missing actors and removes superfluous ones.

        Does nothing while the server does not answer: another server may have replaced it, whose
        workers must not be changed.
        """
        try:
            report = self._calls.workers()
            busy = self._scale(report)
        except (OSError, ValueError) as error:
            if self._has_answered:
                _logger.warning("The server did not report the state of its workers: %s", error)
            self._has_answered = False
            return
        self._has_answered = True
        wanted = dict.fromkeys(self._names("trainer", self._settings.num_trainers), "train")
        wanted |= dict.fromkeys(self._samplers(self._count.wanted), "sample")
        there = self._cluster.names()
        for name in sorted(there - set(wanted) - busy):
            self._cluster.remove(name)
        for name, role in wanted.items():
            if name not in there:
                self._cluster.create(name, role, self._spec, self._token)
        self._cluster.look(set(wanted) | busy)

    def _samplers(self, count: int) -> list[str]:
        return self._names("sampler", count)

    def _names(self, role: str, count: int) -> list[str]:
        given = (self._spec, self._settings.reservation, self._token)
        return [actor_name(role, index, *given) for index in range(count)]

    def _scale(self, report: dict[str, Any]) -> set[str]:
        """Adjusts the number of samplers; returns superfluous ones that still have work."""
        every = self._samplers(self._settings.max_samplers)
        # `worker` is the name given here and the worker's address. `name` differs from it while
        # two workers of that name are connected.
        by_name = {each["worker"].partition(" at ")[0]: each for each in report["workers"]}
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

    def _drain(self, samplers: dict[str, dict[str, Any]], wanted: set[str]) -> set[str]:
        busy = set()
        for name, each in samplers.items():
            if name in wanted:
                if each["is_draining"]:
                    self._calls.resume(each["name"])
                continue
            has_work = bool(each["num_samples"] or each["num_models"])
            # The server refuses to drain the last sampler; without work it can be removed anyway.
            is_told = not each["is_draining"] and self._calls.drain(each["name"])
            if has_work or is_told:
                busy.add(name)
        return busy


def _end_with_server(stopping: threading.Event) -> None:
    """The server holds the other end of standard input; it closes when the server ends. A call
    into Ray may then still block the main thread."""
    while os.read(0, 4096):
        pass
    stopping.set()
    time.sleep(_STOP_S)
    os._exit(0)


def main() -> None:
    """Runs until a signal, the server's end, or the loss of Ray."""
    settings = msgspec.json.decode(sys.argv[1], type=LaunchSettings)
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s launcher: %(message)s"
    )
    stopping = threading.Event()
    threading.Thread(target=_end_with_server, args=(stopping,), daemon=True).start()
    try:
        _run(settings, stopping)
    except CannotConnectError as error:
        _logger.warning("%s", error)
        sys.exit(EXIT_TOLD)
    except Exception as error:
        # Ray's errors have no common base; whatever it was, the server starts a new launcher.
        _logger.warning("The launcher lost Ray: %s: %s", type(error).__name__, one_line(error))
        _logger.debug("Traceback:", exc_info=True)
        sys.exit(EXIT_TOLD)


def _run(settings: LaunchSettings, stopping: threading.Event) -> None:
    ray = connect(settings.address, settings.namespace)
    for number in (signal.SIGTERM, signal.SIGINT):  # after ray.init, which sets its own handlers
        signal.signal(number, lambda *_: stopping.set())
    cluster = Cluster(ray, settings.namespace, settings.reservation)
    launcher = Launcher(cluster, ray.util.get_node_ip_address(), settings)
    _logger.info("Keeping workers on Ray at %s.", settings.address)
    while not stopping.is_set():
        launcher.keep()
        stopping.wait(settings.look_every_s)


if __name__ == "__main__":
    main()
