"""The actors and placement groups of one server on a Ray cluster: lists, creates and removes them,
and logs why one does not start."""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from typing import Any

import msgspec

from tinkex.launch.actor import WorkerActor
from tinkex.launch.ray_connection import one_line
from tinkex.launch.settings import Reservation, WorkerSpec

__all__ = ["Cluster"]

_logger = logging.getLogger(__name__)

_WAITS_LONG_S = 15.0
_RETRY_S = 30.0


class Cluster:
    """Actors by name. Each has its own placement group, whose name includes the namespace because
    Ray lists the groups of all namespaces together."""

    def __init__(self, ray: Any, namespace: str, reservation: Reservation) -> None:
        self._ray = ray
        self._prefix = f"{namespace}/"
        self._reservation = reservation
        self._starting: dict[str, Any] = {}  # calls that return once the actor runs, or fail
        self._known: set[str] = set()  # actors whose `_starting` call was made
        self._waiting_since: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}

    def names(self) -> set[str]:
        """The existing actors, whether they run or wait for a node."""
        return set(self._ray.util.list_named_actors())

    def create(self, name: str, role: str, spec: WorkerSpec, token: str) -> None:
        """Creates an actor, which Ray starts when it has a node for it."""
        if time.monotonic() < self._retry_at.get(name, 0.0):
            return
        _logger.info("Starting the worker %s on Ray.", name)
        wanted = self._reservation
        strategies = importlib.import_module("ray.util.scheduling_strategies")
        actor_class = self._ray.remote(WorkerActor).options(
            name=name,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=wanted.cpus,
            num_gpus=wanted.gpus,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(self._group(name)),
        )
        with contextlib.suppress(ValueError):  # another launcher has created it
            actor_class.remote(name, role, msgspec.json.encode(spec).decode(), token)

    def remove(self, name: str) -> None:
        """Ends an actor at once, and frees its reservation."""
        _logger.info("Removing the worker %s from Ray.", name)
        with contextlib.suppress(ValueError):  # it is gone already
            self._ray.kill(self._ray.get_actor(name), no_restart=True)
        self._remove_group(self._prefix + name)
        self._forget(name)

    def look(self, wanted: set[str]) -> None:
        """Frees reservations without an actor, and logs which actors do not start and why.

        `wanted` are the actors that exist or are being created.
        """
        groups = self._groups()
        for group_name in groups.keys() - {self._prefix + name for name in wanted}:
            self._remove_group(group_name)
        self._tell_of_failures(wanted)
        for name in wanted:
            state = groups.get(self._prefix + name, "CREATED")
            self._tell_if_it_waits(name, is_waiting=state != "CREATED")

    def _tell_of_failures(self, wanted: set[str]) -> None:
        for name in (self.names() & wanted) - self._known:
            with contextlib.suppress(ValueError):  # it is gone already
                self._starting[name] = self._ray.get_actor(name).pids.remote()
                self._known.add(name)
        for name, answer in list(self._starting.items()):
            ready, _ = self._ray.wait([answer], timeout=0)
            if not ready:
                continue
            del self._starting[name]
            try:
                self._ray.get(answer)
            except self._ray.exceptions.ActorUnavailableError:
                self._known.discard(name)  # Ray will start it again
            except self._ray.exceptions.RayError as error:
                self._forget(name)
                self._retry_at[name] = time.monotonic() + _RETRY_S
                _logger.warning(
                    "The worker %s could not start on Ray. Retrying in %g s: %s",
                    name,
                    _RETRY_S,
                    one_line(error),
                )

    def _tell_if_it_waits(self, name: str, *, is_waiting: bool) -> None:
        """Logs once per wait that an actor has waited long for a node."""
        if not is_waiting:
            self._waiting_since.pop(name, None)
            return
        since = self._waiting_since.setdefault(name, time.monotonic())
        if time.monotonic() - since > _WAITS_LONG_S:
            self._waiting_since[name] = float("inf")
            _logger.warning(
                "No node of the Ray cluster fits the worker %s, which needs %s. It waits for one.",
                name,
                self._reservation,
            )

    def _forget(self, name: str) -> None:
        self._known.discard(name)
        self._starting.pop(name, None)
        self._waiting_since.pop(name, None)

    def _groups(self) -> dict[str, str]:
        """The state of each placement group of this server."""
        table: dict[str, dict[str, Any]] = self._ray.util.placement_group_table()
        return {
            each["name"]: each["state"]
            for each in table.values()
            if each["name"].startswith(self._prefix) and each["state"] != "REMOVED"
        }

    def _group(self, name: str) -> Any:
        """The placement group of an actor, created if needed."""
        with contextlib.suppress(ValueError):
            return self._ray.util.get_placement_group(self._prefix + name)
        wanted = self._reservation
        bundle = {"CPU": wanted.cpus, "GPU": wanted.gpus}
        return self._ray.util.placement_group(
            [{kind: amount for kind, amount in bundle.items() if amount}],
            name=self._prefix + name,
            lifetime="detached",
            bundle_label_selector=[wanted.labels] if wanted.labels else None,
        )

    def _remove_group(self, group_name: str) -> None:
        with contextlib.suppress(ValueError):
            self._ray.util.remove_placement_group(self._ray.util.get_placement_group(group_name))
