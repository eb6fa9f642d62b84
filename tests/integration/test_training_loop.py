"""The training loop end to end, over a real socket and through public names only.

ServiceClient, LoRA client, forward_backward in several chunks, optim_step, save: against a
loopback server that applies each operation once and in order, and says so.
"""

from __future__ import annotations

import logging
import math
import time

import pytest

from tests.support.clock import FakeClock
from tests.support.data import CROSS_ENTROPY, PARAMS, PROMPT, loss_of, make_data, make_datum
from tests.support.fixtures import Connect, make_config
from tests.support.loopback import LoopbackServer
from tests.support.numbers import logprob
from tinkex import Future, Runtime, ServiceClient, types
from tinkex.errors import RequestFailedError, ValidationError

log = logging.getLogger(__name__)
LENGTHS = (3, 4, 5, 6, 7, 3, 4)
MODEL = "tiny/model"


def test_the_loop_from_service_to_sampler_weights(server: LoopbackServer, clock: FakeClock) -> None:
    """R2, R3, R22-R29, R32-R37: the vertical slice in order, handles awaited, outcomes ok."""
    server.service.flags["fwdbwd_max_chunk_len"] = 3
    started = time.perf_counter()
    runtime = Runtime(clock=clock)
    runtime.start()
    service = ServiceClient.start(config=make_config(server), runtime=runtime)
    assert server.count("create_session") == 1
    training = service.create_lora_training_client(base_model=MODEL, rank=8)

    passed = training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY).outcome(timeout=20)
    stepped = training.optim_step(types.AdamParams(learning_rate=1e-4)).outcome(timeout=20)
    saved = training.save_weights_for_sampler("sampler-1").outcome(timeout=20)

    assert (passed.ok, stepped.ok, saved.ok) == (True, True, True)
    assert passed.value is not None
    assert saved.value is not None
    assert len(passed.value.loss_fn_outputs) == len(LENGTHS)
    assert saved.value.path == f"tinker://{training.model_id}/sampler_weights/sampler-1"
    assert server.applied() == [
        (1, "forward_backward"),
        (2, "forward_backward"),
        (3, "forward_backward"),
        (4, "optim_step"),
        (5, "save_weights_for_sampler"),
    ]
    assert server.count("save_weights_for_sampler") == 1
    log.info("the whole loop took %.1f ms", 1e3 * (time.perf_counter() - started))
    service.close().result(20)
    runtime.stop()


def test_metrics_of_the_chunks_are_reduced_into_one_output(
    server: LoopbackServer, connect: Connect
) -> None:
    """R21, R26, R29: each suffix combines the chunks in its own way; unknown ones vanish."""
    server.service.flags["fwdbwd_max_chunk_len"] = 3
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    output = training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY).result(20)

    mean = sum(LENGTHS) / len(LENGTHS)
    maxima = [(5, 3), (7, 3), (4, 1)]
    assert output.metrics["loss:sum"] == loss_of(LENGTHS)
    assert output.metrics["tokens:mean"] == pytest.approx(mean)
    assert output.metrics["tokens:max"] == max(LENGTHS)
    assert output.metrics["tokens:min"] == min(LENGTHS)
    assert output.metrics["tokens:hash2"] == sum(LENGTHS)
    weighted = sum(value * count for value, count in maxima) / len(LENGTHS)
    assert output.metrics["tokens:slack"] == pytest.approx(7 - weighted)
    unique = [output.metrics[key] for key in ("seq:unique", "seq:unique_1", "seq:unique_2")]
    assert unique == [1, 2, 3]
    assert "tokens:unheard_of" not in output.metrics


def test_outputs_keep_the_order_of_the_data_across_chunks(
    server: LoopbackServer, connect: Connect
) -> None:
    """R26, R28: datum i's logprobs stand at place i, whichever chunk carried it."""
    server.service.flags["fwdbwd_max_chunk_len"] = 2
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    output = training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY).result(20)

    found = [entry["logprobs"].tolist() for entry in output.loss_fn_outputs]
    assert found == [[logprob(t) for t in range(1, n + 1)] for n in LENGTHS]


def test_the_first_chunk_is_sent_last(server: LoopbackServer, connect: Connect) -> None:
    """R24, R26: chunks are submitted in the protocol's order and applied in the data's."""
    server.service.flags["fwdbwd_max_chunk_len"] = 2
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    training.forward_backward(make_data(LENGTHS), CROSS_ENTROPY).result(20)

    sent = [request.decoded.seq_id for request in server.calls("forward_backward")]
    assert sorted(sent) == [1, 2, 3, 4]
    assert sent[-1] == 1
    assert [entry.detail["num_datums"] for entry in server.history()] == [2, 2, 2, 1]


def test_handles_can_be_awaited_after_all_were_made(
    server: LoopbackServer, connect: Connect
) -> None:
    """R28: the work starts when the handle is made; no wait is needed in between."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    handles: list[Future[object]] = []
    for _ in range(5):
        handles.append(training.forward_backward(make_data([3, 4]), CROSS_ENTROPY))
        handles.append(training.optim_step(types.AdamParams(learning_rate=0.1)))

    outcomes = [handle.outcome(20) for handle in handles]

    assert all(outcome.ok for outcome in outcomes)
    losses = [outcome.value.metrics["loss:sum"] for outcome in outcomes[::2]]
    assert losses == [loss_of([3, 4], step) for step in range(5)]
    assert server.applied() == [
        (seq_id, "optim_step" if seq_id % 2 == 0 else "forward_backward") for seq_id in range(1, 11)
    ]


async def _run_async(service: ServiceClient) -> tuple[float, dict[str, float] | None]:
    training = await service.create_lora_training_client_async(base_model=MODEL, rank=8)
    passed = await training.forward_backward_async(make_data([3]), CROSS_ENTROPY)
    stepped = await training.optim_step_async(types.AdamParams(learning_rate=0.25))
    output = await passed
    return output.metrics["loss:sum"], (await stepped).metrics


def test_the_loop_under_a_running_event_loop(server: LoopbackServer, connect: Connect) -> None:
    """R28, R33: the `_async` pairs, awaited twice as in the official SDK."""
    import asyncio

    loss, metrics = asyncio.run(_run_async(connect()))

    assert loss == loss_of([3])
    assert metrics == {"gradients": 1.0, "learning_rate": 0.25}


def test_forward_scores_without_touching_gradients(
    server: LoopbackServer, connect: Connect
) -> None:
    """R24, R25: a forward-only pass takes its place in the order and leaves no gradient."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    scored = training.forward(make_data([4]), CROSS_ENTROPY).result(20)
    stepped = training.optim_step(types.AdamParams()).result(20)

    assert scored.metrics["loss:sum"] == loss_of([4])
    assert stepped.metrics is not None
    assert stepped.metrics["gradients"] == 0.0
    assert server.calls("forward_backward")[0].decoded.forward_only is True


def test_a_custom_loss_is_trained_through_its_gradient(
    server: LoopbackServer, connect: Connect
) -> None:
    """R25: the forward pass is awaited, then the surrogate carries dC/dlogprob as weights."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    def squares(data: object, logprobs: list) -> tuple[object, dict[str, float]]:
        return sum((lp**2).sum() for lp in logprobs), {"pairs": 2.0}

    output = training.forward_backward_custom(make_data([3, 4]), squares).result(60)

    values = [logprob(t) for n in (3, 4) for t in range(1, n + 1)]
    assert output.metrics["loss:sum"] == pytest.approx(sum(v * v for v in values))
    assert output.metrics["pairs"] == 2.0
    assert output.metrics["surrogate_loss:sum"] == pytest.approx(sum(2 * v * v for v in values))
    assert server.applied() == [(1, "forward_backward"), (2, "forward_backward")]
    sent = server.calls("forward_backward")[1].decoded.data[0].loss_fn_inputs["weights"]
    assert sent.tolist() == pytest.approx([-2 * logprob(t) for t in (1, 2, 3)])


def test_state_is_saved_and_loaded_back(server: LoopbackServer, connect: Connect) -> None:
    """R24, R32: save, step on, load: the numbers are those of the save."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    training.forward_backward(make_data([3]), CROSS_ENTROPY)
    training.optim_step(types.AdamParams())
    path = training.save_state("one").result(20).path
    training.optim_step(types.AdamParams())
    before = training.forward(make_data([3]), CROSS_ENTROPY).result(20).metrics["loss:sum"]

    training.load_state(path).result(20)

    after = training.forward(make_data([3]), CROSS_ENTROPY).result(20).metrics["loss:sum"]
    assert (before, after) == (loss_of([3], 2), loss_of([3], 1))


def test_a_client_resumes_from_saved_state(server: LoopbackServer, connect: Connect) -> None:
    """R24, R38: another ServiceClient of the same key goes on where the first one stopped."""
    first = connect().create_lora_training_client(base_model=MODEL, rank=4)
    first.optim_step(types.AdamParams())
    path = first.save_state("one").result(20).path

    second = connect().create_training_client_from_state_with_optimizer(path)

    loss = second.forward(make_data([3]), CROSS_ENTROPY).result(20).metrics["loss:sum"]
    assert second.model_id != first.model_id
    assert second.get_info().lora_rank == 4
    assert loss == loss_of([3], 1)
    loads = server.calls("load_weights")
    assert [request.decoded["optimizer"] for request in loads] == [True]


def test_trained_weights_are_sampled_from(server: LoopbackServer, connect: Connect) -> None:
    """R3, R32: an ephemeral snapshot keeps its numbers while training goes on."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)
    training.optim_step(types.AdamParams())

    sampler = training.save_weights_and_get_sampling_client()
    training.optim_step(types.AdamParams()).result(20)

    sequence = sampler.sample(PROMPT, 1, PARAMS).result(20).sequences[0]
    assert sequence.logprobs == [logprob(t, 1) for t in sequence.tokens]
    assert sampler.compute_logprobs(PROMPT).result(20) == [None, logprob(2, 1), logprob(3, 1)]


def test_a_named_sampler_checkpoint_is_sampled_from(
    server: LoopbackServer, connect: Connect
) -> None:
    """R3, R32: save_weights_for_sampler, then a sampling client on its path."""
    service = connect()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    training.optim_step(types.AdamParams())
    path = training.save_weights_for_sampler("snap").result(20).path

    sampler = service.create_sampling_client(model_path=path)

    assert sampler.compute_logprobs(PROMPT).result(20) == [None, logprob(2, 1), logprob(3, 1)]


def test_a_failed_request_does_not_end_the_run(server: LoopbackServer, connect: Connect) -> None:
    """R28, R33: a failure the server reports is a typed outcome; the next step works."""
    server.on("retrieve_future").failed("bad tokens", "user").when(
        lambda body: body["request_id"].startswith("forward_backward")
    )
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    failed = training.forward_backward(make_data([3]), CROSS_ENTROPY).outcome(20)
    stepped = training.optim_step(types.AdamParams()).outcome(20)

    assert isinstance(failed.error, RequestFailedError)
    assert failed.error.category == "user"
    assert stepped.ok


def test_a_refused_request_leaves_a_hole_and_the_run_goes_on(
    server: LoopbackServer, connect: Connect
) -> None:
    """R28: a 422 is final; its number is used up and the next request carries the next one."""
    server.on("forward_backward").reply(422, json_body={"detail": "too long"})
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    refused = training.forward_backward(make_data([3]), CROSS_ENTROPY).outcome(20)
    stepped = training.optim_step(types.AdamParams()).outcome(20)

    assert refused.error is not None
    assert refused.error.code == "unprocessable"
    assert stepped.ok
    assert server.applied() == [(2, "optim_step")]
    assert server.count("forward_backward") == 1


def test_empty_data_is_refused_before_any_request(server: LoopbackServer, connect: Connect) -> None:
    """R26: no empty chunk ever; no number is taken for it."""
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    with pytest.raises(ValidationError):
        training.forward_backward([], CROSS_ENTROPY).result(10)

    training.optim_step(types.AdamParams()).result(20)
    assert server.count("forward_backward") == 0
    assert server.applied() == [(1, "optim_step")]


def test_an_oversized_datum_travels_alone(server: LoopbackServer, connect: Connect) -> None:
    """R26: chunks are cut by estimated bytes too, and a single datum is never split."""
    server.service.flags["fwdbwd_max_chunk_bytes_count"] = 200
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    data = [make_datum(4), make_datum(4), make_datum(50), make_datum(4)]
    output = training.forward_backward(data, CROSS_ENTROPY).result(20)

    assert len(output.loss_fn_outputs) == 4
    assert [entry.detail["num_datums"] for entry in server.history()] == [2, 1, 1]


def test_requests_are_compressed_when_the_server_enables_it(
    server: LoopbackServer, connect: Connect
) -> None:
    """R24: `proto_compress_fwdbwd` is obeyed where the codec is there, and never otherwise."""
    pytest.importorskip("zstandard")
    server.service.flags["proto_compress_fwdbwd"] = True
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    output = training.forward_backward(make_data([4] * 50), CROSS_ENTROPY).result(20)

    (request,) = server.calls("forward_backward")
    assert output.metrics["loss:sum"] == loss_of([4] * 50)
    assert request.headers["content-encoding"] == "zstd"


def test_big_results_are_announced_first_and_fetched_once(
    server: LoopbackServer, connect: Connect
) -> None:
    """R21: `complete_metadata` is followed by one fetch of the payload."""
    server.service.inline_limit_bytes = 100
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    output = training.forward_backward(make_data([20]), CROSS_ENTROPY).result(20)

    assert output.metrics["loss:sum"] == loss_of([20])
    polls = [
        request.decoded["allow_metadata_only"]
        for request in server.calls("retrieve_future")
        if request.decoded["request_id"].startswith("forward_backward")
    ]
    assert polls == [True, False]


def test_configs_stay_apart(server: LoopbackServer, runtime: Runtime) -> None:
    """R6, R38: two ServiceClients of one runtime carry their own key into every request."""
    clients = {
        key: ServiceClient(
            config=make_config(server, api_key=key, user_metadata={"who": key}), runtime=runtime
        ).create_lora_training_client(base_model=MODEL, rank=8)
        for key in ("tml-one", "tml-two")
    }
    for training in clients.values():
        training.optim_step(types.AdamParams()).result(20)

    for key, training in clients.items():
        session = server.model(training.model_id).session
        assert (session.api_key, session.user_metadata) == (key, {"who": key})
    steps = {request.headers["x-api-key"]: request for request in server.calls("optim_step")}
    assert {key: r.decoded["model_id"] for key, r in steps.items()} == {
        key: training.model_id for key, training in clients.items()
    }


def test_tags_metadata_and_project_arrive_with_the_session(
    server: LoopbackServer, connect: Connect
) -> None:
    """R24, R27: session, tags and metadata arrive; no heartbeat is needed for the loop."""
    service = connect(tags=["a", "b"], user_metadata={"run": "7"}, project_id="p-1")
    training = service.create_lora_training_client(
        base_model=MODEL, rank=8, seed=3, train_mlp=False, user_metadata={"k": "v"}
    )

    (session,) = server.service.world.sessions.values()
    (created,) = server.calls("create_model")
    assert (session.tags, session.user_metadata) == (["a", "b"], {"run": "7"})
    assert session.project_id == "p-1"
    assert created.decoded["lora_config"]["seed"] == 3
    assert created.decoded["lora_config"]["train_mlp"] is False
    assert created.decoded["user_metadata"] == {"k": "v"}
    assert training.get_info().lora_rank == 8
    assert server.count("session_heartbeat") == 0


def test_closing_finishes_the_session(server: LoopbackServer, runtime: Runtime) -> None:
    """R3: leaving the block tells the server how it ended, once."""
    with ServiceClient(config=make_config(server), runtime=runtime) as service:
        service.create_lora_training_client(base_model=MODEL, rank=8)

    (session,) = server.service.world.sessions.values()
    assert session.finished == {"reason": {"type": "success"}, "detail": None}
    assert server.count("finish_session") == 1


class Letters:
    """The smallest tokenizer: a letter's place in the alphabet."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) - ord("a") + 1 for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(chr(ord("a") + token - 1) for token in token_ids)


def test_examples_can_be_made_from_text(server: LoopbackServer, connect: Connect) -> None:
    """R41: from_text and a shift by one make a Datum that trains."""
    whole = types.ModelInput.from_text("abcd", Letters()).to_ints()
    datum = types.Datum(
        types.ModelInput.from_ints(whole[:-1]),
        {"target_tokens": whole[1:], "weights": [1.0] * 3},
    )
    training = connect().create_lora_training_client(base_model=MODEL, rank=8)

    output = training.forward_backward([datum], CROSS_ENTROPY).result(20)

    assert output.metrics["loss:sum"] == -sum(logprob(token) for token in (2, 3, 4))


def test_alpha_is_sent_only_when_it_is_given(server: LoopbackServer, connect: Connect) -> None:
    server.service.flags["extensions"] = ["lora.alpha"]
    service = connect()
    service.create_lora_training_client(base_model=MODEL)
    service.create_lora_training_client(base_model=MODEL, alpha=16)
    plain, requested = (call.decoded["lora_config"] for call in server.calls("create_model"))
    assert "alpha" not in plain
    assert requested["alpha"] == 16.0


def test_alpha_is_refused_before_a_request_to_a_server_without_it(
    server: LoopbackServer, connect: Connect
) -> None:
    service = connect()
    with pytest.raises(ValidationError, match="has not announced that it takes an alpha"):
        service.create_lora_training_client(base_model=MODEL, alpha=16.0)
    assert server.count("create_model") == 0
    assert service.create_lora_training_client(base_model=MODEL).get_info().lora_alpha is None


@pytest.mark.parametrize("alpha", [0.0, -1.0, math.nan, math.inf, 65_537.0])
def test_an_impossible_alpha_is_refused_before_anything_is_sent(
    alpha: float, server: LoopbackServer, connect: Connect
) -> None:
    with pytest.raises(ValidationError, match="above 0 and at most 65536"):
        connect().create_lora_training_client(base_model=MODEL, alpha=alpha)
    assert server.requests == []


def test_an_optimizer_the_server_has_not_announced_is_refused_before_a_request(
    server: LoopbackServer, connect: Connect
) -> None:
    service = connect()
    config = types.SgdOptimizerConfig()
    with pytest.raises(ValidationError, match="'sgd' cannot be used"):
        service.create_lora_training_client(base_model=MODEL, optimizer=config)
    path = "tinker://r:train:0/weights/s"
    with pytest.raises(ValidationError, match="'sgd' cannot be used"):
        service.create_training_client_from_state(path, optimizer=config)
    assert server.count("create_model") == server.count("load_weights") == 0
    training = service.create_lora_training_client(base_model=MODEL)
    with pytest.raises(ValidationError, match="announced adamw, dimuon"):
        training.optim_step(types.SgdParams(learning_rate=0.1)).result(10)
    assert server.count("optim_step") == 0
    training.optim_step(types.AdamParams()).result(20)  # the number was not used up


def test_sgd_is_sent_to_a_server_that_has_announced_it(
    server: LoopbackServer, connect: Connect
) -> None:
    server.service.flags["extensions"] = ["optimizer.sgd"]
    training = connect().create_lora_training_client(
        base_model=MODEL, optimizer=types.SgdOptimizerConfig()
    )
    training.optim_step(types.SgdParams(learning_rate=0.25)).result(20)
    (created,), (stepped,) = server.calls("create_model"), server.calls("optim_step")
    assert created.decoded["optimizer_config"] == {"type": "sgd"}
    assert "adam_params" not in stepped.decoded
    assert stepped.decoded["optimizer_params"] == {
        "type": "sgd",
        "learning_rate": 0.25,
        "momentum": 0.9,
        "nesterov": False,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    }


def test_a_resumed_run_has_the_optimizer_of_its_checkpoint_on_any_server(
    server: LoopbackServer, connect: Connect
) -> None:
    service = connect()
    first = service.create_lora_training_client(
        base_model=MODEL, optimizer=types.DimuonOptimizerConfig()
    )
    path = first.save_state("s").result(20).path
    service.create_training_client_from_state_with_optimizer(path)
    configs = [call.decoded["optimizer_config"] for call in server.calls("create_model")]
    assert configs == [{"type": "dimuon", "version": 1}] * 2
