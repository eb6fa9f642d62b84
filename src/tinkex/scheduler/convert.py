"""Values of the protocol to values of the engine, and back.

Pure. Sparse tensors become dense here; sampling parameters cross as they are.
"""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np

from tinkex.engine import interface as engine
from tinkex.engine.errors import EngineUserError
from tinkex.store.run_series import TrainedBatch
from tinkex.types.datum import Datum
from tinkex.types.model_input import EncodedTextChunk, ModelInput
from tinkex.types.optimizers import OptimParams, tagged
from tinkex.types.requests import ForwardBackwardRequest, SampleRequest
from tinkex.types.sampling import (
    PromptAltTokens,
    SampledSequence,
    SampleResponse,
    SamplingParams,
    TopkLogprobs,
)
from tinkex.types.tensor import TensorData
from tinkex.types.training import ForwardBackwardOutput


def train_request(request: ForwardBackwardRequest, custom_loss: bytes = b"") -> engine.TrainRequest:
    """What the engine is to compute; with the uploaded loss that the request names, if it does.

    Raises:
        EngineUserError: the input holds something other than text.
    """
    return engine.TrainRequest(
        adapter_id=request.model_id,
        data=[_datum(datum, f"data[{i}]") for i, datum in enumerate(request.data)],
        loss_fn=request.loss_fn,
        loss_config=dict(request.loss_fn_config),
        backward=not request.forward_only,
        custom_loss=custom_loss,
    )


def train_output(result: engine.TrainResult) -> ForwardBackwardOutput:
    """The client's result of a forward or forward_backward."""
    return ForwardBackwardOutput(
        loss_fn_output_type="logprobs",
        loss_fn_outputs=[{"logprobs": _float_tensor(array)} for array in result.logprobs],
        metrics=result.metrics,
    )


def trained_batch(request: engine.TrainRequest, result: engine.TrainResult) -> TrainedBatch:
    """What a forward_backward adds to its run's series."""
    learned = [each.inputs.get("weights") for each in request.data]
    return TrainedBatch(
        metrics=result.metrics,
        num_tokens=result.num_tokens,
        num_learned=sum(
            each.tokens.size if weights is None else int(np.count_nonzero(weights))
            for each, weights in zip(request.data, learned, strict=True)
        ),
        num_examples=len(request.data),
    )


def optim_request(model_id: str, params: OptimParams) -> engine.OptimRequest:
    """The optimizer step the engine is to take."""
    return engine.OptimRequest(adapter_id=model_id, params=tagged(params))


def sample_request(
    request: SampleRequest, *, request_id: str, owner: str, model: str, sampler_id: str | None
) -> engine.SampleRequest:
    """The sampling the engine is to do.

    Raises:
        EngineUserError: the prompt holds something other than text.
    """
    targets = request.target_prompt_logprobs
    return engine.SampleRequest(
        request_id=request_id,
        model=model,
        tokens=_tokens(request.prompt, "prompt"),
        sampler_id=sampler_id,
        num_samples=request.num_samples,
        params=_params(request, request_id),
        prompt_logprobs=bool(request.prompt_logprobs),
        prompt_logprobs_last_n=request.prompt_logprobs_last_n,
        topk_prompt_logprobs=request.topk_prompt_logprobs,
        topk_sample_logprobs=request.topk_sample_logprobs,
        target_prompt_logprobs=None if targets is None else targets.to_dense(-1).to_numpy(),
        prompt_alt_tokens_k=request.prompt_alt_tokens_k,
        # Response times must not reveal other tenants' prompts.
        cache_scope=owner,
        stream=request.stream,
    )


def sample_response(result: engine.SampleResult, request: SampleRequest) -> SampleResponse:
    """The client's result of a sample. Targets come back in the layout they had."""
    targets = result.target_prompt_logprobs
    alt = result.prompt_alt
    return SampleResponse(
        sequences=[_sequence(sequence) for sequence in result.sequences],
        prompt_logprobs_raw=None if result.prompt_logprobs is None else _f4(result.prompt_logprobs),
        topk_prompt=_topk(result.topk_prompt),
        prompt_cache_hit_tokens=result.prompt_cache_hit_tokens,
        target_prompt_logprobs=None if targets is None else _as_targets(targets, request),
        prompt_alt_tokens=None
        if alt is None
        else PromptAltTokens(
            tokens=TensorData.from_bytes(_i8(alt.token_ids), "int64", list(alt.token_ids.shape)),
            logprobs=_float_tensor(alt.logprobs),
        ),
    )


def _params(request: SampleRequest, request_id: str) -> SamplingParams:
    """The client's parameters. A streamed request without a seed gets one that is always the same:
    if it has to run again, its tokens must be those that were shown."""
    params = request.sampling_params
    if not request.stream or params.seed is not None:
        return params
    seed = int.from_bytes(hashlib.sha256(request_id.encode()).digest()[:7])
    return msgspec.structs.replace(params, seed=seed)


def _datum(datum: Datum, where: str) -> engine.TrainDatum:
    inputs = {name: tensor.to_numpy() for name, tensor in datum.loss_fn_inputs.items()}
    return engine.TrainDatum(tokens=_tokens(datum.model_input, where), inputs=inputs)


def _tokens(model_input: ModelInput, where: str) -> engine.IntArray:
    parts = []
    for chunk in model_input.chunks:
        if not isinstance(chunk, EncodedTextChunk):
            raise EngineUserError(
                f"{where} holds a {type(chunk).__name__}. This server's models read text only.",
                code="text-only",
                field=where,
                value=type(chunk).__name__,
            )
        parts.append(np.frombuffer(chunk.raw, dtype="<i4"))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)


def _sequence(sequence: engine.SampledSequence) -> SampledSequence:
    return SampledSequence(
        stop_reason=sequence.stop_reason,
        tokens_raw=_i4(sequence.tokens),
        logprobs_raw=_f4(sequence.logprobs),
        topk=_topk(sequence.topk),
    )


def _topk(topk: engine.TopK | None) -> TopkLogprobs | None:
    if topk is None or topk.token_ids.size == 0:
        return None
    length, k = topk.token_ids.shape
    return TopkLogprobs(
        token_ids_raw=_i4(topk.token_ids),
        logprobs_raw=_f4(topk.logprobs),
        k=int(k),
        length=int(length),
    )


def _as_targets(scores: engine.FloatArray, request: SampleRequest) -> TensorData:
    targets = request.target_prompt_logprobs
    assert targets is not None
    if not targets.is_sparse:
        return _float_tensor(scores)
    assert targets.sparse_crow_indices is not None
    assert targets.sparse_col_indices is not None
    rows = np.repeat(np.arange(scores.shape[0]), np.diff(targets.sparse_crow_indices))
    return TensorData.from_bytes(
        _f4(scores[rows, targets.sparse_col_indices]),
        "float32",
        targets.shape,
        targets.sparse_crow_indices,
        targets.sparse_col_indices,
    )


def _float_tensor(array: engine.FloatArray) -> TensorData:
    return TensorData.from_bytes(_f4(array), "float32", list(array.shape))


def _f4(array: engine.FloatArray) -> bytes:
    return np.ascontiguousarray(array, dtype="<f4").tobytes()


def _i4(array: engine.IntArray) -> bytes:
    return np.ascontiguousarray(array, dtype="<i4").tobytes()


def _i8(array: engine.IntArray) -> bytes:
    return np.ascontiguousarray(array, dtype="<i8").tobytes()
