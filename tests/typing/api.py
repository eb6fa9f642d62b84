"""The public surface as type checkers see it. Checked, never run.

`assert_type` says what an expression is; a line with `type: ignore` says that it must be refused,
since the checkers complain about ignores that are not needed.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, assert_type

import tinkex
from tinkex import (
    AdamParams,
    Config,
    Datum,
    ForwardBackwardOutput,
    Future,
    ModelInput,
    OptimStepResponse,
    Outcome,
    RestClient,
    SampleResponse,
    SampleStream,
    SamplingClient,
    SamplingParams,
    ServiceClient,
    TensorData,
    TrainingClient,
    errors,
    telemetry,
    types,
)
from tinkex.cli.main import CommandOutcome, run
from tinkex.config import FieldInfo, ProcessSettings, Secret, normalize_base_url, process_settings
from tinkex.telemetry import Bus, Histogram, Metrics, Snapshot
from tinkex.tokenizers.tokenizer import (
    Tokenizer,
    TokenizerCache,
    load_tokenizer,
    resolve_tokenizer_id,
)


def settings() -> None:
    config = Config(api_key="tml-x", base_url="http://localhost:8000", tags=["a"], timeout_s=5)
    assert_type(config.api_key, str | None)
    assert_type(config.base_url, str)
    assert_type(config.project_id, str | None)
    assert_type(config.tags, tuple[str, ...])
    assert_type(config.user_metadata, dict[str, str])
    assert_type(config.default_headers, dict[str, str])
    assert_type(config.timeout_s, float)
    assert_type(config.max_samples_in_flight, int)
    assert_type(config.telemetry_to_server, bool)
    assert_type(config.log_level, str | None)
    assert_type(config.require_api_key(), str)
    assert_type(config.normalized_base_url, str)
    assert_type(config.tenant_key, tuple[str, str])
    assert_type(config.origin("api_key"), str)
    assert_type(config.replace(timeout_s=1), Config)
    assert_type(Config.fields(), tuple[FieldInfo, ...])
    assert_type(config.as_dict(), dict[str, Any])
    assert_type(Config(), Config)
    assert_type(Config(api_key=Secret("tml-x")), Config)
    assert_type(normalize_base_url("https://h"), str)
    assert_type(process_settings(), ProcessSettings)
    Config("tml-x")  # type: ignore
    Config(timeout_s="soon")  # type: ignore


def events() -> None:
    def handler(
        event: str, measurements: dict[str, Any], metadata: dict[str, Any], config: Any
    ) -> None: ...

    def narrow(event: str) -> None: ...

    bus = Bus()
    assert_type(bus.attach("id", "tinkex.http.*", handler), None)
    assert_type(bus.attach_many("id", ["a", "b"], handler, {"any": 1}), None)
    assert_type(bus.detach("id"), bool)
    assert_type(bus.has_handlers("a"), bool)
    assert_type(bus.execute("a", {"duration": 1.0}, {"path": "/"}), None)
    telemetry.attach("id", telemetry.events.HTTP_REQUEST_STOP, handler)
    telemetry.execute("a", {}, {})
    assert_type(telemetry.attach_logger("INFO"), str)
    assert_type(telemetry.default_bus(), Bus)
    with Metrics() as metrics:
        assert_type(metrics, Metrics)
        assert_type(metrics.snapshot(), Snapshot)
        assert_type(metrics.snapshot().counters, dict[str, int])
        assert_type(metrics.snapshot().histograms, dict[str, Histogram])
    bus.attach("id", "a", narrow)  # type: ignore


def failures() -> None:
    try:
        settings()
    except errors.RateLimitError as error:
        assert_type(error.retry_after_s, float | None)
        assert_type(error.status, int)
        assert_type(error.status_code, int)
        assert_type(error.request_id, str | None)
    except errors.TinkexError as error:
        assert_type(error.message, str)
        assert_type(error.hint, str)
        assert_type(error.code, str)
        assert_type(error.retryable, bool)
        assert_type(error.blame, errors.Blame)
    assert_type(errors.status_error_class(404), type[errors.APIStatusError])


def tokenizers() -> None:
    tokenizer = load_tokenizer(resolve_tokenizer_id("org/model", None), cache=TokenizerCache())
    assert_type(tokenizer, Tokenizer)
    assert_type(tokenizer.encode("text"), list[int])
    assert_type(tokenizer.decode([1, 2]), str)
    assert_type(tokenizer.vocab_size, int)
    assert_type(tokenizer.eos_token_id, int | None)
    assert_type(ModelInput.from_text("text", tokenizer), ModelInput)


def training() -> None:
    with ServiceClient(api_key="tml-x") as service:
        assert_type(service, ServiceClient)
        client = service.create_lora_training_client("org/model", rank=8)
        assert_type(client, TrainingClient)
        inputs = {"target_tokens": TensorData([1, 2], dtype="int64")}
        data = [Datum(model_input=ModelInput.from_ints([1, 2]), loss_fn_inputs=inputs)]
        future = client.forward_backward(data, "cross_entropy")
        assert_type(future, Future[ForwardBackwardOutput])
        assert_type(future.result(), ForwardBackwardOutput)
        assert_type(future.result(timeout=1.0), ForwardBackwardOutput)
        assert_type(future.outcome(), Outcome[ForwardBackwardOutput])
        assert_type(future.done(), bool)
        assert_type(client.optim_step(AdamParams()).result(), OptimStepResponse)
        assert_type(client.save_weights_and_get_sampling_client(), SamplingClient)
        assert_type(future.result().metrics, dict[str, float])
        assert_type(client.save_state("one").result().path, str)
        assert_type(client.save_weights_for_sampler("one").result().path, str)
        assert_type(client.save_weights_external("one").result().path, str)
        assert_type(client.get_tokenizer(), Tokenizer)
        assert_type(tinkex.await_many([future]), list[Outcome[ForwardBackwardOutput]])
        assert_type(tinkex.as_completed([future]), Iterator[Future[ForwardBackwardOutput]])
        client.forward_backward(data, "no_such_loss")  # type: ignore
        client.optim_step(1e-4)  # type: ignore


def sampling(client: SamplingClient, rest: RestClient) -> None:
    prompt, params = ModelInput.from_ints([1]), SamplingParams(max_tokens=4)
    assert_type(client.sample(prompt, 1, params), Future[SampleResponse])
    assert_type(client.compute_logprobs(prompt).result(), list[float | None])
    answer = client.sample(prompt=prompt, num_samples=2, sampling_params=params).result()
    assert_type(answer.sequences[0].tokens, list[int])
    assert_type(rest.get_training_run("run").result(), tinkex.TrainingRun)
    assert_type(rest.get_server_status().result(), types.ServerStatus)
    assert_type(dict(params), dict[str, Any])
    assert_type(params.model_fields_set, set[str])
    client.sample("text", 1, params)  # type: ignore
    with client.sample(prompt, 1, params, stream=True) as stream:
        assert_type(stream, SampleStream)
        for delta in stream:
            assert_type(delta, types.SampleDelta)
            assert_type(delta.logprobs, list[float])
    assert_type(stream.result(), SampleResponse)


async def awaiting(client: TrainingClient, sampler: SamplingClient) -> None:
    data: list[Datum] = []
    assert_type(await client.forward_backward(data, "cross_entropy"), ForwardBackwardOutput)
    future = await client.forward_backward_async(data, "cross_entropy")
    assert_type(future, Future[ForwardBackwardOutput])
    assert_type(await future, ForwardBackwardOutput)
    assert_type(await future.result_async(), ForwardBackwardOutput)
    prompt, params = ModelInput.from_ints([1]), SamplingParams()
    assert_type(await sampler.sample_async(prompt, 1, params), SampleResponse)
    streamed = await sampler.sample_async(prompt, 1, params, stream=True)
    assert_type(streamed, SampleStream)
    async for delta in streamed:
        assert_type(delta.tokens, list[int])
    answers = tinkex.stream_async(lambda each: sampler.sample(each, 1, params), [prompt])
    assert_type(answers, AsyncIterator[Outcome[SampleResponse]])


def command_line() -> None:
    outcome = run(["version"])
    assert_type(outcome, CommandOutcome)
    assert_type(outcome.exit_code, int)
    assert_type(outcome.error, BaseException | None)
