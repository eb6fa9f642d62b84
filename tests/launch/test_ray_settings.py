"""Settings of Ray that cannot work end the start with a sentence; no Ray is needed for that."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.server.test_start_errors import refused, serve
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.models.ray_settings import launch_settings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ray", "auto", "--samplers", "many"), ["--samplers='many'", "MIN:MAX", "1:8"]),
        (("--ray", "auto", "--samplers", "8:1"), ["--samplers='8:1'"]),
        (("--ray", "auto", "--trainers", "0", "--samplers", "0"), ["--trainers=0", "no worker"]),
        (("--ray", "auto", "--ray-label", "zone"), ["--ray-label='zone'", "zone=a"]),
        (("--ray", "auto", "--ray-advertise", "here"), ["--ray-advertise='here'", "HOST:PORT"]),
        (("--ray", "nowhere"), ["--ray='nowhere'", "HOST:PORT"]),
        (("--ray", "ray://head:10001"), ["--ray='ray://head:10001'", "--ray auto"]),
        (("--ray", "auto", "--ray-cpus-per-worker", "0"), ["reserves nothing"]),
        (("--ray", "auto", "--ray-gpus-per-worker", "1.5"), ["1.5", "whole number"]),
        (("--ray", "auto", "--workers-tls-cert", "cert.pem"), ["--ray-tls-ca"]),
    ],
)
def test_a_wrong_setting(tmp_path: Path, options: tuple[str, ...], words: list[str]) -> None:
    at = ("--port", "0", "--data-dir", str(tmp_path / "data"), "--device", "null")
    refused(serve(*at, *options), *words)


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray(tmp_path: Path) -> None:
    at = ("--port", "0", "--data-dir", str(tmp_path / "data"), "--device", "null")
    refused(serve(*at, "--ray", "auto"), "not installed", "pip install")


def test_the_launcher_gets_absolute_paths_and_threads_as_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    models = (
        ServedModel(name="local", source="./tiny"),
        ServedModel(name="hub", source="org/model"),
    )
    config = ServerConfig(data_dir=Path("data"), models=models, ray="auto", ray_cpus_per_worker=2.5)
    settings = launch_settings(config, store_id="s", worker_port=1, server_url="http://h")
    assert settings.spec.models == (f"local={tmp_path / 'tiny'}", "hub=org/model")
    assert settings.spec.num_threads == 2
    assert settings.token_file == str(tmp_path / "data" / "worker-token")
