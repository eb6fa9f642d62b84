"""Effects of sampling parameters on logits and probabilities: one class per parameter.

Processors of logits run first, on what the model gave: bias, then penalties. Then logits are
divided by the temperature and become probabilities; the logprobs of an answer are of these. Filters
then set the probabilities of some tokens to 0, and the token is drawn from the rest. Temperature,
top_k and top_p are part of the draw itself (`token_choice`), which sorts no more than it must.

A new parameter is a field of `SamplingParams`, a class here, and its entry in `BUILTIN`.

Shapes: N sequences · V vocabulary · P cells (a row and a token each) · R rows with a parameter set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tinkex.engine.sampling.token_history import TokenHistory
from tinkex.types.sampling import SamplingParams

__all__ = ["BUILTIN", "Pipeline", "Processor", "Row"]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a batch for which some processor is active."""

    index: int  # in the batch
    params: SamplingParams
    history: TokenHistory | None  # None if no processor of the request reads it


class Processor(Protocol):
    """Applies one parameter, in place, to the rows of a batch where it is active."""

    reads_history: bool
    """Whether it needs the sequence's tokens: if so, each of its sequences counts them."""

    def is_active(self, params: SamplingParams) -> bool:
        """Returns whether the parameter is set to something other than "off"."""
        ...

    def apply(self, values_NV: Tensor, rows: Sequence[Row]) -> None:
        """Changes these rows of the logits, or sets probabilities in them to 0; no other rows."""
        ...


class LogitBias:
    """Adds a number to the logits of given tokens."""

    reads_history = False

    def is_active(self, params: SamplingParams) -> bool:
        return bool(params.logit_bias)

    def apply(self, values_NV: Tensor, rows: Sequence[Row]) -> None:
        biases = [row.params.logit_bias or {} for row in rows]
        cells = _cells(values_NV, rows, [np.fromiter(bias, np.int64) for bias in biases])
        bias_P = [np.fromiter(bias.values(), np.float32) for bias in biases]
        values_NV[cells] += torch.from_numpy(np.concatenate(bias_P)).to(values_NV)


class RepetitionPenalty:
    """Divides positive logits of tokens in prompt or answer, and multiplies negative ones."""

    reads_history = True

    def is_active(self, params: SamplingParams) -> bool:
        return params.repetition_penalty != 1.0

    def apply(self, values_NV: Tensor, rows: Sequence[Row]) -> None:
        ids = [_history(row).all_ids for row in rows]
        cells = _cells(values_NV, rows, ids)
        penalty_P = _spread(values_NV, rows, ids, lambda params: params.repetition_penalty)
        value_P = values_NV[cells]
        # A token listed twice gets the same value twice.
        values_NV[cells] = torch.where(value_P > 0, value_P / penalty_P, value_P * penalty_P)


class FrequencyPenalty:
    """Subtracts the penalty from a token's logit once for each time it is in the answer so far."""

    reads_history = True

    def is_active(self, params: SamplingParams) -> bool:
        return params.frequency_penalty != 0.0

    def apply(self, values_NV: Tensor, rows: Sequence[Row]) -> None:
        ids = [_history(row).output_ids for row in rows]
        counts = np.concatenate([_history(row).output_counts for row in rows])
        penalty_P = _spread(values_NV, rows, ids, lambda params: params.frequency_penalty)
        values_NV[_cells(values_NV, rows, ids)] -= penalty_P * torch.from_numpy(counts).to(
            values_NV
        )


class PresencePenalty:
    """Subtracts the penalty from the logit of every token that is in the answer so far."""

    reads_history = True

    def is_active(self, params: SamplingParams) -> bool:
        return params.presence_penalty != 0.0

    def apply(self, values_NV: Tensor, rows: Sequence[Row]) -> None:
        ids = [_history(row).output_ids for row in rows]
        penalty_P = _spread(values_NV, rows, ids, lambda params: params.presence_penalty)
        values_NV[_cells(values_NV, rows, ids)] -= penalty_P


class MinP:
    """Keeps only tokens with at least `min_p` times the probability of the most likely token."""

    reads_history = False

    def is_active(self, params: SamplingParams) -> bool:
        return params.min_p > 0.0

    def apply(self, values_NV: Tensor, rows: Sequence[Row]) -> None:
        index_R = torch.tensor([row.index for row in rows], device=values_NV.device)
        min_p_R = torch.tensor([row.params.min_p for row in rows]).to(values_NV)
        probs_RV = values_NV[index_R]
        least_R = min_p_R * probs_RV.amax(dim=-1)
        values_NV[index_R] = probs_RV.masked_fill_(probs_RV < least_R[:, None], 0.0)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The processors in the order they run: those of logits, then the filters of probabilities."""

    on_logits: tuple[Processor, ...]
    on_probs: tuple[Processor, ...]

    def is_active(self, params: SamplingParams) -> bool:
        """Returns whether any processor is active for a request with these parameters."""
        return any(each.is_active(params) for each in (*self.on_logits, *self.on_probs))

    def reads_history(self, params: SamplingParams) -> bool:
        """Returns whether an active processor needs the tokens so far."""
        everything = (*self.on_logits, *self.on_probs)
        return any(each.reads_history and each.is_active(params) for each in everything)

    def change_logits(self, logits_NV: Tensor, rows: Sequence[Row]) -> None:
        """Applies bias and penalties, in place."""
        for processor in self.on_logits:
            active = [row for row in rows if processor.is_active(row.params)]
            if active:
                processor.apply(logits_NV, active)

    def filtered(self, probs_NV: Tensor, rows: Sequence[Row]) -> Tensor:
        """Returns the probabilities to draw from: a filtered copy, or the same
        tensor without filters."""
        allowed_NV, filtered = probs_NV, set[int]()
        for processor in self.on_probs:
            active = [row for row in rows if processor.is_active(row.params)]
            if active:
                allowed_NV = allowed_NV if filtered else probs_NV.clone()
                filtered |= {row.index for row in active}
                processor.apply(allowed_NV, active)
        if filtered:  # top_p is a share of what is left
            index_R = torch.tensor(sorted(filtered), device=probs_NV.device)
            left_RV = allowed_NV[index_R]
            allowed_NV[index_R] = left_RV / left_RV.sum(dim=-1, keepdim=True)
        return allowed_NV


BUILTIN = Pipeline(
    on_logits=(LogitBias(), RepetitionPenalty(), FrequencyPenalty(), PresencePenalty()),
    on_probs=(MinP(),),
)


def _history(row: Row) -> TokenHistory:
    assert row.history is not None  # a sequence has one if a processor of its request reads it
    return row.history


def _cells(
    values_NV: Tensor, rows: Sequence[Row], ids: Sequence[np.ndarray]
) -> tuple[Tensor, Tensor]:
    """Returns row and token of every cell, as an index into the batch."""
    row_P = np.repeat([row.index for row in rows], [len(each) for each in ids])
    token_P = np.concatenate(ids)
    device = values_NV.device
    return torch.from_numpy(row_P).to(device), torch.from_numpy(token_P).to(device)


def _spread(
    values_NV: Tensor,
    rows: Sequence[Row],
    ids: Sequence[np.ndarray],
    value: Callable[[SamplingParams], float],
) -> Tensor:
    """Returns each row's parameter, repeated for each of its cells."""
    numbers = np.array([value(row.params) for row in rows], np.float32)
    return torch.from_numpy(np.repeat(numbers, [len(each) for each in ids])).to(values_NV)
