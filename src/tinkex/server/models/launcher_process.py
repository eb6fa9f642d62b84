"""The launcher of workers on a Ray cluster: a child process, started again when it ends."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import msgspec

from tinkex.child_environment import child_environment
from tinkex.errors import ConfigError
from tinkex.launch.settings import LaunchSettings, WorkerSpec, parse_samplers
from tinkex.server.config import ServerConfig

__all__ = ["LauncherProcess", "check_ray_settings", "launch_settings"]

_logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 15.0
_STOP_S = 5.0


class LauncherProcess:
    """Keeps a launcher running until closed. The server does not depend on it."""

    def __init__(self, settings: LaunchSettings) -> None:
        self._command = [sys.executable, "-P", "-m", "tinkex.launch.launcher"]
        self._command.append(msgspec.json.encode(settings).decode())
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="tinkex-launcher")
        self._thread.start()

    def close(self) -> None:
        """Ends the launcher; its workers stay on the cluster for the next start."""
        self._is_closed.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._is_closed.is_set():
            # Ray binds loopback addresses only with the second variable, and reports usage
            # to its makers without the first.
            environment = child_environment(
                RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0"
            )
            with subprocess.Popen(  # noqa: S603
                self._command, stdin=subprocess.PIPE, env=environment
            ) as process:
                lived_long = self._wait_for(process)
            if self._is_closed.is_set():
                return
            wait_s = _FIRST_WAIT_S if lived_long else min(2 * wait_s, _LONGEST_WAIT_S)
            _logger.warning(
                "The launcher of Ray workers has ended with exit code %s; workers that run go on. "
                "It is started again in %g s.",
                process.returncode,
                wait_s,
            )
            self._is_closed.wait(wait_s)

    def _wait_for(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits for the launcher's end or ours; whether it ran for longer than a failed start."""
        num_looks = 0
        while process.poll() is None:
            if self._is_closed.wait(0.2):
                process.terminate()
                try:
                    process.wait(_STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
            num_looks += 1
        return num_looks > 300


def check_ray_settings(config: ServerConfig) -> None:
    """Refuses settings of Ray that cannot work.

    Raises:
        ConfigError: a value is malformed.
    """
    try:
        parse_samplers(config.samplers)
    except ValueError as error:
        raise ConfigError(
            f"--samplers={config.samplers!r} is not MIN:MAX.", hint="Write 1:8, or 2.", code="usage"
        ) from error
    for label in config.ray_labels:
        if not label.partition("=")[2]:
            raise ConfigError(
                f"--ray-label={label!r} is not KEY=VALUE.", hint="Write zone=a.", code="usage"
            )


def launch_settings(
    config: ServerConfig, *, store_id: str, worker_port: int, server_url: str
) -> LaunchSettings:
    """The settings that the launcher gets."""
    assert config.ray is not None
    low, high = parse_samplers(config.samplers)
    spec = WorkerSpec(
        join=config.ray_advertise or "",
        models=tuple(f"{model.name}={model.source}" for model in config.models),
        device=config.device,
        dtype=config.dtype,
        num_threads=config.num_threads,
        losses=config.losses,
    )
    return LaunchSettings(
        address=config.ray,
        namespace=f"tinkex-{store_id}",
        server_url=server_url,
        token_file=str(config.path_of_worker_token.resolve()),
        operator_token_file=str(config.path_of_operator_token.resolve()),
        worker_port=worker_port,
        spec=spec,
        num_trainers=config.trainers,
        min_samplers=low,
        max_samplers=high,
        cpus_per_worker=config.ray_cpus_per_worker,
        gpus_per_worker=config.ray_gpus_per_worker,
        labels=dict(label.split("=", 1) for label in config.ray_labels),
        target_sample_tokens=config.ray_sampler_tokens,
        idle_s=config.ray_idle_s,
    )
