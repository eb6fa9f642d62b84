"""Prints samples as they are sampled: one after the other, the first of them live."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tinkex.cli.output import printable_lines
from tinkex.client.text_stream import TextStream

if TYPE_CHECKING:
    from tinkex.tokenizers.tokenizer import Tokenizer
    from tinkex.types.sample_stream import SampleDelta

__all__ = ["print_samples", "sample_foot"]


def print_samples(deltas: Iterable[SampleDelta], tokenizer: Tokenizer) -> None:
    """Prints the samples of these token streams. If they end early, the line is ended."""
    samples: dict[int, _Sample] = {}
    shown = 0  # the sample that is printed live; those after it wait for its end
    try:
        for delta in deltas:
            samples.setdefault(delta.index, _Sample(delta.index, tokenizer)).add(delta)
            while shown in samples and samples[shown].show():
                shown += 1
    except BaseException:
        if shown in samples:
            click.echo()
        raise


def sample_foot(stop_reason: str, logprobs: list[float] | None, num_tokens: int) -> str:
    """Returns the line under a sample."""
    average = f"{sum(logprobs) / len(logprobs):.4f}" if logprobs else "unknown"
    return f"[stop reason: {stop_reason} · {num_tokens} tokens · average logprob: {average}]"


class _Sample:
    """The text of one sample so far, and the part that is not printed yet."""

    def __init__(self, index: int, tokenizer: Tokenizer) -> None:
        self._text = TextStream(tokenizer)
        self._unshown = f"\n\nSample {index + 1}:\n" if index else "Sample 1:\n"
        self._logprobs: list[float] = []
        self._num_tokens = 0
        self._is_over = False

    def add(self, delta: SampleDelta) -> None:
        self._unshown += printable_lines(self._text.add(delta.tokens))
        self._logprobs += delta.logprobs
        self._num_tokens += len(delta.tokens)
        if delta.stop_reason is not None:
            self._is_over = True
            foot = sample_foot(delta.stop_reason, self._logprobs, self._num_tokens)
            self._unshown += f"{printable_lines(self._text.end())}\n{foot}"

    def show(self) -> bool:
        """Prints the new text; returns whether the sample is complete."""
        click.echo(self._unshown, nl=False)
        self._unshown = ""
        return self._is_over
