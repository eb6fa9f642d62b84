"""A server's status as lines of text, at most as wide as the terminal. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tinkex.cli.output import counted, printable, size_text, time_text
from tinkex.cli.progress import duration_text

if TYPE_CHECKING:
    from tinkex.types.checkpoint import TrainingRun

__all__ = ["run_lines", "status_lines", "worker_lines"]

_LABEL_WIDTH = 9
_RUN_COLUMNS = ("run", "model", "steps", "tokens", "last request (UTC)", "id")
_NAME_WIDTH = 24
_WORKER_COLUMNS = ("worker", "state", "doing", "busy", "runs", "adapters", "samples")


def status_lines(status: Mapping[str, Any], url: str, width: int = 80) -> list[str]:
    """Returns the screen: state, queue, speed, memory, disk, and a line per worker."""
    up, version = duration_text(status["uptime_s"]), status["version"]
    lines = [
        f"Tinkex {version} at {url}: {status['state']}, up {up}",
        *_labelled("Models", [", ".join(status["models"])]),
        *_labelled("Engine", [_engine(status["engine"])]),
        *_labelled("Queue", _queue(status["queue"])),
        *_labelled("Speed", [_speed(status["tokens_per_s"])]),
        *_labelled("Memory", [_memory(status["memory"])]),
        *_labelled("Disk", [_disk(status["disk"])]),
        "",
        *worker_lines(status["workers"]),
    ]
    return [_cut(line, width) for line in lines]


def worker_lines(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a table of the workers."""
    if not workers:
        return ["There are no workers now."]
    rows = [
        (
            str(each["name"]),
            str(each["state"]),
            str(each["doing"]),
            f"{each['busy_share']:.0%}",
            str(each["num_models"]),
            str(each["num_adapters"]),
            str(each["num_samples"]),
        )
        for each in workers
    ]
    return aligned([_WORKER_COLUMNS, *rows])


def run_lines(runs: Sequence[TrainingRun], width: int = 80) -> list[str]:
    """Returns a table of training runs, if there are any. Runs without a name show
    their id alone."""
    if not runs:
        return []
    rows = [
        (
            _cut(printable(each.name), _NAME_WIDTH) if each.name else each.training_run_id,
            each.base_model,
            "-" if each.usage is None else f"{each.usage.optimizer_steps:,}",
            "-" if each.usage is None else f"{each.usage.tokens:,}",
            str(time_text(each.last_request_time)),
            each.training_run_id if each.name else "",
        )
        for each in runs
    ]
    columns = _RUN_COLUMNS if any(each.name for each in runs) else (*_RUN_COLUMNS[:-1], "")
    return ["", *(_cut(line, width) for line in aligned([columns, *rows]))]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _engine(engine: Mapping[str, Any]) -> str:
    workers = engine["num_workers"]
    share = f"{engine['busy_share']:.0%} busy" + (f" over {workers} workers" * (workers > 1))
    held = f"{counted(engine['num_adapters'], 'adapter')} and "
    return f"{engine['doing']}, {share}; {held}{counted(engine['num_samplers'], 'sampler')} loaded"


def _queue(queue: Mapping[str, Any]) -> list[str]:
    training, sampling = queue["training"], queue["sampling"]
    lines = [
        f"training: {counted(training['operations'], 'operation')} of "
        f"{counted(training['models'], 'run')} waiting, {training['running_operations']} running"
        + _oldest(training["oldest_s"]),
        f"sampling: {counted(sampling['requests'], 'request')} waiting, "
        f"{sampling['running_requests']} running "
        f"({counted(sampling['running_sequences'], 'sequence')})" + _oldest(sampling["oldest_s"]),
    ]
    if "yours" in queue:
        mine = queue["yours"]
        lines.append(
            f"yours: {counted(mine['operations'], 'operation')} and "
            f"{counted(mine['requests'], 'sample')} waiting, "
            f"{counted(mine['running_requests'], 'sample')} running"
        )
    lines += [
        f"{each['owner']}: {counted(each['training'], 'operation')} and "
        f"{counted(each['sampling'], 'sample')} waiting, {each['running']} running"
        for each in queue.get("tenants", ())
    ]
    return lines


def _oldest(seconds: float) -> str:
    return f", oldest for {duration_text(seconds)}" if seconds >= 1 else ""


def _speed(rates: Mapping[str, int]) -> str:
    uses = ("trained", "scored", "sampled")
    return ", ".join(f"{rates[use]:,} {use}" for use in uses) + " tokens/s"


def _memory(memory: Mapping[str, Any]) -> str:
    own = f"server {size_text(memory['server_bytes'])}, engines {size_text(memory['engine_bytes'])}"
    whole = size_text(memory["machine_bytes"])
    return own if whole is None else f"{own} of {whole}"


def _disk(disk: Mapping[str, Any]) -> str:
    text = f"{size_text(disk['free_bytes'])} of {size_text(disk['total_bytes'])} free"
    if "quota_bytes" in disk:
        used, quota = size_text(disk["used_by_you_bytes"]), size_text(disk["quota_bytes"])
        text += f"; your files take {used} of {quota}"
    return text


def _labelled(label: str, texts: Sequence[str]) -> list[str]:
    labels = [label, *[""] * (len(texts) - 1)]
    return [f"{name:<{_LABEL_WIDTH}}{text}" for name, text in zip(labels, texts, strict=True)]


def _cut(line: str, width: int) -> str:
    line = printable(line)
    return line if len(line) <= width else f"{line[: width - 1]}…"
