"""Importing the package and asking for help load nothing heavy and start nothing."""

import json
import subprocess
import sys

import pytest

HEAVY = {
    *("torch", "numpy", "rich", "httpx", "httpx2", "aiohttp", "starlette", "uvicorn", "sqlalchemy"),
    *("transformers", "tokenizers", "huggingface_hub", "jinja2", "safetensors", "pydantic"),
}

# Audit events tell about every socket and subprocess, however it was made.
PROBE = """
import json, sys, threading
happened = []
watched = ("socket.", "subprocess.", "os.fork", "os.posix_spawn", "os.system")
sys.addaudithook(lambda event, args: happened.append(event) if event.startswith(watched) else None)
before = set(sys.modules)
{code}
print(json.dumps({{
    "modules": sorted(set(sys.modules) - before),
    "threads": [thread.name for thread in threading.enumerate()],
    "happened": happened,
}}), file=sys.stderr)
"""


def probe(code: str) -> dict[str, list[str]]:
    ran = subprocess.run(
        [sys.executable, "-c", PROBE.format(code=code)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stderr)


HELP = "from tinkex.cli.main import run; assert run(['--help']).exit_code == 0"
CASES = {
    "import tinkex": "import tinkex",
    "tinkex --help": HELP,
    "tinkex version": HELP.replace("--help", "version"),
    "import tinkex.errors": "import tinkex.errors",
    "import tinkex.config": "import tinkex.config; tinkex.config.Config(environ={}, files=[])",
    "import tinkex.telemetry": "from tinkex.telemetry import Metrics, attach_logger",
    "import tokenizer": "import tinkex.tokenizers.tokenizer, tinkex.tokenizers.chat_template",
}


@pytest.mark.parametrize("name", CASES)
def test_loads_nothing_heavy_and_starts_nothing(name):
    seen = probe(CASES[name])
    assert {module.split(".")[0] for module in seen["modules"]} & HEAVY == set()
    assert seen["threads"] == ["MainThread"]
    assert seen["happened"] == []


@pytest.mark.parametrize("name", ["import tinkex", "tinkex --help"])
def test_quick_ways_in_load_no_loop_and_no_codec(name):
    modules = {module.split(".")[0] for module in probe(CASES[name])["modules"]}
    assert modules & {"msgspec", "asyncio", "logging", "json", "email", "ssl", "socket"} == set()


def test_help_loads_no_command_and_no_client():
    modules = set(probe(HELP)["modules"])
    assert not {name for name in modules if name.startswith("tinkex.client")}
    ours = {name for name in modules if name.startswith("tinkex.cli.")}
    assert ours == {"tinkex.cli.lazy", "tinkex.cli.main"}


def test_the_probe_itself_sees_threads_and_sockets():
    code = (
        "import socket, threading, json; s = socket.socket(); "
        "e = threading.Event(); threading.Thread(target=e.wait, daemon=True, name='extra').start()"
    )
    seen = probe(code)
    assert "extra" in seen["threads"]
    assert "socket.__new__" in seen["happened"]
