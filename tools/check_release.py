"""Checks the wheel and the source package of a release before they are published.

    python tools/check_release.py dist

Reads their contents and metadata, then installs each into a fresh environment that holds nothing
but the packages a plain installation needs, linked from this environment, and runs it there. Needs
no network: the source package is built with the hatchling that is installed here.
"""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sbom import needed

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
IN_SOURCE_PACKAGE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "mkdocs.yml",
    "pyproject.toml",
    "requirements.lock",
    "docs/contributing/map.md",
    "src/tinkex/py.typed",
    "tests/conftest.py",
    "tools/check_release.py",
)
IMPORT_ALL = """
import tinkex
for name in tinkex.__all__:
    getattr(tinkex, name)
print("all names")
"""


def main(folder: Path) -> None:
    """Ends with a list of what is wrong, or says that nothing is."""
    wheel, sdist = one(folder, "*.whl"), one(folder, "*.tar.gz")
    problems = [*changelog_problems(version()), *wheel_problems(wheel), *sdist_problems(sdist)]
    with tempfile.TemporaryDirectory() as temporary:
        built = build_again(sdist, Path(temporary))
        if names_in_wheel(built) != names_in_wheel(wheel):
            problems.append(f"{sdist.name} builds a wheel with other files than {wheel.name}.")
        for number, each in enumerate((wheel, built)):
            problems += install_problems(each, Path(temporary) / f"environment-{number}")
    if problems:
        sys.exit("\n".join(problems))
    print(f"{wheel.name} and {sdist.name}: contents, metadata, installation and start are right.")


def one(folder: Path, pattern: str) -> Path:
    """The only file of its kind."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        sys.exit(f"{folder} should hold one {pattern}, not {len(found)}.")
    return found[0]


def version() -> str:
    """The version that the source says it is."""
    text = (SOURCE / "tinkex" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.M)
    assert found is not None, "version.py has the line"
    return found[1]


def changelog_problems(number: str, text: str | None = None) -> Iterator[str]:
    """A released version has an entry with its date, below an Unreleased section."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") if text is None else text
    headings = re.findall(r"^## (.+)$", text, re.M)
    if headings[:1] != ["[Unreleased]"]:
        yield "CHANGELOG.md does not begin with a section [Unreleased]."
    if not any(
        re.fullmatch(rf"{re.escape(number)} - \d{{4}}-\d\d-\d\d", each) for each in headings
    ):
        yield f"CHANGELOG.md has no entry '## {number} - YYYY-MM-DD'."


def names_in_wheel(wheel: Path) -> set[str]:
    """The files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {each for each in archive.namelist() if not each.endswith("/")}


def wheel_problems(wheel: Path) -> Iterator[str]:
    """What is missing in a wheel, what should not be there, and what its metadata gets wrong."""
    names = names_in_wheel(wheel)
    info = f"tinkex-{version()}.dist-info"
    wanted = {f"{info}/METADATA", f"{info}/licenses/LICENSE", f"{info}/entry_points.txt"}
    wanted |= set(package_files())
    for name in sorted(wanted - names):
        yield f"{wheel.name} lacks {name}."
    for name in sorted(names - wanted):
        if not name.startswith((f"{info}/", "tinkex/")) or "tests" in PurePosixPath(name).parts:
            yield f"{wheel.name} should not hold {name}."
        elif name.endswith((".pyc", ".so")):
            yield f"{wheel.name} holds {name}, which is made on the machine that runs it."
    if f"{info}/METADATA" in names:
        with zipfile.ZipFile(wheel) as archive:
            yield from metadata_problems(archive.read(f"{info}/METADATA").decode())


def package_files() -> Iterator[str]:
    """What a wheel must hold of the source: everything but what Python makes there."""
    for path in sorted((SOURCE / "tinkex").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(SOURCE).as_posix()


def metadata_problems(text: str) -> Iterator[str]:
    """Where the metadata says something else than pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found = email.message_from_string(text)
    wanted = {
        "Name": project["name"],
        "Version": version(),
        "Requires-Python": project["requires-python"],
        "License-Expression": project["license"],
        "Summary": project["description"],
    }
    for name, value in wanted.items():
        if found[name] != value:
            yield f"The metadata's {name} is {found[name]!r}, not {value!r}."
    extras = set(found.get_all("Provides-Extra", []))
    if extras != set(project["optional-dependencies"]):
        yield f"The metadata's extras are {sorted(extras)}."
    plain = [each for each in found.get_all("Requires-Dist", []) if "extra ==" not in each]
    if len(plain) != len(project["dependencies"]):
        yield f"A plain installation would bring {plain}."


def sdist_problems(sdist: Path) -> Iterator[str]:
    """What is missing in a source package."""
    with tarfile.open(sdist) as archive:
        names = {each.partition("/")[2] for each in archive.getnames()}
    wanted = {*IN_SOURCE_PACKAGE, *(f"src/{each}" for each in package_files())}
    for name in sorted(wanted - names):
        yield f"{sdist.name} lacks {name}."


def build_again(sdist: Path, folder: Path) -> Path:
    """The wheel that the source package builds."""
    pip(
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder / "built"),
        str(sdist),
    )
    return one(folder / "built", "*.whl")


def install_problems(wheel: Path, environment: Path) -> Iterator[str]:
    """What goes wrong when a wheel is installed without extras, and run."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    python = environment / "bin" / "python"
    link_packages(site_of(python))
    pip("install", "--no-deps", str(wheel), python=python)
    checks = {
        (str(environment / "bin" / "tinkex"), "--version"): version(),
        (str(python), "-c", "import tinkex; print(tinkex.__file__)"): str(environment),
        (str(python), "-c", IMPORT_ALL): "all names",
        (str(python), "-m", "tinkex", "--help"): "Usage: tinkex",
    }
    for command, wanted in checks.items():
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=environment)
        if done.returncode or wanted not in done.stdout:
            said = (done.stderr or done.stdout).strip()[-500:]
            yield f"{wheel.name}: {' '.join(command[-2:])} did not give {wanted!r}:\n{said}"


def link_packages(site: Path) -> None:
    """Puts the packages that a plain installation needs into an environment, as links.

    Only those: what the package imports beyond its declared dependencies is not found there.
    """
    for name in sorted(needed("tinkex", frozenset()).keys() - {"tinkex"}):
        tops = {Path(file).parts[0] for file in distribution(name).files or ()}
        origin = Path(str(distribution(name).locate_file("")))
        for top in sorted(tops - {"..", "__pycache__"}):
            if not (site / top).exists():
                (site / top).symlink_to(origin / top)


def site_of(python: Path) -> Path:
    """Where an environment keeps its packages."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


def pip(*arguments: str, python: Path | None = None) -> None:
    """Runs pip without an index, without a configuration of its own, on an environment."""
    where = [] if python is None else ["--python", str(python)]
    command = [sys.executable, "-m", "pip", *where, "--isolated", "--quiet"]
    options = ["--disable-pip-version-check", "--no-index"]
    done = subprocess.run(
        [*command, arguments[0], *options, *arguments[1:]], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"pip {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
