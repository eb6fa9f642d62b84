"""Every call of the official client whose body we also write, made once.

As a program it makes them all and pickles what it saw: `python -m … <file>`.
"""

from __future__ import annotations

import os
import pickle
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types as official

from tests.unit.wire.recorder import Call, Recorder
from tinkex import types

KEY = "tml-test"
PATH = "tinker://s1:train:0/weights/c1"
SAMPLER = "tinker://s1:train:0/sampler_weights/s"
EXTERNAL = "tinker://r/external_weights/x"
DMEL = bytes([1, 2, 4, 3]) + bytes(12)
SINCE = datetime(2026, 1, 2, tzinfo=UTC)
UNTIL = datetime(2026, 1, 3, tzinfo=UTC)


@dataclass
class Recorded:
    """What was sent, and what the client made of our answers."""

    seen: list[Call] = field(default_factory=list)
    results: dict[str, Any] = field(default_factory=dict)

    def body(self, path: str, index: int) -> bytes:
        """The body of the n-th request to an endpoint."""
        return [call.body for call in self.seen if call.path == path][index]


def record_everything() -> Recorded:
    """Drive the official client through all of its calls."""
    recorder = Recorder()
    results: dict[str, Any] = {}
    service = tinker.ServiceClient(
        base_url=recorder.url,
        api_key=KEY,
        user_metadata={"exp": "é1"},
        project_id="p",
        display_name="loop",
    )
    _train(results, service)
    _sample(results, service)
    _ask(results, recorder.url)
    service.close("interrupted", "by hand").result()
    _use_flags(recorder)
    return Recorded(recorder.seen, results)


def _train(results: dict[str, Any], service: Any) -> None:
    client = service.create_lora_training_client(
        "base", rank=8, seed=1, train_mlp=False, user_metadata={"a": "b"}
    )
    for name, (_, theirs) in DATA.items():
        results[f"forward_backward:{name}"] = client.forward_backward(
            [theirs], "cross_entropy"
        ).result()
    one = DATA["lists"][1]
    results["forward"] = client.forward([one], "ppo", {"clip_low_threshold": 0.5}).result()
    client.forward_backward([one, one], "gspo", {"low": 1, "high": 2.5, "mode": "x"}).result()
    results["optim_step"] = client.optim_step(official.AdamParams()).result()
    client.optim_step(official.DimuonParams(learning_rate=0.001)).result()
    results["save_state"] = client.save_state(
        "c1", ttl_seconds=7200, overwrite=True, user_metadata={"a": "b"}
    ).result()
    client.save_state("c2").result()
    results["save_sampler"] = client.save_weights_for_sampler("s", ttl_seconds=3600).result()
    results["save_external"] = client.save_weights_external(
        "x", age_encryption_recipients=["age1"]
    ).result()
    results["load_state"] = client.load_state(PATH, weights_access_token="other").result()
    client.load_state_with_optimizer(PATH).result()
    results["info"] = client.get_info()
    service.create_lora_training_client("base", optimizer=official.DimuonOptimizerConfig())
    service.create_custom_loss(custom_loss, {"logprobs": 1, "weights": 1}).result()


def custom_loss(logprobs: torch.Tensor, weights: torch.Tensor) -> Any:
    loss = -(logprobs * weights).sum()
    return loss, {"custom/loss:sum": loss}


def _sample(results: dict[str, Any], service: Any) -> None:
    client = service.create_sampling_client(model_path=SAMPLER)
    prompt = official.ModelInput.from_ints([1, 2, 3])
    results["sample"] = client.sample(prompt, 1, official.SamplingParams(max_tokens=4)).result()
    results["compute_logprobs"] = client.compute_logprobs(prompt).result()
    client.sample(
        MEDIA[1],
        1,
        official.SamplingParams(max_tokens=2, seed=7, stop=["\n", "é"], temperature=0.5, top_k=3),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=3,
    ).result()
    client.sample(
        prompt,
        1,
        official.SamplingParams(max_tokens=2, stop=[5, 6], top_p=0.25),
        include_prompt_logprobs=True,
        target_prompt_logprobs=official.TensorData(data=[1, -1], dtype="int64", shape=[2, 1]),
        prompt_logprobs_last_n=2,
    ).result()
    client.sample(prompt, 1, official.SamplingParams(max_tokens=2, stop="x")).result()
    client.sample(prompt, 1, official.SamplingParams(max_tokens=2, stop=[])).result()
    service.create_sampling_client(base_model="base")


def _ask(results: dict[str, Any], url: str) -> None:
    rest = tinker.RestClient(base_url=url, api_key=KEY)
    results["runs"] = rest.list_training_runs().result()
    results["run"] = rest.get_training_run("s1:train:0").result()
    results["checkpoints"] = rest.list_checkpoints("s1:train:0").result()
    results["user_checkpoints"] = rest.list_user_checkpoints().result()
    results["urls"] = rest.get_external_weights_urls(EXTERNAL).result()
    results["weights_info"] = rest.get_weights_info_by_tinker_path(PATH).result()
    results["sessions"] = rest.list_sessions().result()
    results["session"] = rest.get_session("s1").result()
    results["sampler"] = rest.get_sampler("s1:sample:0").result()
    results["copy"] = rest.copy_weights(PATH, "p2", ttl_seconds=3600).result()
    rest.set_checkpoint_ttl_from_tinker_path(PATH, 7200).result()
    rest.set_checkpoint_ttl_from_tinker_path(PATH, None).result()
    rest.assign_session_project("s1", "p3").result()
    results["search"] = rest.search_sessions(SEARCH[1]).result()
    rest.search_sessions(official.SessionSearchRequest()).result()
    admin = tinker.AdminClient(base_url=url, api_key=KEY)
    results["audit"] = admin.get_audit_log().result()
    results["billing"] = admin.get_billing_usage(SINCE, UNTIL).result()
    results["storage"] = admin.get_current_checkpoint_storage_usage().result()


def _use_flags(recorder: Recorder) -> None:
    """The calls a server must ask for."""
    recorder.answers["client/config"] = types.ClientConfig(
        create_model_via_load_weights=True,
        sample_use_retrieve_futures=True,
        sample_join_sampling_session=True,
    )
    recorder.answers["join_sampling_session"] = types.JoinSamplingSessionResponse(client_counter=3)
    recorder.answers["retrieve_futures"] = types.FuturesRetrieveResponse(
        cursor=1, completions=[types.FutureFinished(request_id="asample")]
    )
    service = tinker.ServiceClient(base_url=recorder.url, api_key=KEY)
    service.create_training_client_from_state_with_optimizer(PATH, user_metadata={"k": "v"})
    client = service.create_sampling_client(base_model="base")
    prompt = official.ModelInput.from_ints([1, 2, 3])
    client.sample(prompt, 1, official.SamplingParams(max_tokens=4)).result()
    clone = tinker.SamplingClient.from_sampler_handle(client.get_sampler_handle(), api_key=KEY)
    clone.sample(prompt, 1, official.SamplingParams(max_tokens=4)).result()
    service.close("success").result()


def _pair(
    model_input: tuple[types.ModelInput, Any], inputs: dict[str, Any], theirs: dict[str, Any]
) -> tuple[types.Datum, Any]:
    return (
        types.Datum(model_input[0], inputs),
        official.Datum(model_input=model_input[1], loss_fn_inputs=theirs),
    )


TEXT = (types.ModelInput.from_ints([1, 2, 3]), official.ModelInput.from_ints([1, 2, 3]))
MEDIA = (
    types.ModelInput(
        chunks=[
            types.EncodedTextChunk([9]),
            types.ImageChunk(data=b"\x00\xffpng", format="png", expected_tokens=4),
            types.DmelChunk(dmel=DMEL),
            types.ImageAssetPointerChunk(location="x://y", format="jpeg", expected_tokens=2),
        ]
    ),
    official.ModelInput(
        chunks=[
            official.EncodedTextChunk(tokens=[9]),
            official.ImageChunk(data=b"\x00\xffpng", format="png", expected_tokens=4),
            official.DmelChunk(dmel=DMEL),
            official.ImageAssetPointerChunk(location="x://y", format="jpeg", expected_tokens=2),
        ]
    ),
)
TRAINABLE = (
    types.ModelInput(chunks=MEDIA[0].chunks[:3]),
    official.ModelInput(chunks=MEDIA[1].chunks[:3]),
)
_WIDE = torch.zeros(4, 9, dtype=torch.int64)
_WIDE[1, 2] = 7
_WIDE[3, 0] = 5
_WEIGHTS = torch.zeros(4, 9)  # weighs token 0 at the origin, and not the 7
_WEIGHTS[0, 0] = 0.5
_WEIGHTS[3, 0] = 1.0
_HALF = torch.tensor([0.1, -2.5, 3.0], dtype=torch.bfloat16)
_ARRAY = np.array([[0.5, 1.5], [2.5, 3.5]], dtype=np.float64)


def _same(inputs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    return inputs, inputs


DATA: dict[str, tuple[types.Datum, Any]] = {
    "lists": _pair(TEXT, *_same({"target_tokens": [2, 3, 4], "weights": [0.0, 1.0, 0.1]})),
    "ints": _pair(TEXT, *_same({"weights": [0, 1, 1]})),
    "empty": (
        types.Datum(types.ModelInput.from_ints([]), {"weights": []}),
        official.Datum(
            model_input=official.ModelInput.from_ints([]), loss_fn_inputs={"weights": []}
        ),
    ),
    "no chunks": (
        types.Datum(types.ModelInput.empty()),
        official.Datum(model_input=official.ModelInput.empty(), loss_fn_inputs={}),
    ),
    "media": _pair(TRAINABLE, *_same({"weights": [0.5]})),
    "numpy": _pair(TEXT, *_same({"weights": _ARRAY})),
    "numpy int32": _pair(TEXT, *_same({"anything": np.array([1, -2, 3], dtype=np.int32)})),
    "torch": _pair(TEXT, *_same({"logprobs": torch.tensor([[0.5], [1.0]])})),
    "bfloat16": _pair(TEXT, *_same({"advantages": _HALF})),
    "sparse": _pair(TEXT, *_same({"target_tokens": _WIDE})),
    "dense matrix": _pair(TEXT, *_same({"weights": torch.ones(2, 2)})),
    "scalar": _pair(TEXT, *_same({"x": np.array(2.5, dtype=np.float32)})),
    "independent sparsity": _pair(
        TEXT,
        *_same({"target_tokens": _WIDE, "weights": _WEIGHTS}),
    ),
}
DATA["provenance"] = (
    DATA["ints"][0].with_provenance(
        model_input=[
            types.PromptProvenanceSpan(sequence_id="q", length=2),
            types.SampledProvenanceSpan(sequence_id="q", offset=1, length=1),
        ],
        loss_fn_inputs=[types.SampledProvenanceSpan(sequence_id="é", offset=0, length=3)],
    ),
    DATA["ints"][1].with_provenance(
        model_input=[
            official.PromptProvenanceSpan(sequence_id="q", offset=0, length=2),
            official.SampledProvenanceSpan(sequence_id="q", offset=1, length=1),
        ],
        loss_fn_inputs=[official.SampledProvenanceSpan(sequence_id="é", offset=0, length=3)],
    ),
)

SEARCH = (
    types.SessionSearchRequest(
        session_id="s",
        project_ids=["p"],
        user_metadata={"k": "v"},
        display_name="d",
        owner=types.UserSearchOwner(owner_urns=["u"]),
        statuses=[
            types.ActiveSessionStatusQuery(),
            types.ClientFinishedSessionStatusQuery(),
            types.ClientFinishedSessionStatusQuery(reasons=["success"]),
        ],
        limit=3,
        cursor=types.SessionSearchCursor(last_created_at=SINCE, last_session_id="s0"),
    ),
    official.SessionSearchRequest(
        session_id="s",
        project_ids=["p"],
        user_metadata={"k": "v"},
        display_name="d",
        owner=official.UserSearchOwner(owner_urns=["u"]),
        statuses=[
            official.ActiveSessionStatusQuery(),
            official.ClientFinishedSessionStatusQuery(),
            official.ClientFinishedSessionStatusQuery(reasons=["success"]),
        ],
        limit=3,
        cursor=official.SessionSearchCursor(last_created_at=SINCE, last_session_id="s0"),
    ),
)

if __name__ == "__main__":
    from tests.unit.wire import official_calls  # so that the pickle names the module, not __main__

    Path(sys.argv[1]).write_bytes(pickle.dumps(official_calls.record_everything()))
    os._exit(0)  # the client's threads would keep the process for a while
