"""The Helm chart, rendered by Helm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.programs import DEPLOY, call, run

CHART = DEPLOY / "helm" / "tinkex"
VALUES = sorted((DEPLOY / "helm" / "values").glob("*.yaml"))
Manifest = dict[str, Any]


@cache
def rendered(values: Path, *options: str) -> str:
    """The manifests as text, for the release `lab` in the namespace `training`."""
    return run("helm", *_template(values, options))


def refusal(values: Path, *options: str) -> str:
    """Why Helm does not render the chart."""
    done = call("helm", *_template(values, options))
    assert done.returncode != 0, done.stdout
    return done.stderr


def _template(values: Path, options: tuple[str, ...]) -> list[str | Path]:
    return ["template", "lab", CHART, "--namespace", "training", "--values", values, *options]


def manifests(text: str) -> list[Manifest]:
    """The documents of a YAML text."""
    return [each for each in yaml.safe_load_all(text) if each is not None]


def find(found: list[Manifest], kind: str, name: str) -> Manifest:
    """The one manifest of that kind and name."""
    (one,) = (each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return one


def pods(found: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The pods of all manifests, with names."""
    for each in found:
        spec = each.get("spec", {})
        if "template" in spec:
            yield each["metadata"]["name"], spec["template"]
        if each["kind"] == "RayCluster":
            yield "head", spec["headGroupSpec"]["template"]
            for group in spec["workerGroupSpecs"]:
                yield group["groupName"], group["template"]


def containers(found: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    """The containers of all pods, with the names of their pods."""
    for name, pod in pods(found):
        for container in pod["spec"]["containers"]:
            yield name, container
