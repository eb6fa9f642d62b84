"""Orthogonality: penalises similar logprobs (cosine) of each two examples.

Shapes: B examples · T counted targets of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from tinkex.errors import ValidationError
from tinkex.regularizers.interface import Regularizer, RegularizerBatch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Orthogonality"]


@dataclass(frozen=True, kw_only=True)
class Orthogonality(Regularizer):
    """The mean squared cosine between the logprobs of each two examples.

    All examples need equally many counted targets; `where` names a loss input that is 0 for those
    that do not count. With `center` the mean of each example is taken off first: logprobs have all
    the same sign, so that without it no two examples can be orthogonal.

    >>> Orthogonality(weight=0.1).center
    True
    """

    kind: ClassVar[str] = "orthogonality"

    center: bool = True
    where: str | None = None

    def penalty(self, batch: RegularizerBatch) -> Tensor:
        """The mean over all pairs; 0 for a single example."""
        import torch

        rows = batch.counted(self.where)
        counts = [each.numel() for each in rows]
        if len(set(counts)) > 1:
            raise ValidationError(
                f"The regularizer {self.name!r} takes equally many counted targets of each "
                f"example; there are {counts}.",
                hint="Name a loss input in where= that is 0 for targets that do not count.",
            )
        rows_BT = torch.stack(rows)
        if self.center:
            rows_BT = rows_BT - rows_BT.mean(dim=1, keepdim=True)
        unit_BT = torch.nn.functional.normalize(rows_BT, dim=1)
        off_diagonal_BB = (unit_BT @ unit_BT.T).triu(diagonal=1)
        num_pairs = len(rows) * (len(rows) - 1) // 2
        return off_diagonal_BB.square().sum() / max(1, num_pairs)
