"""What Kubernetes asks of a server is what a real one answers: KEDA's figure, and the probes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.deploy.charts import VALUES, containers, find, manifests, rendered
from tests.server.driving import null_config
from tests.support.waiting import wait_until
from tinkex.server.embedded import EmbeddedServer

(WITH_KEDA,) = (values for values in VALUES if "keda" in values.stem)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scaled")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(null_config(folder)) as running:
        yield running


def test_the_scaler_reads_a_number(server: EmbeddedServer, folder: Path) -> None:
    found = manifests(rendered(WITH_KEDA))
    (trigger,) = find(found, "ScaledObject", "lab-tinkex-sampler")["spec"]["triggers"]
    metadata = trigger["metadata"]
    service = find(found, "Service", "lab-tinkex")["spec"]["ports"][0]
    address = urlsplit(metadata["url"])
    assert address.netloc == f"lab-tinkex.training.svc:{service['port']}"
    assert (metadata["authMode"], metadata["method"]) == ("apiKey", "header")

    url = f"{server.base_url}{address.path}"
    assert httpx.get(url).status_code == 401
    token = (folder / "operator-token").read_text().split()[0]
    answer = httpx.get(url, headers={metadata["keyParamName"]: token})
    assert answer.status_code == 200, answer.text
    figure = reduce(
        lambda value, name: value[name], metadata["valueLocation"].split("."), answer.json()
    )
    assert type(figure) is int


def test_the_scaler_has_the_token_that_the_server_has() -> None:
    found = manifests(rendered(WITH_KEDA))
    pod = find(found, "StatefulSet", "lab-tinkex-server")["spec"]["template"]["spec"]
    (volume,) = (each for each in pod["volumes"] if each["name"] == "secrets")
    mounted = [each["secret"] for each in volume["projected"]["sources"]]
    (key,) = find(found, "TriggerAuthentication", "lab-tinkex-sampler")["spec"]["secretTargetRef"]
    item = {"key": key["key"], "path": "operator-token"}
    assert key["parameter"] == "apiKey"
    assert {"name": key["name"], "items": [item]} in mounted


def test_probes_are_answered_without_a_key(server: EmbeddedServer) -> None:
    paths = {
        probe["httpGet"]["path"]
        for _, container in containers(manifests(rendered(WITH_KEDA)))
        for name, probe in container.items()
        if name.endswith("Probe") and "httpGet" in probe
    }
    assert paths == {"/healthz", "/api/v1/version"}
    for path in paths:
        wait_until(lambda path=path: httpx.get(server.base_url + path).status_code == 200)
