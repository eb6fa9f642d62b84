"""How many samplers there should be. Pure: the caller brings the measurements and the time."""

from __future__ import annotations

import math

import msgspec

__all__ = ["SamplerCount", "ScalingPolicy", "next_count"]


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds, and when to go up or down."""

    min_samplers: int
    max_samplers: int
    target_sample_tokens: int  # waiting tokens that one sampler is to have at most
    idle_s: float  # seconds with nothing waiting and a sampler idle before one is removed


class SamplerCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number wanted, and since when one of them is superfluous."""

    wanted: int
    idle_since: float | None = None


def next_count(
    policy: ScalingPolicy,
    before: SamplerCount,
    *,
    waiting_tokens: int,
    num_idle: int,
    now: float,
) -> SamplerCount:
    """Up at once to what the waiting tokens need; down by one after `idle_s` of idleness."""
    bounded = min(max(before.wanted, policy.min_samplers), policy.max_samplers)
    needed = math.ceil(waiting_tokens / policy.target_sample_tokens)
    if needed > bounded:
        return SamplerCount(wanted=min(needed, policy.max_samplers))
    if waiting_tokens > 0 or num_idle == 0 or bounded == policy.min_samplers:
        return SamplerCount(wanted=bounded)
    since = now if before.idle_since is None else before.idle_since
    if now - since < policy.idle_s:
        return SamplerCount(wanted=bounded, idle_since=since)
    return SamplerCount(wanted=bounded - 1)
