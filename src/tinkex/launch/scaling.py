"""How many samplers there should be. Pure: the caller brings the measurements and the time."""

from __future__ import annotations

import math

import msgspec

__all__ = ["SamplerCount", "ScalingPolicy", "next_count"]


class ScalingPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of the number of samplers, and when to change it."""

    min_samplers: int
    max_samplers: int
    target_sample_tokens: int  # at most this many queued tokens per sampler
    idle_s: float  # seconds with an empty queue and an idle sampler before one is removed


class SamplerCount(msgspec.Struct, frozen=True, kw_only=True):
    """The wanted number, and since when one sampler is superfluous."""

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
    """Scales up at once by the queued tokens; scales down by one after `idle_s` of idleness."""
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
