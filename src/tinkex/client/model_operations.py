"""The numbered requests of one model: encoded at the call, sent in order, collected by Futures.

A request takes its place in the model's order in the caller's thread and is sent even if its
Future is cancelled: a number that never reaches the server would stop everything behind it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

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
from tinkex.errors import APIResponseValidationError, ValidationError
from tinkex.types.datum import Datum
from tinkex.types.training import ForwardBackwardOutput, LossFnType, ModelID
from tinkex.wire import json as wire_json
from tinkex.wire import protobuf

T = TypeVar("T")
LossConfig = Mapping[str, float | str]


class ModelWork:
    """What a TrainingClient asks of its model, and the order it asks in."""

    def __init__(self, session: Session, model_id: ModelID) -> None:
        self._model_id = model_id
        self._session = session
        self._connection = session.connection
        self._runtime = session.connection.runtime
        self._order = Order()
        self.queue_observer: QueueObserver | None = None

    def run_batch(
        self,
        data: Sequence[Datum],
        loss_fn: LossFnType,
        loss_fn_config: LossConfig | None,
        *,
        forward_only: bool,
    ) -> Future[ForwardBackwardOutput]:
        """Sends a batch in as many requests as the server's limits ask for."""
        self._session.check_open()
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
        first, slot = self._order.take(len(chunks))
        bodies = [frame(parts, seq_id=first + i) for i, parts in enumerate(encoded)]
        request_type = "Forward" if forward_only else "ForwardBackward"
        send = self._send_chunks(slot, first, bodies, request_type)
        return self._runtime.submit_sent(send, self._collect_chunks)

    async def _send_chunks(
        self, slot: SendSlot, first: int, bodies: Sequence[Sequence[bytes]], request_type: str
    ) -> list[Promise]:
        """Chunks 2..N side by side, and only when the server has them all, chunk 1.

        Every chunk is sent even if another was refused: a number that never arrives would stop
        the model's order.
        """
        try:
            await slot.wait()
            later = [
                self._send_chunk(first + i, body, request_type)
                for i, body in enumerate(bodies)
                if i > 0
            ]
            results = await self._together(later)
            results = [
                *await asyncio.gather(
                    self._send_chunk(first, bodies[0], request_type), return_exceptions=True
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

    async def _collect_chunks(self, sent: Awaitable[list[Promise]]) -> ForwardBackwardOutput:
        promises = await sent
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
    ) -> Future[T]:
        """Numbers, sends and collects one JSON request."""
        self._session.check_open()
        wire_json.encode(request)  # what cannot be written must not take a place in the order
        seq_id, slot = self._order.take()
        body = wire_json.encode(msgspec.structs.replace(request, seq_id=seq_id))
        send = self._send(slot, seq_id, path, body, request_type)
        return self._runtime.submit_sent(send, lambda sent: self._collect(sent, type_))

    async def _send(
        self, slot: SendSlot, seq_id: int, path: str, body: bytes, request_type: str
    ) -> Promise:
        try:
            await slot.wait()
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

    def _about(self, seq_id: int) -> dict[str, Any]:
        return {
            "session_id": self._session.session_id,
            "model_id": self._model_id,
            "seq_id": seq_id,
        }


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
