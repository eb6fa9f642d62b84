"""Datasets of the recipes of `tinker-cookbook`, made locally under their names on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

NUM_ROWS = 32

_GSM8K = """---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train.jsonl}
  - {split: test, path: main/test.jsonl}
---
"""


def make_datasets(folder: Path, num_rows: int = NUM_ROWS) -> None:
    """Each dataset as a folder of JSON lines, which `datasets.load_dataset` takes by its name."""
    numbers = range(num_rows)
    for split in ("train", "test"):
        _write(folder / f"HuggingFaceH4/no_robots/{split}.jsonl", map(_conversation, numbers))
        _write(folder / f"openai/gsm8k/main/{split}.jsonl", map(_problem, numbers))
        _write(folder / f"Anthropic/hh-rlhf/{split}.jsonl", map(_comparison, numbers))
        _write(folder / f"zwhe99/DeepMath-103K/{split}.jsonl", map(_problem, numbers))
    (folder / "openai/gsm8k/README.md").write_text(_GSM8K)


def _conversation(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"Say {number}."}
    return {"messages": [question, {"role": "assistant", "content": f"It is {number}."}]}


def _problem(number: int) -> dict[str, Any]:
    return {"question": f"What is {number} + 1?", "answer": f"One more.\n#### {number + 1}"}


def _comparison(number: int) -> dict[str, Any]:
    prompt = f"\n\nHuman: Say {number}.\n\nAssistant:"
    return {"chosen": f"{prompt} {number}.", "rejected": f"{prompt} No."}


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
