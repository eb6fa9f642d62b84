"""The distribution named `tinker`: in an environment that has it, `import tinker` gives Tinkex."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

SHIM = Path(__file__).parents[2] / "packages" / "tinker-shim"

CHILD = """
import multiprocessing
import tinker
from tinker.types import ModelInput
from tinker.lib.public_interfaces.rest_client import RestClient

import tinkex

def length(prompt):
    return prompt.length, type(prompt).__module__

if __name__ == "__main__":
    assert tinker.ServiceClient is tinkex.ServiceClient and RestClient is tinkex.RestClient
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*pool.apply(length, (ModelInput.from_ints([1, 2]),)))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment into which the distribution is installed, beside what this one has."""
    folder = tmp_path_factory.mktemp("shim") / "venv"
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    lent = sysconfig.get_path("purelib")
    (site / "lent.pth").write_text(f"import site; site.addsitedir({lent!r})\n")
    pip(folder, "install", "--quiet", "--no-deps", "--no-build-isolation", str(SHIM))
    return folder


def pip(folder: Path, *arguments: str) -> str:
    python = str(folder / "bin" / "python")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(environment: Path, program: str, *arguments: str) -> str:
    command = [str(environment / "bin" / program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_script_and_its_processes_get_tinkex(environment: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(CHILD)
    assert run(environment, "python", str(script)) == "2 tinkex.types.model_input\n"


def test_a_submodule_can_be_imported_first(environment: Path) -> None:
    program = "from tinker.types import Datum; import tinker; print(Datum is tinker.Datum)"
    assert run(environment, "python", "-c", program) == "True\n"


def test_packages_that_need_tinker_are_satisfied_and_see_whose_it_is(environment: Path) -> None:
    assert "Version: 0.36.0+tinkex" in pip(environment, "show", "tinker")


def test_the_command_is_there(environment: Path) -> None:
    assert "tinkex" in run(environment, "tinker", "--version").lower()
