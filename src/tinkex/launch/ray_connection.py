"""Connects to a Ray cluster as a driver, or logs in one sentence why that failed."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import threading
from pathlib import Path
from typing import Any

__all__ = ["CannotConnectError", "connect", "one_line"]

_logger = logging.getLogger(__name__)

_PROBE_S = 5.0
_CONNECT_S = 60.0
EXIT_TOLD = 3
"""Exit code of a launcher that has logged why it ends."""


class CannotConnectError(Exception):
    """The Ray cluster cannot be joined; the message says why."""


def connect(address: str, namespace: str) -> Any:
    """The module `ray`, connected.

    Raises:
        CannotConnectError: Ray does not answer, or refuses this process.
    """
    if address != "auto":
        _probe(address)
    ray: Any = importlib.import_module("ray")
    # Silences Ray's advice against a detached actor in a placement group, which is intended.
    logging.getLogger("ray").setLevel(logging.ERROR)
    # With a search path workers import our class; without one Ray would pickle it.
    search_path = [str(Path(__file__).parents[2])]
    watchdog = threading.Timer(_CONNECT_S, _give_up, [address])
    watchdog.daemon = True
    watchdog.start()
    try:
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            configure_logging=False,
            job_config=ray.job_config.JobConfig(code_search_path=search_path),
        )
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        raise CannotConnectError(f"Ray at {address} cannot be joined: {one_line(error)}") from error
    finally:
        watchdog.cancel()
    return ray


def one_line(error: BaseException) -> str:
    """The message of an error as one short line."""
    return " ".join(str(error).split())[:500] or type(error).__name__


def _probe(address: str) -> None:
    """Checks the port first: Ray itself retries for minutes if nothing listens."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
    except OSError as error:
        raise CannotConnectError(
            f"Ray at {address} cannot be reached: {error}. Start it there with 'ray start --head'."
        ) from error


def _give_up(address: str) -> None:
    """Ends the process after a timeout, because `ray.init` cannot be interrupted."""
    _logger.warning(
        "Ray at %s cannot be reached: it did not answer for %g s. Start it with "
        "'ray start --head', and this machine's node with 'ray start --address'.",
        address,
        _CONNECT_S,
    )
    os._exit(EXIT_TOLD)
