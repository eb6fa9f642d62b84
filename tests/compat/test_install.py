"""Scripts written for the official package run with Tinkex behind its module names.

Each case runs in a process of its own, since the names are a process's.
"""

from __future__ import annotations

import json
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


OFFICIAL = Path(tinker.__file__).parent

INSIDE = "an inside of the official client that none of its documented calls takes or gives"
GENERATED = "the generated HTTP client, which the documented clients stand on"
WIRE = "the encoding of messages"
COMMAND = "the command line, which is a program: `tinkex`"

MODULES_LEFT_OUT = {
    **dict.fromkeys(("_base_client", "_compat", "_constants", "_files", "_models"), GENERATED),
    **dict.fromkeys(("_qs", "_resource", "_response", "_streaming", "_types"), GENERATED),
    **dict.fromkeys(("_utils", "resources"), GENERATED),
    **dict.fromkeys(("proto", "lib._pydantic_conv"), WIRE),
    **dict.fromkeys(("types._tensor_container", "types._torch_utils"), WIRE),
    "cli": COMMAND,
    **dict.fromkeys(("lib._auth_token_provider", "lib._jwt_auth", "lib.credentials"), INSIDE),
    **dict.fromkeys(("lib.async_tinker_provider", "lib.internal_client_holder"), INSIDE),
    **dict.fromkeys(("lib.queue_state_logger", "lib.session_futures_poller"), INSIDE),
    **dict.fromkeys(("lib.sync_only", "lib.telemetry", "lib.telemetry_provider"), INSIDE),
    "lib.console_urls": "pages of the hosted service; clients here have get_console_url",
}
"""Modules of the official package, each with what is below it, and why they are not here."""


def official_modules() -> set[str]:
    """Every module of the installed package but its own tests, without the package's name."""
    found = {path.relative_to(OFFICIAL).with_suffix("") for path in OFFICIAL.rglob("*.py")}
    names = {".".join(each.parts).removesuffix("__init__").strip(".") for each in found}
    return {each for each in names if each and not each.endswith("_test")}


def is_left_out(module: str, entry: str) -> bool:
    return module == entry or module.startswith(f"{entry}.")


def test_every_official_module_is_here_or_left_out_for_a_reason() -> None:
    left_out = {
        each for each in official_modules() if any(is_left_out(each, e) for e in MODULES_LEFT_OUT)
    }
    ours = {name.removeprefix("tinker.") for name in MODULES}
    assert official_modules() - left_out - ours == set()
    assert left_out & ours == set()


def test_the_list_of_modules_left_out_has_no_stale_entry() -> None:
    stale = {
        entry
        for entry in MODULES_LEFT_OUT
        if not any(is_left_out(module, entry) for module in official_modules())
    }
    assert stale == set()


NAMES_OF_OTHERS = """
import importlib, inspect, json, sys
import tinkex.compat as compat

def own_names(module):
    values = list(vars(module).items())
    is_code = lambda value: inspect.isclass(value) or inspect.isfunction(value)
    here = {n for n, v in values if is_code(v) and v.__module__ == module.__name__}
    return {n for n in here | set(getattr(module, "__all__", [])) if not n.startswith("_")}

theirs = {name: own_names(importlib.import_module(name)) for name in sys.argv[1:]}
compat.install(replace=True)
print(json.dumps(sorted(
    f"{name}.{each}"
    for name, names in theirs.items()
    for each in names
    if not hasattr(importlib.import_module(name), each)
)))
"""


def test_names_that_official_modules_define_are_here() -> None:
    """What a module defines itself, and what it offers to `import *`."""
    done = run("-W", "ignore", "-c", NAMES_OF_OTHERS, *(set(MODULES) - {"tinker.lib"}))
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == NAMES_LEFT_OUT


NAMES_LEFT_OUT = {
    # The generated HTTP client, of which only a few settings have a meaning here.
    *(f"tinker._client.{each}" for each in ("AsyncTinker", "AsyncTinkerWithRawResponse")),
    *(f"tinker._client.{each}" for each in ("ProxiesTypes", "Transport")),
    # Insides of the official client.
    *(f"tinker.lib.retry_handler.{each}" for each in ("RetryHandler", "is_retryable_status_code")),
    "tinker.lib.public_interfaces.custom_loss.check_loss_inputs",
    "tinker.lib.public_interfaces.custom_loss.encode_graph",
    "tinker.lib.public_interfaces.custom_loss.run_loss_handle",
    "tinker.lib.public_interfaces.custom_loss.trace_loss",
    "tinker.lib.public_interfaces.rest_client_common.rest_client_holder",
    "tinker.lib.public_interfaces.rest_client_common.sdk_headers",
    *(f"tinker.types.optimizer.{each}" for each in ("OptimParamsBase", "OptimizerConfigBase")),
    "tinker.types.topk_logprobs.topk_to_lists",
    "tinker.types.custom_loss_graph.CustomLossNodeOp",  # the annotation of one field
    # The old JSON form of training requests, which the official client itself no longer sends.
    "tinker.types.forward_backward_input.ForwardBackwardInput",
    "tinker.types._pydantic_types.forward_backward_input.ForwardBackwardInput",
    "tinker.types.forward_request.ForwardRequest",
    # A union of unrelated results, and requests whose fields are parameters of methods.
    "tinker.types.future_retrieve_response.FutureRetrieveResponse",
    "tinker.types.billing_usage_request.GetBillingUsageRequest",
    "tinker.types.current_checkpoint_storage_usage_request.GetCurrentCheckpointStorageUsageRequest",
}


LIBRARY = """
import tinkex.compat as compat
compat.install(replace=True)
from tinker.lib.api_future_impl import QueueState, QueueStateObserver
from tinker.lib.base_url import resolve_base_url
from tinker.lib.chunked_fwdbwd_helpers import combine_fwd_bwd_output_results
from tinker.types import ForwardBackwardOutput
from tinker.types._pydantic_types.datum import Datum

import tinkex

def output(loss):
    return ForwardBackwardOutput(
        loss_fn_output_type="x", loss_fn_outputs=[], metrics={"loss:sum": loss}
    )

assert combine_fwd_bwd_output_results([output(1.0), output(2.0)]).metrics["loss:sum"] == 3.0
assert resolve_base_url("http://a:1/") == "http://a:1"
assert resolve_base_url() == tinkex.Config().base_url.rstrip("/")
assert "paused_capacity" == QueueState.PAUSED_CAPACITY
assert Datum is tinkex.Datum
try:
    QueueStateObserver()
except TypeError:
    print("abstract")
"""


def test_names_of_the_library_do_what_they_say() -> None:
    done = run("-c", LIBRARY)
    assert (done.stdout, done.stderr) == ("abstract\n", "")
