"""A training run's folder: its options, how far it has come, and its metrics.

`run.json` names the newest checkpoint and the step it was taken at; it is replaced in one piece,
and only after the server has confirmed the checkpoint. `metrics.jsonl` has a line for each step.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO, Any

import msgspec

from tinkex.cli.output import write_atomically
from tinkex.errors import ValidationError

RUN_FILE = "run.json"
METRICS_FILE = "metrics.jsonl"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options that a run was started with; a resumed run uses the same."""

    data: str
    data_sha256: str
    base_model: str | None
    model_path: str | None
    lora: dict[str, Any] | None
    learning_rate: float
    schedule: str
    warmup_steps: int
    batch_size: int
    epochs: int
    max_steps: int | None
    max_length: int | None
    is_plain: bool
    shuffle_seed: int
    save_every: int


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The progress of a run. `checkpoint` holds the training state after `step` steps."""

    options: Options
    num_examples: int = 0
    num_tokens: int = 0
    step: int = 0
    checkpoint: str | None = None
    run_id: str | None = None
    sampler: str | None = None
    is_finished: bool = False
    version: int = 1


class RunFolder:
    """The folder of one run."""

    def __init__(self, path: Path, state: State) -> None:
        self.path = path
        self.state = state
        self._metrics: IO[str] | None = None

    @classmethod
    def create(cls, path: Path, options: Options) -> RunFolder:
        """Creates the folder of a new run; the folder of a run that never saved anything is reused.

        Raises:
            ValidationError: there is a run in it already.
        """
        if _is_worth_keeping(path / RUN_FILE):
            raise ValidationError(
                f"There is a run in {path} already.",
                hint=f"Go on with it: 'tinkex train --resume {path}'. Or choose another --output.",
                code="run-exists",
            )
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path, State(options=options))
        if (path / RUN_FILE).exists():
            folder._drop_metrics_after(0)
        folder.note()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Opens the folder of an earlier run; drops metrics after its checkpoint.

        Raises:
            ValidationError: there is no run in it, or it is of another kind.
        """
        file = path / RUN_FILE
        try:
            state = msgspec.json.decode(file.read_bytes(), type=State)
        except FileNotFoundError:
            raise ValidationError(
                f"There is no run in {path}.",
                hint="--resume takes the --output folder of an earlier 'tinkex train'.",
                code="no-run",
            ) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValidationError(
                f"{file} cannot be read: {error}.",
                hint="It was changed, or written by another version of Tinkex.",
                code="no-run",
            ) from None
        folder = cls(path, state)
        folder._drop_metrics_after(state.step)
        return folder

    def note(self, **changes: Any) -> None:
        """Writes the run's progress."""
        self.state = msgspec.structs.replace(self.state, **changes)
        text = msgspec.json.format(msgspec.json.encode(self.state), indent=2).decode()
        write_atomically(self.path / RUN_FILE, text + "\n")

    def add_metrics(self, metrics: dict[str, Any]) -> None:
        """Appends a line of metrics and flushes it."""
        if self._metrics is None:
            self._metrics = (self.path / METRICS_FILE).open("a", encoding="utf-8")
        self._metrics.write(json.dumps(metrics) + "\n")
        self._metrics.flush()

    def close(self) -> None:
        """Closes the metrics."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def _drop_metrics_after(self, step: int) -> None:
        """Drops the metrics after the checkpoint: those steps are trained again."""
        file = self.path / METRICS_FILE
        if not file.exists():
            return
        kept = [line for line in file.read_text("utf-8").splitlines() if _step_of(line) <= step]
        write_atomically(file, "".join(f"{line}\n" for line in kept))


def _is_worth_keeping(file: Path) -> bool:
    """Whether a run file must not be replaced: it names a checkpoint, or is not certainly ours.

    Ours without a checkpoint may be replaced even if its options would be refused now.
    """
    try:
        state = msgspec.json.decode(file.read_bytes())
    except FileNotFoundError:
        return False
    except (msgspec.DecodeError, UnicodeDecodeError):
        return True
    is_ours = isinstance(state, dict) and isinstance(state.get("options"), dict)
    return not is_ours or state.get("checkpoint") is not None


def _step_of(line: str) -> float:
    """Returns the step of a line; infinity for a line that a crash has cut off."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def resume_command(folder: Path) -> str:
    """Returns the command that resumes the run."""
    import shlex

    return f"tinkex train --resume {shlex.quote(os.fspath(folder))}"
