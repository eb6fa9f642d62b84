"""Everything a version of the official client can do, as numbers to compare between versions.

Runs under interpreters that have only `tinker` and numpy; what a version's public API does not
have is left out.

    <python> version_run.py <base_url> <api_key> <model>
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
import urllib.request
import warnings
from typing import Any

import httpx
import tinker
from tinker import types

IDS = [5, 9, 33, 71, 12, 90, 41, 8]
LARGE = 1030  # examples: more than one request takes
ADAM = {"learning_rate": 0.01, "weight_decay": 0.01, "grad_clip_norm": 2.0}


def main(base_url: str, api_key: str, model: str) -> dict[str, Any]:
    """What was seen: `numbers` must be the same in all versions, `did` says what was run."""
    warnings.simplefilter("ignore")  # names that newer versions call deprecated
    sent = _record_requests()
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    rest = service.create_rest_client()
    names = [each.model_name for each in service.get_server_capabilities().supported_models]
    training = service.create_lora_training_client(
        model, rank=4, seed=3, user_metadata={"renderer": "x"}
    )
    did = ["get_server_capabilities", "create_lora_training_client"]
    numbers: dict[str, Any] = {"models": names, "rank": training.get_info().lora_rank}
    numbers |= _train(training, did)
    numbers |= _losses(training, did)
    numbers |= _mistake(training, did)
    state = training.save_state("state", ttl_seconds=7200).result().path
    numbers |= _resume(service, training, state, did)
    numbers |= _sample(service, training, model, did)
    numbers |= _checkpoints(rest, training, state, did)
    if hasattr(training, "save_weights_external"):
        numbers["export"] = _export(rest, training, did)
    return {
        "version": tinker.__version__,
        "numbers": numbers,
        "did": sorted(set(did)),
        "sent": sorted(sent),
    }


def _record_requests() -> set[str]:
    """Fills up with `<last part of the path> <content type> <accept>` of all that is sent."""
    seen: set[str] = set()
    send = httpx.AsyncClient.send

    async def recorded(self: httpx.AsyncClient, request: httpx.Request, **options: Any) -> Any:
        name = request.url.path.rpartition("/")[2]
        kinds = (request.headers.get(each, "-") for each in ("content-type", "accept"))
        seen.add(" ".join([name, *kinds]))
        return await send(self, request, **options)

    httpx.AsyncClient.send = recorded  # type: ignore[method-assign]
    return seen


def _train(training: tinker.TrainingClient, did: list[str]) -> dict[str, Any]:
    did += ["forward", "forward_backward", "forward_backward of two chunks", "optim_step"]
    before = training.forward([_datum(IDS)], "cross_entropy").result()
    losses, norms = [], []
    for step in range(3):
        forward = training.forward_backward([_datum(IDS), _datum(IDS[step:])], "cross_entropy")
        update = training.optim_step(types.AdamParams(**ADAM))
        losses.append(forward.result().metrics["loss:sum"])
        norms.append((update.result().metrics or {})["grad_norm"])
    many = [_datum([1 + (n + i) % 90 for i in range(3 + n % 3)]) for n in range(LARGE)]
    chunked = training.forward_backward(many, "cross_entropy").result()
    update = training.optim_step(types.AdamParams(**ADAM)).result()
    after = training.forward([_datum(IDS)], "cross_entropy").result()
    return {
        "before": _logprobs(before),
        "losses": losses,
        "norms": norms,
        "chunked loss": chunked.metrics["loss:sum"] / LARGE,
        "chunked outputs": len(chunked.loss_fn_outputs),
        "chunked last": list(chunked.loss_fn_outputs[-1]["logprobs"].data),
        "chunked norm": (update.metrics or {})["grad_norm"] / LARGE,
        "after": _logprobs(after),
    }


def _losses(training: tinker.TrainingClient, did: list[str]) -> dict[str, Any]:
    seen = {}
    cases = {
        "importance_sampling": {},
        "ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1},
        "cispo": {"clip_low_threshold": 0.5, "clip_high_threshold": 2.0},
        "dro": {"beta": 0.1},
    }
    for loss_fn, config in cases.items():
        did.append(loss_fn)
        datum = types.Datum(
            model_input=types.ModelInput.from_ints(IDS[:-1]),
            loss_fn_inputs={
                "target_tokens": IDS[1:],
                "logprobs": [-5.0, -5.5, -6.0, -4.5, -7.0, -5.0, -5.2],
                "advantages": [0.0, 1.0, -1.0, 0.5, 2.0, -0.3, 0.0],
            },
        )
        output = training.forward_backward([datum], loss_fn, config or None).result()
        metrics = training.optim_step(types.AdamParams(learning_rate=1e-3)).result().metrics
        seen[loss_fn] = [output.metrics["loss:sum"], (metrics or {})["grad_norm"]]
    return seen


def _mistake(training: tinker.TrainingClient, did: list[str]) -> dict[str, Any]:
    """A wrong request fails alone, and the next one is served."""
    did.append("user errors")
    wrong = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 100_000]),
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, 1.0, 1.0]},
    )
    future = training.forward_backward([wrong], "cross_entropy")
    after = training.forward([_datum(IDS)], "cross_entropy")
    error = _error_of(future)
    assert isinstance(error, tinker.RequestFailedError)
    assert "vocabulary" in str(error), error
    category = str(getattr(error.category, "value", error.category)).lower()
    return {"category": category, "after a mistake": after.result().metrics["loss:sum"]}


def _error_of(future: Any) -> Exception | None:
    try:
        future.result()
    except Exception as error:
        return error
    return None


def _resume(
    service: tinker.ServiceClient, training: tinker.TrainingClient, state: str, did: list[str]
) -> dict[str, Any]:
    did += ["save_state", "load_state", "load_state_with_optimizer", "from_state"]
    went_on = [_step(training), _step(training)]
    resumed = service.create_training_client_from_state_with_optimizer(state)
    exact = [_step(resumed), _step(resumed)]
    assert exact == went_on, "with the optimizer's state the run goes on bit for bit"
    training.load_state_with_optimizer(state).result()
    assert [_step(training), _step(training)] == went_on
    fresh = service.create_training_client_from_state(state)
    anew = [_step(fresh), _step(fresh)]
    training.load_state(state).result()
    assert [_step(training), _step(training)] == anew
    assert anew[0] == went_on[0]
    assert anew[1] != went_on[1], "a new optimizer takes another step"
    return {"resumed": went_on, "anew": anew}


def _sample(
    service: tinker.ServiceClient, training: tinker.TrainingClient, model: str, did: list[str]
) -> dict[str, Any]:
    did += [
        "save_weights_for_sampler (named)",
        "save_weights_and_get_sampling_client (ephemeral)",
        "sample",
        "compute_logprobs",
        "base model sampler",
    ]
    path = training.save_weights_for_sampler("named").result().path
    named = service.create_sampling_client(model_path=path)
    ephemeral = training.save_weights_and_get_sampling_client()
    base = service.create_sampling_client(base_model=model)
    whole, prompt = types.ModelInput.from_ints(IDS), types.ModelInput.from_ints(IDS[:4])
    scores = named.compute_logprobs(whole).result()
    assert scores[0] is None
    params = types.SamplingParams(max_tokens=12, seed=5, temperature=0.8, top_p=0.95, stop=[])
    answer = named.sample(
        prompt, 3, params, include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result()
    same = ephemeral.sample(prompt, 3, params).result()
    assert _tokens(same) == _tokens(answer), "named and ephemeral samplers are the same weights"
    # With a trailing EOS rule and a stop string, whatever the tokens: both must end it at once.
    stop = answer.sequences[0].tokens[3]
    stopped = named.sample(
        prompt,
        1,
        types.SamplingParams(max_tokens=12, seed=5, temperature=0.8, top_p=0.95, stop=[stop]),
    ).result()
    greedy = base.sample(prompt, 1, types.SamplingParams(max_tokens=6, temperature=0.0)).result()
    _step(training)
    assert named.compute_logprobs(whole).result() == scores, "a sampler does not move"
    assert ephemeral.compute_logprobs(whole).result() == scores
    return {
        "scores": scores[1:],
        "base scores": base.compute_logprobs(whole).result()[1:],
        "tokens": _tokens(answer),
        "sampled logprobs": [list(each.logprobs or []) for each in answer.sequences],
        "prompt logprobs": list(answer.prompt_logprobs or [])[1:],
        "topk": [
            [[token, score] for token, score in row]
            for row in (answer.topk_prompt_logprobs or [])
            if row is not None
        ],
        "stopped": _tokens(stopped),
        "stop reasons": [answer.sequences[0].stop_reason, stopped.sequences[0].stop_reason],
        "greedy": _tokens(greedy),
    }


def _checkpoints(
    rest: Any, training: tinker.TrainingClient, state: str, did: list[str]
) -> dict[str, Any]:
    did += ["runs", "checkpoints", "publish", "ttl", "delete", "weights_info", "sessions"]
    run_id = training.model_id
    run = rest.get_training_run(run_id).result()
    assert run_id in [
        each.training_run_id for each in rest.list_training_runs().result().training_runs
    ]
    listed = {
        each.checkpoint_id: each for each in rest.list_checkpoints(run_id).result().checkpoints
    }
    assert state in [each.tinker_path for each in rest.list_user_checkpoints().result().checkpoints]
    had_expiry = listed["weights/state"].expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(state, None).result()
    rest.publish_checkpoint_from_tinker_path(state).result()
    published = rest.list_checkpoints(run_id).result().checkpoints[0]
    rest.unpublish_checkpoint_from_tinker_path(state).result()
    info = rest.get_weights_info_by_tinker_path(state).result()
    files: list[str] = []
    if hasattr(rest, "get_checkpoint_archive_url_from_tinker_path"):
        did.append("archive")
        files = _archive(rest, state)
    rest.delete_checkpoint_from_tinker_path(state).result()
    left = [each.checkpoint_id for each in rest.list_checkpoints(run_id).result().checkpoints]
    session = rest.get_session(run_id.partition(":")[0]).result()
    assert run_id in session.training_run_ids
    assert run_id.partition(":")[0] in rest.list_sessions().result().sessions
    assert not files or {"adapter_config.json", "adapter_model.safetensors"} <= set(files)
    if hasattr(rest, "whoami"):
        did.append("whoami")
        assert rest.whoami().result().user_urn
    return {
        "run": [run.base_model, run.is_lora, run.lora_rank, run.user_metadata],
        "listed": sorted(listed),
        "had expiry": had_expiry,
        "published": [published.public, published.expires_at],
        "info": [info.base_model, info.is_lora, info.lora_rank],
        "left": left,
    }


def _archive(rest: Any, path: str) -> list[str]:
    url = rest.get_checkpoint_archive_url_from_tinker_path(path).result().url
    with urllib.request.urlopen(url) as answer:  # a plain GET without a key
        content = answer.read()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return tar.getnames()


def _export(rest: Any, training: tinker.TrainingClient, did: list[str]) -> list[str]:
    did.append("external weights")
    path = training.save_weights_external("export").result().path
    urls = rest.get_external_weights_urls(path).result().urls
    for url in urls.values():
        with urllib.request.urlopen(url) as answer:
            assert answer.read()
    return sorted(urls)


def _step(training: tinker.TrainingClient) -> float:
    forward = training.forward_backward([_datum(IDS[::-1])], "cross_entropy")
    training.optim_step(types.AdamParams(**ADAM)).result()
    return forward.result().metrics["loss:sum"]


def _datum(ids: list[int]) -> types.Datum:
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [0.5] * (len(ids) - 1)},
    )


def _logprobs(output: types.ForwardBackwardOutput) -> list[float]:
    return [float(x) for each in output.loss_fn_outputs for x in each["logprobs"].data]


def _tokens(answer: types.SampleResponse) -> list[list[int]]:
    return [[int(token) for token in each.tokens] for each in answer.sequences]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
