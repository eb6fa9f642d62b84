"""Regularizers: weighted penalties on top of any loss.

A `RegularizedLoss` is a loss for `TrainingClient.forward_backward_custom`.

```python
from tinkex.regularizers import KL, RegularizedLoss

loss = RegularizedLoss("importance_sampling", [KL(weight=0.1, where="advantages")])
out = training.forward_backward_custom(batch, loss).result()
print(out.metrics["regularizer/kl/value"])
```

torch is imported when a loss is computed, not before.
"""

from __future__ import annotations

from tinkex.regularizers.consistency import Consistency
from tinkex.regularizers.distributions import KL, Entropy
from tinkex.regularizers.gradient_penalty import GradientPenalty
from tinkex.regularizers.interface import Regularizer, RegularizerBatch
from tinkex.regularizers.norms import L1, L2, ElasticNet
from tinkex.regularizers.orthogonality import Orthogonality
from tinkex.regularizers.own import Own
from tinkex.regularizers.pipeline import RegularizedLoss

__all__ = [
    "KL",
    "L1",
    "L2",
    "Consistency",
    "ElasticNet",
    "Entropy",
    "GradientPenalty",
    "Orthogonality",
    "Own",
    "RegularizedLoss",
    "Regularizer",
    "RegularizerBatch",
]
