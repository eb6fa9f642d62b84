"""Checks of requests against the server's limits, before anything is queued.

Every limit of `Limits` that is not checked while a body is read is checked here, and every refusal
names the field, its value and the limit. What a tenant may hold in all is in `quotas`, how often
it may send in `admission`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tinkex.server.errors import LimitExceeded
from tinkex.types.model_input import EncodedTextChunk, ModelInput
from tinkex.types.requests import CreateSessionRequest, ForwardBackwardRequest, SampleRequest
from tinkex.types.sampling import SamplingParams
from tinkex.types.search import SessionSearchRequest
from tinkex.types.tensor import TensorData
from tinkex.wire.limits import Limits

_DENSE_PER_TOKEN = 128
"""Values of a sparse tensor, once dense, that cost as much as a token."""


def check_training(request: ForwardBackwardRequest, limits: Limits) -> int:
    """What the request costs: its tokens, and the dense form of its sparse tensors.

    Raises:
        LimitExceeded: a limit is exceeded; the message names field, value and limit.
    """
    _at_most("data", len(request.data), limits.max_datums_per_request, "datums")
    check_text("loss_fn", request.loss_fn, limits.max_name_chars)
    _at_most("loss_fn_config", len(request.loss_fn_config), limits.max_list_items, "entries")
    total = dense = 0
    for index, datum in enumerate(request.data):
        length = count_tokens(datum.model_input)
        if length > limits.max_tokens_per_sequence:
            field = f"data[{index}].model_input"
            _at_most(field, length, limits.max_tokens_per_sequence, "tokens")
        total += length
        dense += _dense_values(datum.loss_fn_inputs.values())
    _at_most("data", total, limits.max_tokens_per_request, "tokens")
    _at_most("data", dense, limits.max_dense_values, "values once its sparse tensors are dense")
    return total + dense // _DENSE_PER_TOKEN


def check_sample(request: SampleRequest, limits: Limits, context_length: int) -> int:
    """What the request may cost, in tokens.

    Raises:
        LimitExceeded: a limit is exceeded; the message names field, value and limit.
    """
    _at_most("num_samples", request.num_samples, limits.max_num_samples)
    _check_stops(request.sampling_params, limits)
    for name in ("topk_prompt_logprobs", "topk_sample_logprobs", "prompt_alt_tokens_k"):
        _at_most(name, getattr(request, name), limits.max_top_k)
    prompt = count_tokens(request.prompt)
    _at_most("prompt", prompt, limits.max_tokens_per_sequence, "tokens")
    if (targets := request.target_prompt_logprobs) is not None:
        dense = _dense_values([targets])
        _at_most("target_prompt_logprobs", dense, limits.max_dense_values, "values once dense")
    most = max(0, context_length - prompt)
    max_tokens = request.sampling_params.max_tokens
    new_tokens = request.num_samples * (most if max_tokens is None else min(most, max_tokens))
    _check_result(request, prompt, new_tokens, limits)
    return max(1, prompt + new_tokens)


def check_session(request: CreateSessionRequest, limits: Limits) -> None:
    """Refuses a session whose description is above a limit.

    Raises:
        LimitExceeded: a limit is exceeded.
    """
    check_metadata(request.user_metadata, limits)
    _at_most("tags", len(request.tags), limits.max_list_items, "entries")
    texts = {
        "sdk_version": request.sdk_version,
        "project_id": request.project_id,
        "display_name": request.display_name,
        **{f"tags[{place}]": tag for place, tag in enumerate(request.tags)},
    }
    for name, text in texts.items():
        check_text(name, text, limits.max_text_chars)


def check_search(request: SessionSearchRequest, limits: Limits) -> None:
    """Refuses a search with more terms than a query can hold.

    Raises:
        LimitExceeded: a limit is exceeded.
    """
    check_metadata(request.user_metadata, limits)
    check_text("display_name", request.display_name, limits.max_text_chars)
    for name in ("project_ids", "statuses"):
        _at_most(name, len(getattr(request, name) or ()), limits.max_list_items, "entries")


def check_rank(rank: int, max_rank: int) -> None:
    """Refuses an adapter of too high a rank.

    Raises:
        LimitExceeded: the rank is above the limit of the server or of the model.
    """
    if rank > max_rank:
        raise LimitExceeded(
            f"rank={rank} is above this server's limit of {max_rank}.",
            hint=f"Use rank<={max_rank}.",
            code="rank-too-large",
        )


def check_ttl(ttl_s: int | None, limits: Limits) -> None:
    """Refuses a life that is too short or too long.

    Raises:
        LimitExceeded: it is.
    """
    if ttl_s is not None and not limits.min_ttl_s <= ttl_s <= limits.max_ttl_s:
        raise LimitExceeded(
            f"ttl_seconds={ttl_s} is outside this server's limits of "
            f"{limits.min_ttl_s}..{limits.max_ttl_s}."
        )


def check_metadata(metadata: Mapping[str, object] | None, limits: Limits) -> None:
    """Refuses metadata above the limit.

    Raises:
        LimitExceeded: it is too large.
    """
    if metadata:
        size = len(msgspec.json.encode(metadata))
        _at_most("user_metadata", size, limits.max_metadata_bytes, "bytes")


def check_recipients(recipients: Sequence[str] | None, limits: Limits) -> None:
    """Refuses too many keys to encrypt for, or one that can be no key.

    Raises:
        LimitExceeded: there are too many, or one is too long.
    """
    field = "age_encryption_recipients"
    _at_most(field, len(recipients or ()), limits.max_age_recipients, "keys")
    for place, recipient in enumerate(recipients or ()):
        check_text(f"{field}[{place}]", recipient, limits.max_text_chars)


def check_text(field: str, text: str | None, most: int) -> None:
    """Refuses a text longer than a limit.

    Raises:
        LimitExceeded: it is.
    """
    if text is not None and len(text) > most:
        _at_most(field, len(text), most, "characters")


def count_tokens(model_input: ModelInput) -> int:
    """The text tokens of an input; other chunks are the engine's to refuse."""
    return sum(c.length for c in model_input.chunks if isinstance(c, EncodedTextChunk))


def _check_stops(params: SamplingParams, limits: Limits) -> None:
    stops = params.stop if params.stop is not None else ()
    listed = [stops] if isinstance(stops, str) else stops
    _at_most("stop", len(listed), limits.max_stop_sequences, "entries")
    for place, stop in enumerate(listed):
        if isinstance(stop, str):
            check_text(f"stop[{place}]", stop, limits.max_stop_chars)


def _check_result(request: SampleRequest, prompt: int, new_tokens: int, limits: Limits) -> None:
    beside = prompt * (request.topk_prompt_logprobs + request.prompt_alt_tokens_k)
    values = new_tokens * (1 + request.topk_sample_logprobs) + beside
    if values > limits.max_result_values:
        raise LimitExceeded(
            f"num_samples={request.num_samples} with up to {new_tokens} tokens in all and the "
            f"the requested logprobs may give {values} numbers, above this server's limit of "
            f"{limits.max_result_values}.",
            hint="Set a lower max_tokens or top-k, or send several requests.",
        )


def _dense_values(tensors: Iterable[TensorData]) -> int:
    found = 0
    for tensor in tensors:
        if tensor.is_sparse and tensor.shape is not None:
            rows, columns = tensor.shape
            found += rows * columns
    return found


def _at_most(field: str, value: int, limit: int, unit: str = "") -> None:
    if value <= limit:
        return
    if unit:
        message = f"{field} has {value} {unit}, above this server's limit of {limit}."
    else:
        message = f"{field}={value} is above this server's limit of {limit}."
    raise LimitExceeded(message, hint="get_server_capabilities lists the limits.")
