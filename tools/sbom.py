"""What a release depends on, as a CycloneDX bill of materials beside its files.

    python tools/sbom.py dist

Lists the packages that `tinkex[server]` needs, in the versions installed here, which are those of
constraints.txt after `make install`. The same files and packages give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = ("tinkex", frozenset({"server"}))


def main(folder: Path) -> None:
    """Writes the bill for the wheel and the source package in this folder."""
    files = [each for each in sorted(folder.iterdir()) if each.suffix in {".whl", ".gz"}]
    if len(files) != 2:
        sys.exit(f"{folder} should hold one wheel and one source package, not {len(files)} files.")
    bill = bill_of_materials(files)
    path = folder / f"tinkex-{bill['metadata']['component']['version']}.cdx.json"
    path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    print(f"{path}: {len(bill['components'])} packages")


def bill_of_materials(files: list[Path]) -> dict[str, Any]:
    """The bill of a release that consists of these files."""
    found = needed(*ROOT)
    product = distribution(ROOT[0])
    others = [distribution(name) for name in sorted(found.keys() - {ROOT[0]})]
    bill: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**component(product), "externalReferences": links(files)}},
        "components": [component(each) for each in others],
        "dependencies": [
            {"ref": purl_of(name), "dependsOn": sorted(map(purl_of, below))}
            for name, below in sorted(found.items())
        ],
    }
    digest = hashlib.sha256(json.dumps(bill, sort_keys=True).encode()).hexdigest()
    return {**bill, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"}


def needed(root: str, extras: frozenset[str]) -> dict[str, set[str]]:
    """Every package below this one, and what each needs directly."""
    found: dict[str, set[str]] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [(root, extras)]
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in done:
            continue
        done.add((name, wanted))
        below = list(requirements(distribution(name), wanted))
        found.setdefault(name, set()).update(each for each, _ in below if each != name)
        waiting += below
    return found


def requirements(package: Distribution, extras: frozenset[str]) -> list[tuple[str, frozenset[str]]]:
    """What a package with these extras needs on this platform, as far as it is installed."""
    environments = [{**default_environment(), "extra": extra} for extra in ("", *sorted(extras))]
    found = []
    for text in package.requires or ():
        wanted = Requirement(text)
        if wanted.marker is not None and not any(map(wanted.marker.evaluate, environments)):
            continue
        try:
            distribution(wanted.name)
        except PackageNotFoundError:  # other builds of PyPI's torch need other packages
            continue
        found.append((canonicalize_name(wanted.name), frozenset(wanted.extras)))
    return found


def component(package: Distribution) -> dict[str, Any]:
    """A package's entry."""
    license_ = package.metadata.get("License-Expression")
    about: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl(package),
        "name": canonicalize_name(package.name),
        "version": package.version,
        "purl": purl(package),
    }
    return {**about, "licenses": [{"expression": license_}]} if license_ else about


def purl(package: Distribution) -> str:
    """Its package URL: which index, name and version it is."""
    return f"pkg:pypi/{canonicalize_name(package.name)}@{package.version.replace('+', '%2B')}"


def purl_of(name: str) -> str:
    """The package URL of an installed package."""
    return purl(distribution(name))


def links(files: list[Path]) -> list[dict[str, Any]]:
    """The files of the release, with their hashes."""
    return [
        {
            "type": "distribution",
            "url": each.name,
            "hashes": [
                {"alg": "SHA-256", "content": hashlib.sha256(each.read_bytes()).hexdigest()}
            ],
        }
        for each in files
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
