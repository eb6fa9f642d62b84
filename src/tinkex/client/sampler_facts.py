"""What a SamplingClient can say of its sampler: base model and tokenizer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.connection import Connection
from tinkex.client.futures import Future
from tinkex.client.runtime import Runtime
from tinkex.client.transport import Call
from tinkex.tokenizers.tokenizer import load_tokenizer, resolve_tokenizer_id
from tinkex.types.session import GetSamplerResponse
from tinkex.wire import json as wire_json

if TYPE_CHECKING:
    from tinkex.tokenizers.tokenizer import Tokenizer

__all__ = ["SamplerFacts"]


@errors_in_futures
class SamplerFacts:
    """The `get_*` calls of a SamplingClient."""

    sampling_session_id: str
    _base_model: str | None
    _connection: Connection
    _runtime: Runtime

    def get_base_model(self) -> str:
        """The name of the base model that is sampled from.

        Example: `sampler.get_base_model()`.
        """
        return self.get_base_model_future().result()

    async def get_base_model_async(self) -> str:
        """`get_base_model`, awaited."""
        return await self.get_base_model_future()

    def get_base_model_future(self) -> Future[str]:
        """`get_base_model`, without waiting."""
        return self._runtime.submit(self._read_base_model())

    async def _read_base_model(self) -> str:
        if self._base_model is None:
            call = Call(method="GET", path=f"/samplers/{self.sampling_session_id}")
            answer = await self._connection.transport.request(call)
            self._base_model = wire_json.decode(answer.body, GetSamplerResponse).base_model
        return self._base_model

    def get_tokenizer(self) -> Tokenizer:
        """The tokenizer of the base model.

        Example: `sampler.get_tokenizer().encode("Once upon")`.

        Raises:
            TokenizerError: it is neither on this machine nor to be had.
        """
        return self.get_tokenizer_future().result()

    async def get_tokenizer_async(self) -> Tokenizer:
        """`get_tokenizer`, awaited."""
        return await self.get_tokenizer_future()

    def get_tokenizer_future(self) -> Future[Tokenizer]:
        """`get_tokenizer`, without waiting."""
        return self._runtime.submit(self._read_tokenizer())

    async def _read_tokenizer(self) -> Tokenizer:
        name = resolve_tokenizer_id(await self._read_base_model(), None)
        return await asyncio.to_thread(load_tokenizer, name, cache=self._runtime.tokenizers)
