"""Rotary positions as config.json describes them: one kind, or one for layers without a window and
one for those with.

`values` are those of one kind. Their keys may also stand at the top of the file, in `raw`.
"""

from __future__ import annotations

import math
from typing import Any

from tinkex.engine.model.families import Family
from tinkex.engine.model.spec import RopeSpec

__all__ = ["parse_ropes", "why_not_ropes"]


def parse_ropes(raw: dict[str, Any], family: Family) -> tuple[RopeSpec, ...]:
    """Returns the rotary positions of layers without a window, then those of layers with
    one if they differ."""
    return tuple(_parse_rope(raw, values, family) for values in _kinds_of_values(raw, family))


def why_not_ropes(raw: dict[str, Any], family: Family, longest: int) -> str | None:
    """Returns why the lean path lacks these positions at this length; None if it has them."""
    reasons = (_why_not(raw, values, family, longest) for values in _kinds_of_values(raw, family))
    return next((reason for reason in reasons if reason is not None), None)


def _kinds_of_values(raw: dict[str, Any], family: Family) -> tuple[dict[str, Any], ...]:
    # Older files hold rope_theta and rope_scaling side by side, newer ones one rope_parameters.
    scaling, values = raw.get("rope_scaling") or {}, raw.get("rope_parameters") or {}
    if not family.has_local_rope:
        return (values or scaling,)
    full = {**(values.get("full_attention") or {}), **scaling}
    local_theta = {"rope_theta": raw["rope_local_base_freq"]}
    return full, {**local_theta, **(values.get("sliding_attention") or {})}


def _why_not(
    raw: dict[str, Any], values: dict[str, Any], family: Family, longest: int
) -> str | None:
    name = _kind(values)
    if name not in family.rope_kinds:
        return f"its rotary positions are of the kind {name!r:.40}"
    if _fraction(raw, values) != 1.0 and not family.has_partial_rotary:
        return "it rotates only a part of each head"
    if family.rope_kinds[name] == "longrope":
        original = raw["original_max_position_embeddings"]
        if longest > original:
            # Keys in a cache would have to be computed again when a sequence grows beyond it.
            return (
                f"its longrope positions change for sequences beyond {original} tokens; the lean "
                f"path runs it where the engine's context_length is at most that"
            )
    return None


def _parse_rope(raw: dict[str, Any], values: dict[str, Any], family: Family) -> RopeSpec:
    kind = family.rope_kinds[_kind(values)]
    theta = float(values.get("rope_theta") or raw.get("rope_theta") or 10_000.0)
    if kind == "longrope":
        return _parse_longrope(raw, values, theta)
    return RopeSpec(
        theta=theta,
        kind=kind,
        factor=float(values.get("factor", 1.0)),
        low_freq_factor=float(values.get("low_freq_factor", 1.0)),
        high_freq_factor=float(values.get("high_freq_factor", 4.0)),
        original_context=int(values.get("original_max_position_embeddings", 8192)),
        fraction=_fraction(raw, values),
    )


def _parse_longrope(raw: dict[str, Any], values: dict[str, Any], theta: float) -> RopeSpec:
    """Reads longrope with the short factors, which hold up to the original context length."""
    original = int(raw["original_max_position_embeddings"])
    factor = float(values.get("factor") or raw["max_position_embeddings"] / original)
    amplitude = values.get("attention_factor")
    if amplitude is None:
        amplitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return RopeSpec(
        theta=theta,
        kind="longrope",
        original_context=original,
        fraction=_fraction(raw, values),
        pair_factors=tuple(float(each) for each in values["short_factor"]),
        amplitude=float(amplitude),
    )


def _kind(values: dict[str, Any]) -> str:
    kind: str = values.get("rope_type", values.get("type", "default"))
    return kind


def _fraction(raw: dict[str, Any], values: dict[str, Any]) -> float:
    return float(values.get("partial_rotary_factor") or raw.get("partial_rotary_factor") or 1.0)
