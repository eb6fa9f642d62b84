"""How soon, and at what rate, does the OpenAI endpoint stream?

- Time to the first token of a streamed completion of 128 tokens on an idle server, over the time
  the bare engine takes for the same prompt. Bar: 1.2.
- Tokens per second of 64 completions streamed side by side, over those of 64 that are answered
  whole. Bar: 0.9.
"""

from __future__ import annotations

import http.client
import itertools
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks._measure import alternate, costlier, faster, run_questions
from benchmarks._model import NAME
from benchmarks._served import KEY, Served
from benchmarks._workload import tokens
from benchmarks._yardsticks import EngineSide

PROMPT, STREAMS, ANSWER = 128, 64, 48
FIRST_OVER, STREAMED_RATE = 1.2, 0.9
NO_END = {"0": -100, "2": -100}  # so that every answer has all its tokens


class Endpoint:
    """A kept-alive connection to the endpoint of a server."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=300)
        self._connection.connect()

    def completion(self, prompt: list[int], max_tokens: int, *, stream: bool) -> Iterator[bytes]:
        """Yields the lines of a response as they arrive."""
        body = {
            "model": NAME,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "logit_bias": NO_END,
            "stream": stream,
        }
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        self._connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = self._connection.getresponse()
        assert answer.status == 200, answer.read()
        yield from answer
        answer.close()  # the connection stays: a length that was read does not end an answer

    def first_token(self, prompt: list[int]) -> float:
        """Returns the seconds to the first piece with text; reads the response to its end."""
        found = 0.0
        began = time.perf_counter()
        for line in self.completion(prompt, 8, stream=True):
            if not found and line.startswith(b"data: {"):
                found = time.perf_counter() - began
        return found


def first_token(rounds: int) -> bool:
    seeds = itertools.count()
    with Served() as ours, EngineSide() as engine:
        endpoint = Endpoint(ours.url)

        def fresh() -> list[int]:  # so that nothing of it was computed before
            return tokens(PROMPT, next(seeds))

        sides = {
            "ours": lambda: endpoint.first_token(fresh()),
            "engine": lambda: engine.first_token(fresh()),
        }
        found = alternate(sides, 6 * rounds, warmups=3)
    question = f"first token of {PROMPT} streamed: endpoint over bare engine"
    return costlier(question, found["ours"], found["engine"], at_most=FIRST_OVER)


def many_streams(rounds: int) -> bool:
    seeds = itertools.count(1000)
    with Served() as ours, ThreadPoolExecutor(STREAMS) as pool:
        endpoints = [Endpoint(ours.url) for _ in range(STREAMS)]

        def run(*, stream: bool) -> float:
            def one(endpoint: Endpoint) -> Any:
                prompt = tokens(16, next(seeds))
                return sum(map(len, endpoint.completion(prompt, ANSWER, stream=stream)))

            began = time.perf_counter()
            list(pool.map(one, endpoints))
            return time.perf_counter() - began

        sides = {"streamed": lambda: run(stream=True), "whole": lambda: run(stream=False)}
        found = alternate(sides, rounds)
    question = f"{STREAMS} completions streamed over answered whole: tokens per second"
    return faster(question, found["streamed"], found["whole"], at_least=STREAMED_RATE)


QUESTIONS = {"first token": first_token, "streams": many_streams}


if __name__ == "__main__":
    sys.exit(run_questions(__doc__, QUESTIONS))
