"""The Helm chart renders to what Kubernetes accepts; its parts fit each other and our commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.charts import (
    CHART,
    VALUES,
    Manifest,
    containers,
    find,
    manifests,
    pods,
    refusal,
    rendered,
)
from tests.deploy.command_lines import CommandLine
from tests.deploy.programs import run
from tinkex.server.gate.auth import PUBLIC_PATHS

DEFAULT, GPUS, HPA = VALUES
KUBERNETES = ["1.27", "1.37"]  # the first that Chart.yaml allows, and the last one known
VALUES_IDS = [values.stem for values in VALUES]
SCALING = "samplers.autoscaling"
each_values = pytest.mark.parametrize("values", VALUES, ids=VALUES_IDS)


@each_values
def test_helm_finds_no_fault(values: Path) -> None:
    run("helm", "lint", "--strict", CHART, "--values", values)


@pytest.mark.parametrize("version", KUBERNETES)
def test_manifests_are_what_kubernetes_accepts(version: str, tmp_path: Path) -> None:
    files = [tmp_path / values.name for values in VALUES]
    for values, file in zip(VALUES, files, strict=True):
        file.write_text(rendered(values))
    run("kubernetes-validate", "--strict", "--quiet", "-k", version, *files)


def test_a_wrong_manifest_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "manifests.yaml"
    file.write_text(rendered(DEFAULT).replace("serviceName:", "nameOfService:"))
    with pytest.raises(AssertionError, match="nameOfService"):
        run("kubernetes-validate", "--strict", "--quiet", "-k", KUBERNETES[-1], file)


@each_values
def test_command_lines_are_ours(values: Path) -> None:
    lines = [CommandLine(each["args"], set()) for _, each in containers(of(values))]
    assert [line.name for line in lines] == ["worker", "serve", "worker"]
    assert {line.options.get("role") for line in lines} == {"train", "sample", None}


@each_values
def test_ports_agree(values: Path) -> None:
    found = of(values)
    (server,) = (each for _, each in containers(found) if each["name"] == "server")
    ports = {each["name"]: each["containerPort"] for each in server["ports"]}
    line = CommandLine(server["args"], set())
    assert line.options["port"] == str(ports["http"])
    assert line.options["listen_workers"].endswith(f":{ports['workers']}")
    workers = find(found, "Service", "lab-tinkex-workers")["spec"]["ports"]
    assert [(each["port"], each["targetPort"]) for each in workers] == [
        (ports["workers"], "workers")
    ]
    for _, container in containers(found):
        if container["name"] == "worker":
            joined = CommandLine(container["args"], set()).options["join"]
            assert joined == f"lab-tinkex-workers:{ports['workers']}"
            (probe,) = [
                each for each in container["readinessProbe"]["exec"]["command"] if "01" in each
            ]
            assert f":{ports['workers']:X} 01" in probe


@each_values
def test_servers_and_workers_name_the_same_models(values: Path) -> None:
    lines = [CommandLine(each["args"], set()) for _, each in containers(of(values))]
    named = [[text.partition("=")[0] for text in line.options["model_texts"]] for line in lines]
    assert named[0]
    assert named == [named[0]] * 3


@each_values
def test_probes_ask_what_needs_no_key(values: Path) -> None:
    paths = {
        probe["httpGet"]["path"]
        for _, container in containers(of(values))
        for name, probe in container.items()
        if name.endswith("Probe") and "httpGet" in probe
    }
    assert paths == {"/healthz", "/api/v1/version"}
    assert paths <= PUBLIC_PATHS


@each_values
def test_selectors_choose_the_pods_that_are_meant(values: Path) -> None:
    found = of(values)
    labels = {name: pod["metadata"]["labels"] for name, pod in pods(found)}
    expected = {
        "Service": {"lab-tinkex": "server", "lab-tinkex-workers": "server"},
        "NetworkPolicy": {f"lab-tinkex-{part}": part for part in ("server", "trainer", "sampler")},
        "PodDisruptionBudget": {
            f"lab-tinkex-{part}": part for part in ("server", "trainer", "sampler")
        },
    }
    for manifest in found:
        wanted = expected.get(manifest["kind"], {}).get(manifest["metadata"]["name"])
        if wanted is not None:
            spec = manifest["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            chosen = selector.get("matchLabels", selector)
            assert [name for name, own in labels.items() if chosen.items() <= own.items()] == [
                f"lab-tinkex-{wanted}"
            ]


@each_values
def test_secrets_are_on_no_command_line(values: Path) -> None:
    secrets = {"TINKEX_DATABASE_URL", "TINKEX_BOOTSTRAP_KEY"}
    for _, container in containers(of(values)):
        assert not any("://" in word and "@" in word for word in container["args"])
        assert not any("database-url" in word or "key=" in word for word in container["args"])
        for variable in container.get("env", []):
            if variable["name"] in secrets:
                assert set(variable) == {"name", "valueFrom"}


def test_a_secret_of_yours_is_used_and_none_is_made() -> None:
    found = of(GPUS)
    assert "Secret" not in {each["kind"] for each in found}
    text = rendered(GPUS)
    assert text.count("name: tinkex-keys") >= 4
    assert "name: tinkex-database" in text


def test_secrets_that_are_not_given_are_made() -> None:
    made = find(of(DEFAULT), "Secret", "lab-tinkex-secrets")
    names = {"database-url", "bootstrap-key", "signing-secret", "worker-token", "operator-token"}
    assert set(made["data"]) == names
    assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


@pytest.mark.parametrize(
    "option",
    [
        "nothing=1",
        "server.nothing=1",
        "samplers.autoscaling.keda.targetToken=1",
        "samplers.autoscaling.kind=cron",
        "trainers.dtype=int8",
        "depot=/mnt/shared",
    ],
)
def test_values_that_do_not_exist_are_refused(option: str) -> None:
    assert "don't meet the specifications" in refusal(DEFAULT, "--set", option)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("secrets.databaseUrl.value=", "Give secrets.databaseUrl"),
        ("server.maxRemoteWorkers=1", "there may be 2 trainers and samplers"),
        (f"{SCALING}.kind=keda,trainers.replicas=9", "may be 17 trainers and samplers"),
        (f"{SCALING}.kind=hpa,{SCALING}.minReplicas=9", "above maxReplicas"),
    ],
)
def test_values_that_cannot_work_are_refused(options: str, message: str) -> None:
    assert message in refusal(DEFAULT, "--set", options)


def test_the_scaler_may_reach_the_server() -> None:
    policy = find(of(GPUS), "NetworkPolicy", "lab-tinkex-server")
    api, _ = policy["spec"]["ingress"]
    keda = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}
    assert keda in api["from"]
    open_to_all, _ = find(of(DEFAULT), "NetworkPolicy", "lab-tinkex-server")["spec"]["ingress"]
    assert "from" not in open_to_all


def test_only_one_thing_sets_the_number_of_samplers() -> None:
    for values, is_fixed in ((DEFAULT, True), (GPUS, False), (HPA, False)):
        samplers = find(of(values), "Deployment", "lab-tinkex-sampler")
        assert ("replicas" in samplers["spec"]) == is_fixed


def test_metrics_have_a_port_that_only_prometheus_may_reach(tmp_path: Path) -> None:
    switched = ("metrics.enabled=true", "metrics.serviceMonitor.enabled=true")
    peer = "metrics.from[0].namespaceSelector.matchLabels.team=watch"
    options = [word for each in (*switched, peer) for word in ("--set", each)]
    found = manifests(rendered(DEFAULT, *options))
    (server,) = (each for _, each in containers(found) if each["name"] == "server")
    (port,) = (each for each in server["ports"] if each["name"] == "metrics")
    line = CommandLine(server["args"], set())
    assert line.options["metrics_port"] == str(port["containerPort"])
    service = find(found, "Service", "lab-tinkex-metrics")
    monitor = find(found, "ServiceMonitor", "lab-tinkex")
    chosen = monitor["spec"]["selector"]["matchLabels"]
    assert chosen.items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    others = [each for each in found if each["kind"] == "Service" and each is not service]
    assert not any(chosen.items() <= each["metadata"]["labels"].items() for each in others)
    policy = find(found, "NetworkPolicy", "lab-tinkex-server")
    _, metrics, _ = policy["spec"]["ingress"]
    assert metrics["ports"][0]["port"] == "metrics"
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]
    assert "9464" not in rendered(DEFAULT)
    file = tmp_path / "manifests.yaml"
    file.write_text(rendered(DEFAULT, *options))
    run("kubernetes-validate", "--strict", "--quiet", "-k", KUBERNETES[-1], file)


def of(values: Path) -> list[Manifest]:
    return manifests(rendered(values))
