"""Losses: what a loss declares, and the declarations of the built-in ones.

A loss is one `Loss` object. Validation, the reference page and the server's list of losses follow
from it. A package offers its own under the entry point group `tinkex.losses`; an operator turns it
on with `tinkex serve --loss NAME`.

Knows nothing of engines. Imports no torch: loss functions use the methods of the tensors they get.
"""

from tinkex.losses.batch import LossBatch
from tinkex.losses.builtin import BUILT_IN
from tinkex.losses.declaration import TARGETS, Loss, LossInput, LossMetric, LossOption

__all__ = [
    "BUILT_IN",
    "TARGETS",
    "Loss",
    "LossBatch",
    "LossInput",
    "LossMetric",
    "LossOption",
]
