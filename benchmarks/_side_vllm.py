"""Side: vLLM's CPU build, called through its own asynchronous engine: no HTTP, which favours it.

float32, prefix caching as by default, threads bound to the cores. Without adapters it compiles the
model, which is a little faster here and whose warm-up is not counted; with LoRA it has only the
eager form on a CPU. Tokens are requested without logprobs, which our protocol always
returns: this favours it too. Between runs its processes are halted: they spin for a second after
their last step and poll for work from then on, which would slow the next side. Runs in an
environment of its own and needs only this folder of our code.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks._sides import serve
from benchmarks._workload import Request
from vllm import AsyncEngineArgs, SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

_loop = asyncio.new_event_loop()
_ids = itertools.count()
_state: dict[str, Any] = {}


def load(folder: str, adapters: list[str]) -> None:
    """Starts the engine; adapters are PEFT folders, numbered from then on."""
    ranks = [json.loads((Path(each) / "adapter_config.json").read_text())["r"] for each in adapters]
    lora = {"enable_lora": True, "max_loras": len(ranks), "max_lora_rank": max([8, *ranks])}
    options = AsyncEngineArgs(
        model=folder,
        dtype="float32",
        max_model_len=2048,
        skip_tokenizer_init=True,
        seed=0,
        **(lora if ranks else {}),
    )
    _state["adapters"] = [LoRARequest(f"a{n}", n + 1, at) for n, at in enumerate(adapters)]
    _state["engine"] = _loop.run_until_complete(_start(options))


async def _start(options: AsyncEngineArgs) -> AsyncLLM:
    return AsyncLLM.from_engine_args(options)


def run(requests: list[Request]) -> list[float]:
    """Sends each request at its time; returns when each was answered, in seconds
    since the start."""
    _signal_engine(signal.SIGCONT)
    try:
        return _loop.run_until_complete(_run(requests))
    finally:
        _signal_engine(signal.SIGSTOP)


async def _run(requests: list[Request]) -> list[float]:
    began = time.perf_counter()
    return list(await asyncio.gather(*(_one(request, began) for request in requests)))


async def _one(request: Request, began: float) -> float:
    await asyncio.sleep(request["at"] - (time.perf_counter() - began))
    params = SamplingParams(
        n=request["samples"],
        max_tokens=request["max_tokens"],
        temperature=1.0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    prompt = {"prompt_token_ids": request["tokens"]}
    adapter = _state["adapters"][request["adapter"]] if _state["adapters"] else None
    stream = _state["engine"].generate(prompt, params, str(next(_ids)), lora_request=adapter)
    answers = [answer async for answer in stream]
    lengths = [len(part.token_ids) for answer in answers for part in answer.outputs]
    assert lengths == [request["max_tokens"]] * request["samples"], lengths
    return time.perf_counter() - began


def stop() -> None:
    """Ends the engine's processes."""
    _signal_engine(signal.SIGCONT)
    _state["engine"].shutdown()


def _signal_engine(number: int) -> None:
    for pid in _descendants(os.getpid()):
        with suppress(ProcessLookupError):  # it ended just now; the others still run
            os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # one that ends just now has none
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` runs
    try:
        serve({"load": load, "run": run, "stop": stop})
    finally:
        _signal_engine(signal.SIGCONT)  # no halted process may remain
