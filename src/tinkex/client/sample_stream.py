"""SampleStream: the tokens of a sample as they are made, for a `for` or an `async for` loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from types import TracebackType
from typing import Self

from tinkex.client.futures import Future
from tinkex.errors import FutureCancelledError, TinkexError
from tinkex.types.sample_stream import SampleDelta
from tinkex.types.sampling import SampleResponse

__all__ = ["DeltaQueue", "SampleStream", "whole_deltas"]


class DeltaQueue:
    """Deltas from the runtime's loop to one consumer, in a thread or on another loop."""

    def __init__(self) -> None:
        self._deltas: deque[SampleDelta] = deque()
        self._is_over = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []

    def put(self, delta: SampleDelta) -> None:
        """Adds tokens for the consumer."""
        with self._changed:
            self._deltas.append(delta)
            self._wake()

    def note_error(self, error: BaseException) -> None:
        """Has the consumer get this error after the last tokens."""
        with self._changed:
            self._error = self._error or error

    def finish(self) -> None:
        """Says that there will be no more."""
        with self._changed:
            self._is_over = True
            self._wake()

    def wait(self, timeout_s: float) -> bool:
        """Whether something is there within the time: tokens, or the end."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._deltas) or self._is_over, timeout_s)

    def get(self) -> SampleDelta | None:
        """The next tokens, waited for; None after the last ones.

        Raises:
            TinkexError: the stream ended with it.
        """
        with self._changed:
            while not (self._deltas or self._is_over):
                self._changed.wait()
            return self._next()

    async def get_async(self) -> SampleDelta | None:
        """Like `get`, awaited on any loop."""
        loop, is_changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits
                loop.call_soon_threadsafe(is_changed.set)

        while True:
            with self._changed:
                if self._deltas or self._is_over:
                    return self._next()
                self._listeners.append(wake)
            await is_changed.wait()
            is_changed.clear()

    def _next(self) -> SampleDelta | None:
        if self._deltas:
            return self._deltas.popleft()
        if self._error is not None:
            raise self._error
        return None

    def _wake(self) -> None:
        listeners, self._listeners = self._listeners, []
        for wake in listeners:
            wake()
        self._changed.notify_all()


class SampleStream:
    """A sample that is under way: iterate over its tokens, or wait for its whole result.

    ```python
    with sampler.sample(prompt, 1, params, stream=True) as stream:
        for delta in stream:
            print(delta.index, delta.tokens, delta.logprobs)
    answer = stream.result()
    ```

    Leaving a loop over it before its end, leaving its `with` block, and Ctrl-C in a wait cancel the
    sample, on the server too. There is one consumer: what one loop was given, no other one gets.
    """

    def __init__(self, future: Future[SampleResponse], queue: DeltaQueue) -> None:
        self.future = future
        """The handle on the whole result."""
        self._queue = queue
        future.add_done_callback(self._finish)

    @classmethod
    def failed(cls, error: TinkexError) -> SampleStream:
        """A stream that ends at once with an error.

        Args:
            error: The error.
        """
        inner: concurrent.futures.Future[SampleResponse] = concurrent.futures.Future()
        inner.set_exception(error)
        return cls(Future(inner), DeltaQueue())

    def result(self, timeout: float | None = None) -> SampleResponse:
        """The whole answer, waited for, with what no delta has, such as prompt logprobs; see
        `Future.result` for what it raises.

        Args:
            timeout: Seconds to wait at most; None for as long as it takes.
        """
        return self.future.result(timeout)

    async def result_async(self, timeout: float | None = None) -> SampleResponse:
        """`result`, awaited."""
        return await self.future.result_async(timeout)

    def wait(self, timeout: float) -> bool:
        """Whether the next tokens, or the end, are there within the time; for a program that shows
        that it waits.

        Args:
            timeout: Seconds to wait at most.
        """
        self.future._refuse_endless_wait()
        try:
            return self._queue.wait(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise

    def done(self) -> bool:
        """Whether the result, or the error, is there."""
        return self.future.done()

    def cancel(self) -> bool:
        """Stops the sample, on the server too; False if it had already ended."""
        return self.future.cancel()

    def close(self) -> None:
        """Stops the sample if it has not ended."""
        self.cancel()

    def __iter__(self) -> Generator[SampleDelta, None, None]:
        try:
            while (delta := self._get()) is not None:
                yield delta
        except GeneratorExit:
            self.cancel()
            raise

    async def __aiter__(self) -> AsyncGenerator[SampleDelta, None]:
        try:
            while (delta := await self._get_async()) is not None:
                yield delta
        except GeneratorExit:
            self.cancel()
            raise

    def __next__(self) -> SampleDelta:
        delta = self._get()
        if delta is None:
            raise StopIteration
        return delta

    async def __anext__(self) -> SampleDelta:
        delta = await self._get_async()
        if delta is None:
            raise StopAsyncIteration
        return delta

    def _get(self) -> SampleDelta | None:
        self.future._refuse_endless_wait()
        try:
            return self._queue.get()
        except KeyboardInterrupt:
            self.cancel()
            raise

    async def _get_async(self) -> SampleDelta | None:
        self.future._refuse_other_process()
        try:
            return await self._queue.get_async()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _finish(self, done: Future[SampleResponse]) -> None:
        if done.cancelled():
            self._queue.note_error(FutureCancelledError("The sample was cancelled."))
        elif (error := done.future().exception()) is not None:
            self._queue.note_error(error)
        self._queue.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SampleStream {self.future!r}>"


def whole_deltas(response: SampleResponse) -> list[SampleDelta]:
    """Every sequence of a result as one delta."""
    return [
        SampleDelta(
            index=index,
            offset=0,
            tokens=sequence.tokens,
            logprobs=sequence.logprobs or [],
            topk_logprobs=sequence.topk_logprobs,
            stop_reason=sequence.stop_reason,
        )
        for index, sequence in enumerate(response.sequences)
    ]
