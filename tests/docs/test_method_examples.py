"""Each public method of the clients has an example in its docstring, and the example runs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch

import tinkex
from tests.docs.conftest import MODEL
from tests.support.waiting import wait_until
from tinkex import telemetry, types

CLIENTS = {
    "service": tinkex.ServiceClient,
    "training": tinkex.TrainingClient,
    "sampling": tinkex.SamplingClient,
    "rest": tinkex.RestClient,
}
FOR_THE_HOSTED_SERVICE = {
    *("export_session_trace", "download_session_trace", "get_audit_log", "get_billing_usage"),
}
"""What a server of one's own answers with an error that says so."""

DESTROYS = {
    *("close", "unload_model", "delete_checkpoint", "delete_checkpoint_from_tinker_path"),
}
"""What runs on a client of its own."""

APART = {"on_queue_state_change", "push_to_hub"}
"""What a class of the user's overrides, and what needs a hub: tests/server/test_hub_push.py."""


def methods(client: type) -> Iterator[str]:
    """The public methods that are no other form of another one."""
    for name, value in inspect.getmembers(client, inspect.isroutine):
        plain = re.sub(r"_(async|future)$", "", name)
        if not name.startswith("_") and (plain == name or not hasattr(client, plain)):
            assert value.__doc__, name
            yield name


def example_of(client: type, name: str) -> str:
    """The code of an example, which stands between backquotes."""
    found = re.findall(r"Example: `([^`]+)`\.", inspect.getdoc(getattr(client, name)) or "")
    assert len(found) == 1, f"{client.__name__}.{name} needs one line 'Example: `...`.'"
    return str(found[0])


CASES = [
    (who, name) for who, client in CLIENTS.items() for name in methods(client) if name not in APART
]


def request_id_of(future: tinkex.Future[Any]) -> str:
    """What the server calls the request of this Future, as its events say."""
    seen: list[str] = []
    event = "tinkex.http.request.stop"
    telemetry.attach(
        "ids", event, lambda _, __, found, ___: seen.append(found.get("request_id")), None
    )
    try:
        future.result()
        wait_until(lambda: any(seen))
    finally:
        telemetry.detach("ids")
    return next(filter(None, seen))


@contextmanager
def prepared(environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The names that examples use."""
    given = {"base_url": environment["TINKER_BASE_URL"], "api_key": environment["TINKER_API_KEY"]}
    config = tinkex.Config(**given, environ={}, files=())
    with tinkex.ServiceClient(config=config) as service:
        training = service.create_lora_training_client(MODEL, rank=4)
        datum = types.Datum(
            model_input=types.ModelInput.from_ints([1, 2]),
            loss_fn_inputs={"target_tokens": [2, 3], "weights": [1.0, 1.0]},
        )
        sampler = service.create_sampling_client(base_model=MODEL)
        yield {
            **given,
            **{"types": types, "date": date, "ServiceClient": tinkex.ServiceClient},
            **{"service": service, "training": training, "rest": service.create_rest_client()},
            **{"run_id": training.model_id, "session_id": service.session_id},
            **{"sampler_id": sampler.sampling_session_id, "project_id": "project"},
            **{"SamplingClient": tinkex.SamplingClient, "sampler": sampler, "config": config},
            **{
                "prompt": types.ModelInput.from_ints([1, 2]),
                "handle": sampler.get_sampler_handle(),
            },
            "request_id": request_id_of(training.forward([datum], "cross_entropy")),
            "path": training.save_weights_for_sampler("final").result().path,
            "state_path": training.save_state("state").result().path,
            "export_path": training.save_weights_external("adapter").result().path,
            "data": [datum],
            "loss": lambda logprobs, weights: (-(logprobs * weights).sum(), {}),
            "loss_fn": lambda data, logprobs: (-torch.cat(logprobs).sum(), {}),
        }


@pytest.fixture(scope="module")
def shared(environment: dict[str, str]) -> Iterator[dict[str, Any]]:
    with prepared(environment) as names:
        yield names


@pytest.mark.parametrize(("who", "name"), CASES)
def test_the_example_of_a_method_runs(
    who: str,
    name: str,
    environment: dict[str, str],
    shared: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = example_of(CLIENTS[who], name)
    assert f".{name}(" in code
    monkeypatch.chdir(tmp_path)
    with prepared(environment) if name in DESTROYS else nullcontext(shared) as names:
        if name in FOR_THE_HOSTED_SERVICE:
            with pytest.raises(tinkex.APIStatusError):
                eval(code, names)
        else:
            made = eval(code, names)
            if isinstance(made, tinkex.ServiceClient):
                made.close().result()
