"""Scripts written for the official package run with Tinkex behind its module names.

Each case runs in a process of its own, since the names are a process's.
"""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import tinker

from tinkex.compat.modules import MODULES

SCRIPT = """
import sys
import tinker, tinker.types.tensor_data
from tinker import TensorData, types
from tinker._version import __version__
from tinker.lib.public_interfaces import APIFuture
from tinker.lib.public_interfaces.rest_client import RestClient
from tinker.types import *

import tinkex

assert tinker.ServiceClient is tinkex.ServiceClient and RestClient is tinkex.RestClient
assert tinker.types is types and TensorData is tinker.types.tensor_data.TensorData is TensorData
assert SamplingParams is tinkex.types.SamplingParams
assert __version__ == tinker.__version__ == "0.36.0" and tinker.__title__ == "tinker"
assert issubclass(tinker.ExperimentalWarning, FutureWarning)
assert tinker.auth.tinker_has_credentials() in (True, False)
print("ran", sys.argv[1:], __name__)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=45, check=False
    )


def test_a_script_runs_unchanged(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run("-m", "tinkex.compat", "--replace", str(script), "--steps", "3")
    assert done.stdout == "ran ['--steps', '3'] __main__\n", done.stderr


def test_an_installed_package_is_not_replaced_by_default(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('the script ran')")
    done = run("-m", "tinkex.compat", str(script))
    assert done.returncode == 2
    assert "is installed already" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["--replace"], ["--nonsense"]])
def test_without_a_script_the_usage_is_shown(arguments: list[str]) -> None:
    done = run("-m", "tinkex.compat", *arguments)
    assert done.returncode == 2
    assert "usage:" in done.stderr


def test_a_script_that_is_not_there_is_said_to_be_missing() -> None:
    done = run("-m", "tinkex.compat", "--replace", "missing.py")
    assert done.returncode == 2
    assert done.stderr.startswith("There is no script missing.py.\nusage:")


def test_uninstalling_brings_the_official_package_back() -> None:
    done = run(
        "-c",
        "import tinkex.compat as compat\n"
        "compat.install(replace=True); compat.install()\n"
        "import tinker; assert tinker.__spec__.origin == 'tinkex.compat'\n"
        "compat.uninstall(); compat.uninstall(); assert not compat.is_installed()\n"
        "import tinker; assert tinker.__file__",
    )
    assert done.returncode == 0, done.stderr


def test_samples_are_retried_while_it_is_installed_unless_a_variable_says_no() -> None:
    done = run(
        "-c",
        "import tinkex.compat as compat\n"
        "from tinkex import Config\n"
        "def seen(**environ):\n"
        "    config = Config(environ=environ, files=())\n"
        "    return config.retry_samples, config.origin('retry_samples')\n"
        "assert seen() == (False, 'default')\n"
        "compat.install(replace=True)\n"
        "assert seen() == (True, 'tinkex.compat')\n"
        "assert seen(TINKEX_RETRY_SAMPLES='0') == (False, 'environment TINKEX_RETRY_SAMPLES')\n"
        "compat.uninstall()\n"
        "assert seen() == (False, 'default')",
    )
    assert done.returncode == 0, done.stderr


def test_every_module_has_the_names_it_offers() -> None:
    done = run(
        "-c",
        "import importlib, tinkex.compat as compat\n"
        "from tinkex.compat.modules import MODULES\n"
        "compat.install(replace=True)\n"
        "for name in MODULES:\n"
        "    module = importlib.import_module(name)\n"
        "    assert all(hasattr(module, each) for each in module.__all__), name",
    )
    assert done.returncode == 0, done.stderr


def test_every_public_module_of_the_official_types_can_be_imported() -> None:
    types = {
        f"tinker.types.{module.name}"
        for module in pkgutil.iter_modules(tinker.types.__path__)
        if not module.name.startswith("_")
    }
    assert types - set(MODULES) == set()


def test_the_public_interfaces_can_be_imported() -> None:
    import tinker.lib.public_interfaces as official

    names = {f"{official.__name__}.{each.name}" for each in pkgutil.iter_modules(official.__path__)}
    assert names - set(MODULES) == set()


def test_names_of_the_modules_scripts_import_are_here() -> None:
    done = run(
        "-c",
        "import importlib, sys\n"
        "names = [n for n in sys.argv[1:]]\n"
        "import tinkex.compat as compat\n"
        "theirs = {n: list(getattr(importlib.import_module(n), '__all__', [])) for n in names}\n"
        "compat.install(replace=True)\n"
        "missing = {f'{n}.{each}' for n, all_ in theirs.items() for each in all_\n"
        "           if not hasattr(importlib.import_module(n), each)}\n"
        "print(sorted(missing))",
        *[name for name in MODULES if "._" not in name],
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.strip("[]\n").replace("'", "").split(", ")) <= LEFT_OUT


LEFT_OUT = {
    "",
    "tinker.types.custom_loss_graph.CustomLossNodeOp",  # the annotation of one field
    # The old JSON form of training requests, which the official client itself no longer sends.
    "tinker.types.forward_backward_input.ForwardBackwardInput",
    "tinker.types.forward_request.ForwardRequest",
    # A union of unrelated results, and requests whose fields are parameters of methods.
    "tinker.types.future_retrieve_response.FutureRetrieveResponse",
    "tinker.types.billing_usage_request.GetBillingUsageRequest",
    "tinker.types.current_checkpoint_storage_usage_request.GetCurrentCheckpointStorageUsageRequest",
}
