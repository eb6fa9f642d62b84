"""What a server's settings say about workers on Ray: checked, and as the launcher's
settings."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path

from tinkex.errors import ConfigError
from tinkex.launch.settings import LaunchSettings, Reservation, WorkerSpec, parse_samplers
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.models.worker_command import parse_address

__all__ = ["check_ray_settings", "launch_settings"]


def check_ray_settings(config: ServerConfig) -> None:
    """Refuses settings of Ray that cannot work, and a machine without Ray.

    Raises:
        ConfigError: the message says which setting, and what to write.
    """
    if config.ray is None:
        return
    for reason, hint in _mistakes(config, config.ray):
        raise ConfigError(reason, hint=hint, code="usage")
    if config.ray != "auto":
        parse_address(config.ray, "--ray")
    if config.ray_advertise is not None:
        parse_address(config.ray_advertise, "--ray-advertise")
    if importlib.util.find_spec("ray") is None:  # it is looked for, not imported
        raise ConfigError(
            "--ray needs Ray, which is not installed here.",
            hint="Install it here and on the nodes, in the folder of the project: "
            'pip install ".[server,depot,ray]".',
            code="not-installed",
        )


def launch_settings(
    config: ServerConfig, *, store_id: str, worker_port: int, server_url: str
) -> LaunchSettings:
    """The launcher's settings."""
    assert config.ray is not None
    low, high = parse_samplers(config.samplers)
    spec = WorkerSpec(
        join=config.ray_advertise or "",
        models=tuple(f"{model.name}={_as_seen_from_nodes(model)}" for model in config.models),
        device=config.device,
        dtype=config.dtype,
        num_threads=_threads_of_worker(config),
        losses=config.losses,
        tls_ca=config.ray_tls_ca,
    )
    return LaunchSettings(
        address=config.ray,
        namespace=f"tinkex-{store_id}",
        server_url=server_url,
        token_file=str(config.path_of_worker_token.resolve()),
        operator_token_file=str(config.path_of_operator_token.resolve()),
        worker_port=worker_port,
        spec=spec,
        reservation=Reservation(
            cpus=config.ray_cpus_per_worker,
            gpus=config.ray_gpus_per_worker,
            labels=dict(label.split("=", 1) for label in config.ray_labels),
        ),
        num_trainers=config.trainers,
        min_samplers=low,
        max_samplers=high,
        target_sample_tokens=config.ray_sampler_tokens,
        idle_s=config.ray_idle_s,
        log_level=logging.getLogger("tinkex").getEffectiveLevel(),
    )


def _mistakes(config: ServerConfig, address: str) -> Iterator[tuple[str, str]]:
    """What is wrong with the settings, and what to do."""
    if "://" in address:
        yield (
            f"--ray={address!r} is an address of Ray's client, which cannot keep workers.",
            "Run the server on a node of the cluster, and write --ray auto.",
        )
    _, most = parse_samplers(config.samplers)
    if config.trainers < 0 or config.trainers + most == 0:
        yield f"--trainers={config.trainers} leaves no worker.", "Write --trainers 1, or more."
    for label in config.ray_labels:
        key, _, value = label.partition("=")
        if not key or not value:
            yield f"--ray-label={label!r} is not KEY=VALUE.", "Write zone=a."
    cpus, gpus = config.ray_cpus_per_worker, config.ray_gpus_per_worker
    if cpus < 0 or gpus < 0 or cpus + gpus == 0:
        yield (
            f"--ray-cpus-per-worker={cpus:g} with --ray-gpus-per-worker={gpus:g} reserves nothing.",
            "Reserve a CPU or a GPU; a part of one is a number such as 0.5.",
        )
    if gpus > 1 and gpus != int(gpus):
        yield f"--ray-gpus-per-worker={gpus:g} is no whole number.", "Write 0.5, 1 or 2."
    if config.workers_tls_cert is not None and config.ray_tls_ca is None:
        yield (
            "--workers-tls-cert is given, and no certificates that workers on Ray trust.",
            "Give --ray-tls-ca: a file of certificates on the nodes, or system.",
        )


def _as_seen_from_nodes(model: ServedModel) -> str:
    """A worker has another working directory, so a folder is named from the root on."""
    folder = Path(model.source).expanduser()
    return str(folder.absolute()) if model.source and folder.is_dir() else model.source


def _threads_of_worker(config: ServerConfig) -> int | None:
    """A worker on CPUs computes with as many threads as it has reserved CPUs."""
    if config.num_threads is not None or config.device.partition(":")[0] != "cpu":
        return config.num_threads
    return max(1, int(config.ray_cpus_per_worker))
