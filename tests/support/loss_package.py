"""A package outside of Tinkex that offers losses: its source, and how it is put on a path."""

from __future__ import annotations

from pathlib import Path

FOCAL = """
from tinkex.losses import Loss, LossInput, LossMetric, LossOption


def _focal(lp_P, batch):
    return -batch.arrays_P["weights"] * (1 - lp_P.exp()) ** batch.config["gamma"] * lp_P


def _metrics(lp_P, batch):
    return {"probability:mean": lp_P.exp(), "logprob:min": lp_P}


LOSS = Loss(
    name="focal",
    about="Cross entropy that counts what is known already for less.",
    formula="-w * (1 - p)^gamma * lp",
    function=_focal,
    inputs=(LossInput(name="weights", about="Weight of each target.", low=0, high=10),),
    options=(LossOption(name="gamma", about="Strength.", default=2.0, low=0, high=5),),
    metrics=(
        LossMetric(name="probability:mean", about="Mean probability of the targets."),
        LossMetric(name="logprob:min", about="Least logprob of a target."),
    ),
    metrics_function=_metrics,
    is_separable=True,
    zero_where="weights",
)
"""

SEQUENCE_ERROR = """
from tinkex.losses import Loss, LossInput


def _sequence_error(lp_P, batch):
    zeros_S = lp_P.new_zeros(batch.num_sequences)
    total_S = zeros_S.index_add(0, batch.sequence_P, lp_P)
    count_P = zeros_S.index_add(0, batch.sequence_P, lp_P * 0 + 1).detach()[batch.sequence_P]
    error_P = total_S[batch.sequence_P] / count_P - batch.arrays_P["wanted"]
    return batch.arrays_P["label"] * error_P.square() / count_P


LOSS = Loss(
    name="sequence_error",
    about="Squared error of a sequence's mean logprob.",
    formula="label * (mean of lp - wanted)^2 / N",
    function=_sequence_error,
    inputs=(
        LossInput(name="wanted", about="Mean logprob to reach.", per="datum", high=0),
        LossInput(name="label", about="1 trains, 0 does not.", dtype="int64", low=0, high=1),
    ),
)
"""

BROKEN = """
from tinkex.losses import Loss


def _broken(lp_P, batch):
    return batch.arrays_P["nothing of this name"]


LOSS = Loss(name="broken", about="Fails.", formula="?", function=_broken)
"""


def write_package(folder: Path, package: str, **sources: str) -> Path:
    """A folder for PYTHONPATH with an installed package that offers one loss per source."""
    module = package.replace("-", "_")
    (folder / module).mkdir(parents=True)
    (folder / module / "__init__.py").touch()
    lines = ["[tinkex.losses]"]
    for name, source in sources.items():
        (folder / module / f"{name}.py").write_text(source)
        lines.append(f"{name} = {module}.{name}:LOSS")
    about = folder / f"{module}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder
