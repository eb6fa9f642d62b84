"""The start report for the operator: what the server uses, and how to stop it."""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address

from tinkex.server.config import ServerConfig
from tinkex.server.models.names import names_of
from tinkex.store.opening import shown_url
from tinkex.version import __version__

__all__ = ["start_report"]

_LOGGED = (
    "important events; -v adds one line per request, -q leaves only warnings",
    "one line per request; -vv adds polls and details",
    "everything",
)


def start_report(config: ServerConfig, url: str) -> list[str]:
    """Lines for the log of a server that has begun to listen. None of them holds a secret."""
    models = "; ".join(str(each) for each in names_of(config.models))
    return [
        f"Tinkex {__version__} listens on {url} (process {os.getpid()})",
        f"Data folder: {config.data_dir.absolute()}",
        f"Database: {shown_url(config.url_of_database)}",
        f"Models: {models}",
        _about_engines(config),
        *_about_workers(config),
        *([f"Losses of installed packages: {', '.join(config.losses)}"] if config.losses else []),
        f"Log: {_LOGGED[min(config.verbosity, 2)]}",
        "Ctrl-C stops the server; everything stays in the data folder",
        _about_next(config),
    ]


def _about_engines(config: ServerConfig) -> str:
    if not config.workers:
        return "Device: none; this server computes nothing itself"
    threads = config.num_threads or "all"
    workers = f", {config.workers} workers" if config.workers > 1 else ""
    return f"Device: {config.device}, base weights in {config.dtype}, {threads} threads{workers}"


def _about_next(config: ServerConfig) -> str:
    if config.is_standby:
        return "Standing by: this server takes over when no other one leads the database"
    if not config.workers:
        return "No worker has joined yet; requests wait until there is one"
    return "Loading the models; requests wait until they are ready"


def _about_workers(config: ServerConfig) -> list[str]:
    if config.listen_workers is None:
        return []
    names = " ".join(f"--model {model.name}=FOLDER" for model in config.models)
    token = config.path_of_worker_token.absolute()
    return [
        f"Workers on other machines join with: tinkex worker --join {_address(config)} "
        f"--token-file {token} {names}"
    ]


def _address(config: ServerConfig) -> str:
    """What workers can dial: this machine's name if the server listens on all of its addresses."""
    given = config.ray_advertise or str(config.listen_workers)
    host, _, port = given.rpartition(":")
    return f"{socket.gethostname()}:{port}" if _is_any(host.strip("[]")) else given


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:  # a name
        return False
