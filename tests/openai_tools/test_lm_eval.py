"""lm-evaluation-harness, run as its command, scores choices and checks answers on a real server.

Skipped without it: `make test-openai` runs this folder where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tinkex
from tests.openai_tools.conftest import MODEL, Endpoint
from tinkex import types
from tinkex.tokenizers.tokenizer import Tokenizer

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        importlib.util.find_spec("lm_eval") is None,
        reason="needs lm-eval: make test-openai installs it",
    ),
]

QUESTIONS: list[dict[str, Any]] = [
    {"question": "The sky is", "choices": ["blue", "a loud green"], "answer": 0},
    {"question": "Grüße an", "choices": ["日本", "nobody at all"], "answer": 1},
    {"question": "One and one is", "choices": ["two", "three", "a fish"], "answer": 0},
]
CHOICES = {
    "output_type": "multiple_choice",
    "doc_to_choice": "{{choices}}",
    "metric_list": [{"metric": "acc"}],
}
ANSWERS = {
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 8, "temperature": 0},
    "metric_list": [{"metric": "exact_match"}],
}


def test_scores_of_choices_are_those_of_compute_logprobs(
    tmp_path: Path,
    endpoint: Endpoint,
    folder: Path,
    sampler: tinkex.SamplingClient,
    tokenizer: Tokenizer,
) -> None:
    rows = evaluate(
        tmp_path,
        endpoint,
        CHOICES,
        model="local-completions",
        model_args=f"base_url={endpoint.url}/completions,tokenizer={folder},num_concurrent=4",
    )
    for question, row in zip(QUESTIONS, rows, strict=True):
        theirs = [float(each[0][0]) for each in row["resps"]]
        ours = [scored(sampler, tokenizer, question, each) for each in question["choices"]]
        assert theirs == pytest.approx(ours, abs=1e-3)
        assert row["acc"] == (ours.index(max(ours)) == question["answer"])


def test_answers_to_chats_are_those_of_our_own_api(
    tmp_path: Path, endpoint: Endpoint, sampler: tinkex.SamplingClient, tokenizer: Tokenizer
) -> None:
    rows = evaluate(
        tmp_path,
        endpoint,
        ANSWERS,
        "--apply_chat_template",
        model="local-chat-completions",
        model_args=f"base_url={endpoint.url}/chat/completions",
    )
    for question, row in zip(QUESTIONS, rows, strict=True):
        chat = [{"role": "user", "content": question["question"]}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True)
        params = types.SamplingParams(max_tokens=8, temperature=0, stop=["\n\n"])
        sampled = sampler.sample(types.ModelInput.from_ints(prompt), 1, params).result(60)
        expected = tokenizer.decode(sampled.sequences[0].tokens, skip_special_tokens=True)
        assert row["resps"][0][0] == expected


def scored(
    sampler: tinkex.SamplingClient, tokenizer: Tokenizer, question: dict[str, Any], choice: str
) -> float:
    """The logprob of a choice after its question."""
    context = tokenizer.encode(question["question"])
    ids = tokenizer.encode(f"{question['question']} {choice}")
    scores = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result(60)
    return sum(each for each in scores[len(context) :] if each is not None)


def evaluate(
    folder: Path,
    endpoint: Endpoint,
    task: dict[str, Any],
    *options: str,
    model: str,
    model_args: str,
) -> list[dict[str, Any]]:
    """Runs the command on the questions; what it noted about each, in their order."""
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(each) + "\n" for each in QUESTIONS))
    described = {
        "task": "made_here",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "answer",
        **task,
    }
    (folder / "made_here.yaml").write_text(json.dumps(described))  # JSON is YAML
    command = [sys.executable, "-m", "lm_eval", "run", "--model", model]
    command += ["--model_args", f"model={MODEL},{model_args}", "--tasks", "made_here"]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out")]
    done = subprocess.run(
        [*command, "--log_samples", *options],
        env=os.environ
        | {"OPENAI_API_KEY": endpoint.key, "HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (samples,) = (folder / "out").rglob("samples_made_here_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    return sorted(rows, key=lambda row: row["doc_id"])
