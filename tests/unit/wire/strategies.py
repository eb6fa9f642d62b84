"""Hypothesis strategies for the protocol's values."""

from __future__ import annotations

import math
from array import array
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from tinkex import types
from tinkex.types.optimizers import Range, TaggedOptimParams

INT32 = st.integers(0, 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
COUNT = st.integers(0, 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)  # JSON has neither
LOGPROB = st.floats(-90000, 0, width=32)
WHEN = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC))
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def token_ids(max_size: int = 20) -> st.SearchStrategy[list[int]]:
    return st.lists(INT32, max_size=max_size)


TEXT_CHUNKS = st.builds(types.EncodedTextChunk, token_ids())
FORMATS = st.sampled_from(["png", "jpeg"])
IMAGES = st.builds(
    types.ImageChunk,
    data=st.binary(max_size=20),
    format=FORMATS,
    expected_tokens=st.none() | INT32,
)
POINTERS = st.builds(
    types.ImageAssetPointerChunk,
    location=TEXT,
    format=FORMATS,
    expected_tokens=st.none() | INT32,
)
DMELS = st.builds(types.DmelChunk, dmel=st.binary(max_size=20))
TRAINABLE = st.lists(TEXT_CHUNKS | IMAGES | DMELS, max_size=4).map(
    lambda chunks: types.ModelInput(chunks=chunks)
)
MODEL_INPUTS = st.lists(TEXT_CHUNKS | IMAGES | POINTERS | DMELS, max_size=4).map(
    lambda chunks: types.ModelInput(chunks=chunks)
)


@st.composite
def tensors(draw: st.DrawFn, dtype: str | None = None, min_rank: int = 1) -> types.TensorData:
    """Dense tensors of one to three dimensions."""
    kind = dtype or draw(st.sampled_from(["int64", "float32"]))
    shape = draw(st.lists(st.integers(0, 4), min_size=min_rank, max_size=3))
    size = math.prod(shape)
    values = draw(st.lists(INT64 if kind == "int64" else FLOAT32, min_size=size, max_size=size))
    return types.TensorData(values, kind, shape)  # type: ignore[arg-type]


@st.composite
def sparse_tensors(draw: st.DrawFn) -> types.TensorData:
    """CSR tensors, stored zeros included."""
    rows, cols = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    listed = [draw(st.sets(st.integers(0, cols - 1))) for _ in range(rows)]
    crow = [0]
    for row in listed:
        crow.append(crow[-1] + len(row))
    col = [column for row in listed for column in sorted(row)]
    values = draw(st.lists(FLOAT32, min_size=len(col), max_size=len(col)))
    return types.TensorData(values, "float32", [rows, cols], crow, col)


ANY_TENSOR = tensors() | sparse_tensors()
SPANS = st.lists(
    st.builds(types.PromptProvenanceSpan, sequence_id=TEXT, offset=COUNT, length=COUNT)
    | st.builds(types.SampledProvenanceSpan, sequence_id=TEXT, offset=COUNT, length=COUNT),
    min_size=1,
    max_size=3,
)
DATUMS = st.builds(
    types.Datum,
    TRAINABLE,
    st.dictionaries(TEXT, ANY_TENSOR, max_size=3),
    st.none() | SPANS,
    st.none() | SPANS,
)
CONFIGS = st.dictionaries(TEXT, st.floats(allow_nan=False) | TEXT, max_size=4)


@st.composite
def outputs(draw: st.DrawFn) -> types.ForwardBackwardOutput:
    items = draw(
        st.lists(
            st.dictionaries(TEXT, tensors().filter(_has_no_empty_tail), max_size=2), max_size=4
        )
    )
    return types.ForwardBackwardOutput(
        loss_fn_output_type=draw(st.sampled_from(["ArrayRecord", "LossFnOutput"])),
        loss_fn_outputs=items,
        metrics=draw(st.dictionaries(TEXT, st.floats(allow_nan=False), max_size=3)),
    )


def _has_no_empty_tail(tensor: types.TensorData) -> bool:
    """The first dimension is known from the others, so those must not be empty."""
    return bool(tensor.shape) and 0 not in tensor.shape[1:]


@st.composite
def topk(draw: st.DrawFn) -> types.TopkLogprobs:
    k, length = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cells = k * length
    ids = draw(st.lists(INT32, min_size=cells, max_size=cells))
    logprobs = draw(st.lists(LOGPROB, min_size=cells, max_size=cells))
    return types.TopkLogprobs(
        token_ids_raw=array("i", ids).tobytes(),
        logprobs_raw=array("f", logprobs).tobytes(),
        k=k,
        length=length,
    )


def raw_floats() -> st.SearchStrategy[bytes]:
    return st.lists(LOGPROB, min_size=1, max_size=6).map(lambda v: array("f", v).tobytes())


SEQUENCES = st.builds(
    types.SampledSequence,
    stop_reason=st.sampled_from(["stop", "length"]),
    tokens_raw=token_ids().map(lambda ids: array("i", ids).tobytes()),
    logprobs_raw=st.none() | raw_floats(),
    topk=st.none() | topk(),
)
RESPONSES = st.builds(
    types.SampleResponse,
    sequences=st.lists(SEQUENCES, max_size=3),
    prompt_logprobs_raw=st.none() | raw_floats(),
    topk_prompt=st.none() | topk(),
    prompt_cache_hit_tokens=INT32,
    target_prompt_logprobs=st.none() | ANY_TENSOR,
    prompt_alt_tokens=st.none()
    | st.builds(types.PromptAltTokens, tokens=tensors("int64"), logprobs=tensors("float32")),
)
SAMPLING_PARAMS = st.builds(
    types.SamplingParams,
    max_tokens=st.none() | st.integers(1, 2**31),
    seed=st.none() | INT64,
    stop=st.none() | TEXT | st.lists(TEXT, max_size=3) | st.lists(INT32, max_size=3),
    temperature=st.floats(0, 10),
    top_k=st.just(-1) | st.integers(1, 1000),
    top_p=st.floats(0.001, 1.0),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 100),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.none()
    | st.dictionaries(st.integers(0, 2**31 - 1), st.floats(-100, 100), max_size=3),
)


def values_of(type_: Any) -> st.SearchStrategy[Any]:
    """Values of any struct whose fields msgspec knows."""
    return _strategy(inspect.type_info(type_))


def _field_strategy(field: inspect.Field) -> st.SearchStrategy[Any]:
    """An optimizer's config is read by the struct itself, so msgspec does not know its type."""
    known = isinstance(field.type, inspect.AnyType) and field.name == "optimizer_config"
    return values_of(types.OptimizerConfig) if known else _strategy(field.type)


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls) if cls in _OWN:
            return _OWN[cls]
        case inspect.StructType(cls=cls, fields=fields) if hasattr(cls, "RANGES"):
            numbers = {name: _in_range(allowed) for name, allowed in cls.RANGES.items()}
            others = {f.name: _strategy(f.type) for f in fields if f.name not in numbers}
            return st.builds(cls, **numbers, **others)
        case inspect.StructType(cls=cls, fields=fields):
            return st.fixed_dictionaries(
                {field.name: _field_strategy(field) for field in fields}
            ).map(lambda values: cls(**values))
        case inspect.UnionType(types=members):
            return st.one_of(map(_strategy, members))
        case inspect.ListType(item_type=item):
            return st.lists(_strategy(item), max_size=2)
        case inspect.VarTupleType(item_type=item):
            return st.lists(_strategy(item), max_size=2).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(_strategy, items))
        case inspect.DictType(value_type=value):
            return st.dictionaries(TEXT, _strategy(value), max_size=2)
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.EnumType(cls=cls):
            return st.sampled_from(list(cls))
        case inspect.IntType(ge=low, le=high):
            return st.integers(
                -(2**63) if low is None else low, 2**63 - 1 if high is None else high
            )
        case inspect.FloatType():
            return st.floats(allow_nan=False, allow_infinity=False)
        case inspect.StrType():
            return TEXT
        case inspect.BoolType():
            return st.booleans()
        case inspect.BytesType():
            return st.binary(max_size=8)
        case inspect.DateTimeType():
            return WHEN
        case inspect.NoneType():
            return st.none()
        case inspect.AnyType():
            return JSON_VALUES
        case inspect.DataclassType(cls=types.TensorData):
            return ANY_TENSOR
    raise NotImplementedError(info)


def _in_range(allowed: Range) -> st.SearchStrategy[float]:
    most = min(allowed.below, 1e6)
    return st.floats(allowed.lowest, most, exclude_max=True).filter(allowed.holds)


_FINISHED = st.builds(
    types.ClientFinishedSessionStatusQuery,
    reasons=st.none() | st.lists(st.sampled_from(["success", "errored"]), min_size=1, max_size=2),
)
_OWN: dict[Any, st.SearchStrategy[Any]] = {
    types.ImageChunk: IMAGES,
    types.ImageAssetPointerChunk: POINTERS,
    types.LoraConfig: st.builds(
        types.LoraConfig,
        rank=st.integers(1, 4096),
        seed=st.none() | INT64,
        train_attn=st.booleans(),
        train_mlp=st.booleans(),
    ),
    types.ClientFinishedSessionStatusQuery: _FINISHED,
    types.PromptProvenanceSpan: st.builds(
        types.PromptProvenanceSpan, sequence_id=TEXT, offset=COUNT, length=COUNT
    ),
    types.SampledProvenanceSpan: st.builds(
        types.SampledProvenanceSpan, sequence_id=TEXT, offset=COUNT, length=COUNT
    ),
    types.UserSearchOwner: st.builds(
        types.UserSearchOwner, owner_urns=st.lists(TEXT, min_size=1, max_size=10)
    ),
    types.OptimStepRequest: st.builds(
        types.OptimStepRequest,
        model_id=TEXT,
        seq_id=st.none() | COUNT,
        adam_params=st.deferred(lambda: values_of(types.AdamParams)),
    )
    | st.builds(
        types.OptimStepRequest,
        model_id=TEXT,
        optimizer_params=st.deferred(lambda: values_of(TaggedOptimParams)),
    ),
    types.SessionSearchRequest: st.builds(
        types.SessionSearchRequest,
        session_id=st.none() | TEXT,
        display_name=st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=5),
        user_metadata=st.dictionaries(TEXT, TEXT, max_size=2),
        statuses=st.none() | st.lists(_FINISHED, min_size=1, max_size=2),
        limit=st.integers(1, 200),
    ),
}
_PUBLIC = {name: getattr(types, name) for name in types.__all__}
STRUCTS: list[type[msgspec.Struct]] = [
    value
    for name, value in _PUBLIC.items()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value.__name__ == name
]
