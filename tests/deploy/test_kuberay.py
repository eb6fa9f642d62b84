"""The manifest for KubeRay fits Ray, Kubernetes and our command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.deploy.charts import Manifest, containers, find, manifests
from tests.deploy.command_lines import CommandLine
from tests.deploy.programs import DEPLOY, run

FILE = DEPLOY / "kuberay" / "tinkex.yaml"


@pytest.fixture(scope="module")
def found() -> list[Manifest]:
    return manifests(FILE.read_text(encoding="utf-8"))


@pytest.fixture
def cluster(found: list[Manifest]) -> Manifest:
    spec: Manifest = find(found, "RayCluster", "tinkex")["spec"]
    return spec


@pytest.fixture
def line(found: list[Manifest]) -> CommandLine:
    (server,) = (each for _, each in containers(found) if each["name"] == "server")
    return CommandLine(server["args"], set())


def test_manifests_are_what_kubernetes_accepts(cluster: Manifest, tmp_path: Path) -> None:
    """The cluster itself has no schema in Kubernetes; the pods in it have."""
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, **group["template"]}
        for group in groups
    ]
    assert all("containers" in pod["spec"] for pod in pods)
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(pods))
    run("kubernetes-validate", "--strict", "--quiet", "-k", "1.37", FILE, file)


def test_the_server_uses_this_cluster(cluster: Manifest, line: CommandLine) -> None:
    (group,) = cluster["workerGroupSpecs"]
    assert line.options["ray"] == "tinkex-head-svc:6379"  # KubeRay's name for the head
    label = dict(text.split("=") for text in line.options["ray_labels"])
    assert label == group["labels"]
    cpus = float(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert float(line.options["ray_cpus_per_worker"]) == cpus
    first, most = map(int, line.options["samplers"].split(":"))
    trainers = int(line.options["trainers"])
    assert group["minReplicas"] <= trainers + first <= group["replicas"]
    assert group["maxReplicas"] >= trainers + most


def test_ports_agree(found: list[Manifest], line: CommandLine) -> None:
    (server,) = (each for _, each in containers(found) if each["name"] == "server")
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    assert line.options["port"] == str(ports["http"])
    assert line.options["listen_workers"] == f"0.0.0.0:{ports['workers']}"
    assert line.options["ray_advertise"] == f"tinkex-workers:{ports['workers']}"
    (dialled,) = find(found, "Service", "tinkex-workers")["spec"]["ports"]
    assert dialled["port"] == ports["workers"]
    assert find(found, "Service", "tinkex-workers")["spec"]["publishNotReadyAddresses"]


def test_no_worker_runs_beside_the_head_or_a_server(
    found: list[Manifest], cluster: Manifest
) -> None:
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    (node,) = (each for _, each in containers(found) if each["name"] == "ray-node")
    assert node["command"] == ["ray"]
    assert {"start", "--address=tinkex-head-svc:6379", "--num-cpus=0", "--block"} <= set(
        node["args"]
    )
    server = find(found, "StatefulSet", "tinkex-server")["spec"]["template"]["spec"]
    shared = [
        {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        for container in server["containers"]
    ]
    for path in ("/tmp", "/dev/shm"):
        assert len({mounts[path] for mounts in shared}) == 1


def test_secrets_are_on_no_command_line(found: list[Manifest]) -> None:
    for _, container in containers(found):
        assert not re.search("token=|://.*@|key=", " ".join(container.get("args", [])))
        for variable in container.get("env", []):
            if variable["name"].startswith("TINKEX_"):
                assert "secretKeyRef" in variable["valueFrom"]
