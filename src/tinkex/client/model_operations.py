"""The numbered requests of one model: encoded at the call, sent in order, collected by Futures.

A request takes its place in the model's order in the caller's thread and is sent even if its
Future is cancelled: those behind it were written for the state it leaves.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from tinkex.client import chunking
from tinkex.client.compression import compressed
from tinkex.client.futures import Future
from tinkex.client.ordering import Order, SendSlot
from tinkex.client.poller import Promise
from tinkex.client.polling import Queue
from tinkex.client.queue_watch import QueueObserver
from tinkex.client.session import Session
from tinkex.client.transport import PROTOBUF
from tinkex.errors import APIResponseValidationError, ValidationError, WouldDeadlockError
from tinkex.types.datum import Datum
from tinkex.types.training import ForwardBackwardOutput, LossFnType, ModelID
from tinkex.wire import json as wire_json
from tinkex.wire import protobuf

T = TypeVar("T")
LossConfig = Mapping[str, float | str]
Frame = Callable[..., list[bytes]]


class EncodedBatch(NamedTuple):
    """The chunks of a batch, and what frames each with its number."""

    encoded: list[list[bytes]]
    frame: Frame
    request_type: str


class ModelWork:
    """The numbered requests of a TrainingClient, and their order."""

    def __init__(self, session: Session, model_id: ModelID) -> None:
        self._model_id = model_id
        self._session = session
        self._connection = session.connection
        self._runtime = session.connection.runtime
        self.order = Order()
        self.loss_threads: set[int] = set()
        """Threads that run a custom loss of this model."""
        self.queue_observer: QueueObserver | None = None

    def run_batch(
        self,
        data: Sequence[Datum],
        loss_fn: LossFnType,
        loss_fn_config: LossConfig | None,
        *,
        forward_only: bool,
    ) -> Future[ForwardBackwardOutput]:
        """Sends a batch in as many requests as the server's limits require."""
        self.check_open()
        batch = self.encode(data, loss_fn, loss_fn_config, forward_only=forward_only)
        slot = self.order.take()
        return self._runtime.submit_sent(self.send_batch(slot, batch), self.collect_batch)

    def check_open(self) -> None:
        """Refuses work that could never be done.

        Raises:
            ClientClosedError: the session is over.
            WouldDeadlockError: a custom loss calls the model that waits for its gradient.
        """
        self._session.check_open()
        if threading.get_ident() in self.loss_threads:
            raise WouldDeadlockError(
                "A custom loss cannot call its own model, which waits for the gradient.",
                hint="Call it before forward_backward_custom, or use another TrainingClient.",
            )

    def encode(
        self,
        data: Sequence[Datum],
        loss_fn: LossFnType,
        loss_fn_config: LossConfig | None,
        *,
        forward_only: bool,
    ) -> EncodedBatch:
        """The batch as requests that lack only their numbers.

        Raises:
            ValidationError: something in it cannot be sent.
        """
        _check_config(loss_fn_config or {})
        flags = self._connection.flags
        chunks = chunking.split(
            data,
            max_examples=flags.fwdbwd_max_chunk_len,
            max_bytes=flags.fwdbwd_max_chunk_bytes_count,
        )
        frame = functools.partial(
            protobuf.frame_forward_backward_request,
            model_id=self._model_id,
            loss_fn=loss_fn,
            loss_fn_config=loss_fn_config,
            forward_only=forward_only,
        )
        encoded = [protobuf.encode_datums(chunk) for chunk in chunks]
        frame(encoded[0], seq_id=0)  # what cannot be written must not take a place in the order
        return EncodedBatch(encoded, frame, "Forward" if forward_only else "ForwardBackward")

    async def send_batch(self, slot: SendSlot, batch: EncodedBatch) -> list[Promise]:
        """Chunks 2..N side by side, and only when the server has them all, chunk 1.

        Every chunk is sent even if another was refused: a number that never arrives would stop
        the model's order.
        """
        try:
            await slot.wait()
            first = slot.numbers(len(batch.encoded))
            bodies = [
                batch.frame(parts, seq_id=number)
                for number, parts in enumerate(batch.encoded, start=first)
            ]
            later = [
                self._send_chunk(first + i, body, batch.request_type)
                for i, body in enumerate(bodies)
                if i > 0
            ]
            results = await self._together(later)
            results = [
                *await asyncio.gather(
                    self._send_chunk(first, bodies[0], batch.request_type), return_exceptions=True
                ),
                *results,
            ]
        finally:
            slot.release()
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, Promise)]

    async def _together(
        self, sends: Sequence[Coroutine[Any, Any, Promise]]
    ) -> list[Promise | BaseException]:
        if self._connection.flags.parallel_fwdbwd_chunks:
            return list(await asyncio.gather(*sends, return_exceptions=True))
        results: list[Promise | BaseException] = []
        for send in sends:
            results += await asyncio.gather(send, return_exceptions=True)
        return results

    async def _send_chunk(self, seq_id: int, body: Sequence[bytes], request_type: str) -> Promise:
        size = sum(map(len, body))
        async with self._connection.train_budget.hold(size):
            headers: dict[str, str] = {}
            if self._connection.flags.proto_compress_fwdbwd:
                body, headers = compressed(body)
            promise, _ = await self._connection.promise(
                "/forward_backward",
                body,
                request_type=request_type,
                content_type=PROTOBUF,
                headers=headers,
                is_protobuf=True,
                about=self._about(seq_id),
            )
        return promise

    async def collect_batch(self, sent: Awaitable[list[Promise]]) -> ForwardBackwardOutput:
        """The result of a batch that is being sent."""
        return await self.collect_chunks(await sent)

    async def collect_chunks(self, promises: Sequence[Promise]) -> ForwardBackwardOutput:
        """The result of the whole batch, once all its chunks have theirs."""
        outputs = await _all_or_none([self._fetch_output(promise) for promise in promises])
        return chunking.combine(outputs)

    async def _fetch_output(self, promise: Promise) -> ForwardBackwardOutput:
        answer = await self._connection.fetch(promise, self._on_queue_state)
        if not answer.is_protobuf:
            raise APIResponseValidationError(
                "The result of a training batch came as JSON; this client reads protobuf.",
                request_id=promise.request_id,
            )
        return protobuf.decode_forward_backward_output(answer.body)

    def run(
        self,
        path: str,
        request: msgspec.Struct,
        type_: type[T],
        request_type: str,
        *,
        is_numbered: bool = True,
    ) -> Future[T]:
        """Numbers, sends and collects one JSON request; one without a number keeps its place."""
        self.check_open()
        wire_json.encode(request)  # what cannot be written must not take a place in the order
        slot = self.order.take()
        send = self._send(slot, path, request, request_type, is_numbered=is_numbered)
        return self._runtime.submit_sent(send, lambda sent: self._collect(sent, type_))

    async def _send(
        self,
        slot: SendSlot,
        path: str,
        request: msgspec.Struct,
        request_type: str,
        *,
        is_numbered: bool,
    ) -> Promise:
        try:
            await slot.wait()
            seq_id = slot.numbers() if is_numbered else None
            if seq_id is not None:
                request = msgspec.structs.replace(request, seq_id=seq_id)
            body = wire_json.encode(request)
            promise, _ = await self._connection.promise(
                path, (body,), request_type=request_type, about=self._about(seq_id)
            )
        finally:
            slot.release()
        return promise

    async def _collect(self, sent: Awaitable[Promise], type_: type[T]) -> T:
        answer = await self._connection.fetch(await sent, self._on_queue_state)
        return wire_json.decode(answer.body, type_)

    def _on_queue_state(self, queue: Queue) -> None:
        if self.queue_observer is not None:
            self.queue_observer(queue)

    def _about(self, seq_id: int | None) -> dict[str, Any]:
        about = {"session_id": self._session.session_id, "model_id": self._model_id}
        return about if seq_id is None else {**about, "seq_id": seq_id}


def _check_config(config: LossConfig) -> None:
    for name, value in config.items():
        if isinstance(value, str):
            continue
        try:
            float(value)
        except (TypeError, ValueError) as error:
            raise ValidationError(
                f"loss_fn_config[{name!r}] must be a number or a text, not {type(value).__name__}."
            ) from error


async def _all_or_none(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results; the first error ends the waits for the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
