"""The supervised training loop: two steps under way, checkpoints between them, a clean stop.

The next step is sent before the last one's result is in, so that the server never waits for us;
order is kept by the client's numbering. A checkpoint is sent like a step and counts only once the
server has confirmed it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tinkex.cli.progress import StatusLine, duration_text
from tinkex.cli.sft_data import Example
from tinkex.cli.sft_plan import Plan
from tinkex.cli.sft_run import RunFolder
from tinkex.errors import FutureTimeoutError
from tinkex.stop_signals import stop_signals
from tinkex.types.optimizers import AdamParams

if TYPE_CHECKING:
    from tinkex.client.futures import Future
    from tinkex.client.polling import Queue
    from tinkex.client.training import TrainingClient
    from tinkex.types.training import (
        ForwardBackwardOutput,
        OptimStepResponse,
        SaveWeightsResponse,
    )

T = TypeVar("T")

IN_FLIGHT = 2
_PATIENCE_S = 2.0
"""Seconds after which the status line shows for how long a step has waited, and why."""
_QUEUE_WORDS = {
    "paused_capacity": "paused: the server is at capacity",
    "paused_rate_limit": "paused: rate limit",
}


class StopRequest:
    """Handles Ctrl-C (or SIGTERM) as a request to stop while it is open; a second Ctrl-C
    stops at once."""

    def __init__(self, notify: Callable[[str], None]) -> None:
        self.is_set = False
        self._notify = notify
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in stop_signals():
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True
        self._notify(
            "Stopping: the step under way is finished and saved. Ctrl-C again stops at once."
        )


@dataclass(frozen=True, slots=True)
class _Sent:
    """A step that was sent; `number` counts from 1."""

    number: int
    num_tokens: int
    num_learned: int
    rate: float
    forward_backward: Future[ForwardBackwardOutput]
    optim_step: Future[OptimStepResponse]
    save: Future[SaveWeightsResponse] | None


class Trainer:
    """Trains by a plan and updates the run's folder."""

    def __init__(
        self,
        training: TrainingClient,
        examples: Sequence[Example],
        plan: Plan,
        folder: RunFolder,
        status: StatusLine,
    ) -> None:
        self._training = training
        self._examples = examples
        self._plan = plan
        self._folder = folder
        self._status = status
        self._queue_words = ""
        self.step = folder.state.step
        self.loss: float | None = None
        self._first = self.step
        self._num_tokens = 0
        self._started = self._last = time.monotonic()
        training.queue_observer = self._on_queue

    def train(self, stop: StopRequest) -> bool:
        """Runs the remaining steps; returns False if it was stopped before the last, but saved."""
        under_way: deque[_Sent] = deque()
        for step in range(self.step, self._plan.num_steps):
            if stop.is_set:
                break
            under_way.append(self._send(step))
            if len(under_way) == IN_FLIGHT:
                self._receive(under_way.popleft())
        while under_way:
            self._receive(under_way.popleft())
        is_whole = self.step == self._plan.num_steps
        if is_whole:
            self._finish()
        elif self.step > self._folder.state.step:
            self._note_saved(self.step, self._save(self.step).result().path)
        return is_whole

    def _send(self, step: int) -> _Sent:
        batch = [self._examples[each] for each in self._plan.batch(step)]
        number, rate = step + 1, self._plan.rate(step)
        every = self._folder.state.options.save_every
        is_saved = every > 0 and number % every == 0 and number < self._plan.num_steps
        return _Sent(
            number=number,
            num_tokens=sum(len(each.tokens) for each in batch),
            num_learned=sum(each.num_learned for each in batch),
            rate=rate,
            forward_backward=self._training.forward_backward(
                [each.to_datum() for each in batch], "cross_entropy"
            ),
            optim_step=self._training.optim_step(AdamParams(learning_rate=rate)),
            save=self._save(number) if is_saved else None,
        )

    def _save(self, number: int) -> Future[SaveWeightsResponse]:
        return self._training.save_state(f"step-{number:06}", overwrite=True)

    def _receive(self, sent: _Sent) -> None:
        output = self._await(sent.forward_backward, sent.number)
        stepped = self._await(sent.optim_step, sent.number)
        now = time.monotonic()
        took, self._last = max(1e-9, now - self._last), now
        self.step = sent.number
        self.loss = output.metrics["loss:sum"] / sent.num_learned
        self._num_tokens += sent.num_tokens
        self._folder.add_metrics(
            {
                "step": sent.number,
                "epoch": round(sent.number / self._plan.steps_per_epoch, 4),
                "loss": self.loss,
                "learning_rate": sent.rate,
                "tokens": sent.num_tokens,
                "learned_tokens": sent.num_learned,
                "tokens_per_s": round(sent.num_tokens / took, 1),
                "elapsed_s": round(now - self._started, 3),
                **{f"optim/{name}": value for name, value in (stepped.metrics or {}).items()},
            }
        )
        self._show(self._num_tokens / max(1e-9, now - self._started))
        if sent.save is not None:
            self._note_saved(sent.number, sent.save.result().path)

    def _note_saved(self, step: int, path: str) -> None:
        self._folder.note(step=step, checkpoint=path, run_id=self._training.model_id)
        self._status.say(f"Saved step {step}: {path}")

    def _finish(self) -> None:
        self._status.show("saving…", is_urgent=True)
        state = self._training.save_state("final", overwrite=True)
        sampler = self._training.save_weights_for_sampler("final")
        self._folder.note(
            step=self.step,
            checkpoint=state.result().path,
            run_id=self._training.model_id,
            sampler=sampler.result().path,
            is_finished=True,
        )

    def _await(self, future: Future[T], number: int) -> T:
        """Waits for the result; if it takes long, the status line shows for how long and why."""
        began = time.monotonic()
        while self._status.is_live:
            try:
                return future.result(_PATIENCE_S)
            except FutureTimeoutError:
                took = duration_text(time.monotonic() - began)
                why = self._queue_words or "the server computes it"
                self._status.show(f"step {number}/{self._plan.num_steps} waits {took}: {why}")
        return future.result()

    # Status line --------------------------------------------------------------------------------

    def _show(self, speed: float) -> None:
        total = self._plan.num_steps
        text = f"step {self.step}/{total}  loss {self.loss:.4f}  {speed:,.0f} tokens/s"
        if not self._status.is_live:
            if self.step % max(1, total // 10) == 0 or self.step == total:
                self._status.say(text)
            return
        done = self.step - self._first
        left = (self._last - self._started) / done * (total - self.step)
        rest = f"  {duration_text(left)} left"
        words = f"  {self._queue_words}" if self._queue_words else ""
        self._status.show(
            f"{self._status.bar(self.step, total)} {text}{rest}{words}",
            is_urgent=self.step == total,
        )

    def _on_queue(self, queue: Queue) -> None:
        """Records the queue's state. Called on the client's thread."""
        self._queue_words = queue.reason or _QUEUE_WORDS.get(queue.state, "")
        if queue.state == "active":
            self._queue_words = ""
        elif self._status.is_live:
            self._status.show(self._queue_words, is_urgent=True)
