"""The start report for the operator: what the server uses, and how to stop it."""

from __future__ import annotations

import os

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
_NEXT = (
    "Loading the models; requests wait until they are ready",
    "Standing by: this server takes over when no other one leads the database",
)


def start_report(config: ServerConfig, url: str) -> list[str]:
    """Lines for the log of a server that has begun to listen. None of them holds a secret."""
    threads = config.num_threads or "all"
    workers = f", {config.workers} workers" if config.workers > 1 else ""
    models = "; ".join(str(each) for each in names_of(config.models))
    return [
        f"Tinkex {__version__} listens on {url} (process {os.getpid()})",
        f"Data folder: {config.data_dir.absolute()}",
        f"Database: {shown_url(config.url_of_database)}",
        f"Models: {models}",
        f"Device: {config.device}, base weights in {config.dtype}, {threads} threads{workers}",
        *_about_workers(config),
        *([f"Losses of installed packages: {', '.join(config.losses)}"] if config.losses else []),
        f"Log: {_LOGGED[min(config.verbosity, 2)]}",
        "Ctrl-C stops the server; everything stays in the data folder",
        _NEXT[config.is_standby],
    ]


def _about_workers(config: ServerConfig) -> list[str]:
    if config.listen_workers is None:
        return []
    names = " ".join(f"--model {model.name}=FOLDER" for model in config.models)
    token = config.path_of_worker_token.absolute()
    return [
        f"Workers on other machines join with: tinkex worker --join {config.listen_workers} "
        f"--token-file {token} {names}"
    ]
