"""The operations an uploaded loss may use, by the names that tracing gives them.

Every name is one function of torch, math or Python's operators, found through `path`, or a method
of a tensor. Operations that are not listed cannot be called: none is random or in place, reads
files, leaves torch or inspects objects. `size` names the rule of `sizes` that bounds the result.
torch is not imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = [
    "ATTRIBUTES",
    "CONSTANTS",
    "FUNCTIONS",
    "KEYWORDS",
    "METHODS",
    "TEXTS",
    "AllowedOperation",
]


@dataclass(frozen=True, slots=True)
class AllowedOperation:
    """One operation. `path` is the import path of the function, or the name of the method."""

    path: str
    size: str


_Table = Mapping[str, str]

_FUNCTIONS_AND_METHODS: _Table = {
    "broadcast": """
        abs absolute exp exp2 expm1 log log2 log10 log1p sqrt rsqrt square reciprocal neg negative
        sign sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid logit erf erfc
        floor ceil round trunc frac relu clamp clip clamp_min clamp_max add sub subtract mul
        multiply true_divide pow float_power minimum maximum fmin fmax lerp atan2 hypot logaddexp
        logaddexp2 xlogy addcmul addcdiv eq ne lt le gt ge isnan isinf isfinite isclose logical_and
        logical_or logical_not logical_xor nan_to_num masked_fill heaviside copysign sum mean prod
        std var amax amin max min argmax argmin all any median nansum nanmean logsumexp
        cumsum softmax log_softmax norm sort argsort topk flip
        count_nonzero tril triu masked_select flatten squeeze unsqueeze transpose permute
        swapaxes t narrow select clone detach
        """,
    "division": "div divide remainder fmod floor_divide",
    "product": "dot mv mm matmul",
    "outer": "outer",
    "gather": "gather",
    "expand": "broadcast_to",
    "where": "where",
    "reshape": "reshape",
}
_METHODS: _Table = {
    "broadcast": "expand_as view_as reshape_as contiguous float double half bfloat16 long int bool "
    "to type_as",
    "number": "size dim numel ndimension nelement is_floating_point",
    "expand": "expand",
    "reshape": "view",
    "repeat": "repeat",
    "create": "new_zeros new_ones new_full",
}
_FUNCTIONS: _Table = {
    "broadcast": "zeros_like ones_like full_like rsub cosine_similarity",
    "join": "cat concat concatenate stack hstack vstack",
    "create": "zeros ones full",
    "arange": "arange",
}
_OPERATORS: _Table = {
    "arithmetic": "add sub mul neg pos abs lt le gt ge eq ne and_ or_ xor invert truediv",
    "power": "pow",
    "division": "floordiv mod",
    "product": "matmul",
    "getitem": "getitem",
}
_NEURAL = """
    relu relu6 softmax log_softmax softmin silu mish elu celu selu leaky_relu hardtanh hardsigmoid
    softsign logsigmoid softplus gelu mse_loss l1_loss smooth_l1_loss huber_loss kl_div
    binary_cross_entropy binary_cross_entropy_with_logits margin_ranking_loss soft_margin_loss
    hinge_embedding_loss poisson_nll_loss gaussian_nll_loss normalize cosine_similarity
    """
_SPECIAL = """
    expm1 exp2 log1p entr logit expit xlogy xlog1py logsumexp softmax log_softmax erf erfc
    erfcx ndtr log_ndtr
    """
_MATH = "sqrt exp expm1 log log2 log10 log1p pow floor ceil fabs sin cos tan tanh erf"

_KEYWORDS = """
    input self other dim dims dim0 dim1 axis keepdim min max dtype alpha beta value exponent
    rounding_mode reduction delta threshold negative_slope unbiased correction descending stable
    largest sorted k p ord start_dim end_dim start end step index mask condition weight pos_weight
    target log_target log_input full var size shape repeats nan posinf neginf eps approximate
    diagonal decimals margin tensors x1 x2 input1 input2 min_val max_val
    fill_value tensor1 tensor2 length size_average reduce rtol atol equal_nan vec2 mat2 vec values
    device layout memory_format out inplace _stacklevel
    """
KEYWORDS = frozenset(_KEYWORDS.split())
"""Allowed keyword arguments. `out` must be None, `inplace` False and `device` the CPU."""

TEXTS = frozenset({"none", "mean", "sum", "batchmean", "floor", "trunc", "tanh", "fro", "cpu"})
"""Allowed string arguments."""

ATTRIBUTES = frozenset({"shape", "dtype", "ndim", "device", "T", "mT", "values", "indices"})
"""Attributes that may be read from a tensor, or from a pair of tensors."""

CONSTANTS = {
    "dtype": {"float32", "float64", "float16", "bfloat16", "int64", "int32", "bool"},
    "layout": {"strided"},
    "memory_format": {"contiguous_format", "preserve_format"},
}
"""Constants of torch that may be arguments, by their kind. No complex or quantized numbers."""


def _each(*tables: _Table) -> Iterable[tuple[str, str]]:
    for table in tables:
        for size, names in table.items():
            for name in names.split():
                yield name, size


def _methods() -> dict[str, AllowedOperation]:
    return {
        name: AllowedOperation(name, size) for name, size in _each(_FUNCTIONS_AND_METHODS, _METHODS)
    }


def _functions() -> dict[str, AllowedOperation]:
    found: dict[str, AllowedOperation] = {}

    def add(path: str, size: str, *other_names: str) -> None:
        found.update(dict.fromkeys((path, *other_names), AllowedOperation(path, size)))

    for name, size in _each(_FUNCTIONS_AND_METHODS, _FUNCTIONS):
        add(f"torch.{name}", size)
    for name in _NEURAL.split():
        native = "log_sigmoid" if name == "logsigmoid" else name
        add(f"torch.nn.functional.{name}", "broadcast", f"torch._C._nn.{native}")
    for name in _SPECIAL.split():
        add(f"torch.special.{name}", "broadcast", f"torch._C._special.special_{name}")
    add("torch.norm", "broadcast", "torch.functional.norm")
    add("torch.linalg.norm", "vector", "torch._C._linalg.linalg_norm")
    add("torch.linalg.vector_norm", "broadcast", "torch._C._linalg.linalg_vector_norm")
    for name, size in _each(_OPERATORS):
        add(f"operator.{name}", size)
    for name in _MATH.split():
        add(f"math.{name}", "power" if name == "pow" else "arithmetic")
    add("builtins.getattr", "attribute", "getattr")
    return found


FUNCTIONS: Mapping[str, AllowedOperation] = MappingProxyType(_functions())
"""Operations that a `call_function` node may call, by its target."""

METHODS: Mapping[str, AllowedOperation] = MappingProxyType(_methods())
"""Operations that a `call_method` node may call, by its target."""
