"""SamplingClient: samples from a base model or from saved weights.

Sampling is not retried by itself: an error comes back at once and the caller decides, unless a
RetryPolicy was given. A 429 delays the tenant's samples by the server's `Retry-After`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import weakref
from typing import Any, Literal, overload

import msgspec

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.connection import Connection
from tinkex.client.futures import Future
from tinkex.client.polling import Queue
from tinkex.client.queue_watch import QueueObserver
from tinkex.client.retry import RetryPolicy
from tinkex.client.runtime import Runtime, default_runtime
from tinkex.client.sample_checks import check_prompt, checked_count
from tinkex.client.sample_sending import SampleSender
from tinkex.client.sample_stream import DeltaQueue, SampleStream
from tinkex.client.sampler_facts import SamplerFacts
from tinkex.client.sampler_joining import join_sampler
from tinkex.client.sampling_extensions import check_announced
from tinkex.client.session import Session
from tinkex.config import Config
from tinkex.errors import APIResponseValidationError, TinkexError
from tinkex.types._extensions import SAMPLING_STREAM
from tinkex.types.model_input import ModelInput
from tinkex.types.requests import SampleRequest
from tinkex.types.sampling import SampleResponse, SamplingParams
from tinkex.types.tensor import TensorData
from tinkex.wire import json as wire_json

_client_numbers = itertools.count()


@errors_in_futures
class SamplingClient(SamplerFacts):
    """Samples from one set of weights.

    ```python
    sampler = service.create_sampling_client(base_model="smollm2-135m")
    answer = sampler.sample(ModelInput.from_ints([1, 2, 3]), 1, SamplingParams(max_tokens=16))
    print(answer.result().sequences[0].tokens)
    ```
    """

    def __init__(
        self,
        session: Session,
        sampling_session_id: str,
        *,
        retry: RetryPolicy | None = None,
        record_stability_info: bool = False,
        clone_id: int = 0,
    ) -> None:
        self.sampling_session_id = sampling_session_id
        self.queue_observer: QueueObserver | None = None
        """Called when the server says that this sampler is paused, or runs again."""
        self._retry = retry
        self._record_stability_info = record_stability_info
        self._base_model: str | None = None
        self._bind(session, clone_id)

    def _bind(self, session: Session, clone_id: int) -> None:
        """Everything that belongs to this process and its runtime."""
        self.client_id = f"{self.sampling_session_id}#{next(_client_numbers)}"
        self._pid = os.getpid()
        self._session = session
        self._connection: Connection = session.connection
        self._runtime: Runtime = session.connection.runtime
        self._sender = SampleSender(session, self.sampling_session_id, clone_id, self._retry)
        registry, key = self._runtime.registry, ("config", self.client_id)
        registry.put(key, self._connection.config)
        weakref.finalize(self, registry.remove, key)

    def __repr__(self) -> str:
        return f"<SamplingClient {self.sampling_session_id}>"

    # Sampling ---------------------------------------------------------------------------------

    @overload
    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        stream: Literal[False] = False,
    ) -> Future[SampleResponse]: ...

    @overload
    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        stream: Literal[True],
    ) -> SampleStream: ...

    def sample(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        stream: bool = False,
    ) -> Future[SampleResponse] | SampleStream:
        """`num_samples` continuations of a prompt, with the logprob of every sampled token.

        With `stream` their tokens can be read as they are made; on a server that does not announce
        `sampling.stream` they come at the end. Ctrl-C in a wait cancels the sample, on the server
        too.

        Args:
            prompt: What is continued.
            num_samples: How many continuations.
            sampling_params: Length, temperature, stops and so on.
            include_prompt_logprobs: Whether the prompt's own tokens are scored.
            topk_prompt_logprobs: So many likeliest tokens at each place of the prompt.
            topk_sample_logprobs: So many likeliest tokens at each sampled place.
            target_prompt_logprobs: Token ids to score at each place of the prompt but the first.
            prompt_alt_tokens_k: So many other tokens at each place of the prompt.
            prompt_logprobs_last_n: Scores only so many tokens at the prompt's end.
            stream: Gives a SampleStream at once, from which tokens are read as they are made.

        Example: `sampler.sample(prompt, 1, types.SamplingParams(max_tokens=16)).result()`.

        Raises:
            ValidationError: a number makes no sense, or the server does not know a parameter.
        """
        try:
            check_prompt(prompt)
            self._rejoin_after_fork()
            self._session.check_open()
            check_announced(sampling_params, self._connection.flags.extensions)
            request = SampleRequest(
                num_samples=checked_count(num_samples),
                prompt=prompt,
                sampling_params=sampling_params,
                sampling_session_id=self.sampling_session_id,
                seq_id=next(self._sender.seq_ids),
                prompt_logprobs=include_prompt_logprobs,
                topk_prompt_logprobs=topk_prompt_logprobs,
                topk_sample_logprobs=topk_sample_logprobs,
                target_prompt_logprobs=target_prompt_logprobs,
                prompt_alt_tokens_k=prompt_alt_tokens_k,
                prompt_logprobs_last_n=prompt_logprobs_last_n,
                record_stability_info=self._record_stability_info,
            )
        except TinkexError as error:
            if stream:
                return SampleStream.failed(error)
            raise
        if stream:
            return self._stream(request)
        work = self._sender.sample(request, wire_json.encode(request), self._on_queue_state)
        return self._runtime.submit(work, cancels_on_interrupt=True)

    def _stream(self, request: SampleRequest) -> SampleStream:
        queue, send = DeltaQueue(), self._sender.sample_at_once
        if SAMPLING_STREAM in self._connection.flags.extensions:
            request, send = msgspec.structs.replace(request, stream=True), self._sender.stream
        work = send(request, wire_json.encode(request), self._on_queue_state, queue)
        return SampleStream(self._runtime.submit(work, cancels_on_interrupt=True), queue)

    @overload
    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        stream: Literal[False] = False,
    ) -> SampleResponse: ...

    @overload
    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        stream: Literal[True],
    ) -> SampleStream: ...

    async def sample_async(
        self,
        prompt: ModelInput,
        num_samples: int,
        sampling_params: SamplingParams,
        include_prompt_logprobs: bool = False,
        topk_prompt_logprobs: int = 0,
        topk_sample_logprobs: int = 0,
        target_prompt_logprobs: TensorData | None = None,
        prompt_alt_tokens_k: int = 0,
        prompt_logprobs_last_n: int | None = None,
        *,
        stream: bool = False,
    ) -> SampleResponse | SampleStream:
        """`sample`, awaited; cancelling the awaiting task cancels the sample. With `stream` the
        SampleStream comes at once."""
        scores = (
            include_prompt_logprobs,
            topk_prompt_logprobs,
            topk_sample_logprobs,
            target_prompt_logprobs,
            prompt_alt_tokens_k,
            prompt_logprobs_last_n,
        )
        if stream:
            return self.sample(prompt, num_samples, sampling_params, *scores, stream=True)
        handle = self.sample(prompt, num_samples, sampling_params, *scores)
        try:
            return await handle
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def compute_logprobs(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> Future[list[float | None]]:
        """The logprob of each prompt token given those before it; None for the first.

        Args:
            prompt: The tokens to score.
            prompt_logprobs_last_n: Scores only so many at the end.

        Example: `sampler.compute_logprobs(prompt).result()`.
        """

        async def logprobs() -> list[float | None]:
            try:
                scores = (await sampled).prompt_logprobs
            except asyncio.CancelledError:
                sampled.cancel()
                raise
            if scores is None:
                raise APIResponseValidationError("The server sent no prompt logprobs.")
            return scores

        sampled = self.sample(
            prompt,
            1,
            SamplingParams(max_tokens=1),
            include_prompt_logprobs=True,
            prompt_logprobs_last_n=prompt_logprobs_last_n,
        )
        return self._runtime.submit(logprobs(), cancels_on_interrupt=True)

    async def compute_logprobs_async(
        self, prompt: ModelInput, prompt_logprobs_last_n: int | None = None
    ) -> list[float | None]:
        """`compute_logprobs`, awaited; cancelling the awaiting task cancels the request."""
        handle = self.compute_logprobs(prompt, prompt_logprobs_last_n)
        try:
            return await handle
        except asyncio.CancelledError:
            handle.cancel()
            raise

    def _on_queue_state(self, queue: Queue) -> None:
        self.on_queue_state_change(queue.state, queue.reason)
        if self.queue_observer is not None:
            self.queue_observer(queue)

    def on_queue_state_change(self, queue_state: str, queue_state_reason: str | None) -> None:
        """Called on every change of the queue's state; override it to handle them.

        Args:
            queue_state: `active`, `paused_capacity` or `paused_rate_limit`.
            queue_state_reason: Why, in the server's words.
        """

    # Other processes ------------------------------------------------------------------------------

    def get_sampler_handle(self) -> str:
        """A text from which another process can make a client of this sampler; holds no key.

        Example: `sampler.get_sampler_handle()`.
        """
        from tinkex.client.sampler_handle import SamplerHandle

        return SamplerHandle(
            base_url=self._connection.config.base_url,
            session_id=self._session.session_id,
            sampling_session_id=self.sampling_session_id,
            retry=self._retry,
            record_stability_info=self._record_stability_info,
        ).to_text()

    @staticmethod
    def from_sampler_handle(
        handle: str,
        *,
        api_key: str | None = None,
        config: Config | None = None,
        runtime: Runtime | None = None,
    ) -> SamplingClient:
        """The client a handle stands for, with this process's own credentials.

        Args:
            handle: What `get_sampler_handle` gave.
            api_key: This process's key; by default that of its environment.
            config: All settings, in place of the handle's address and `api_key`.
            runtime: The thread that does the work; by default the one all clients share.

        Example: `SamplingClient.from_sampler_handle(handle, config=config)`.

        Raises:
            ValidationError: the text is not a sampler handle.
        """
        from tinkex.client.sampler_handle import SamplerHandle

        read = SamplerHandle.from_text(handle)
        config = config or Config(base_url=read.base_url, api_key=api_key)
        return _restore(
            config,
            read.session_id,
            read.sampling_session_id,
            read.retry,
            read.record_stability_info,
            runtime,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (
            self._connection.config,
            self._session.session_id,
            self.sampling_session_id,
            self._retry,
            self._record_stability_info,
        )

    def _rejoin_after_fork(self) -> None:
        if self._pid != os.getpid():
            session, clone_id = join_sampler(
                self._runtime,
                self._connection.config,
                self._session.session_id,
                self.sampling_session_id,
            )
            self._bind(session, clone_id)


def _restore(
    config: Config,
    session_id: str,
    sampling_session_id: str,
    retry: RetryPolicy | None,
    record_stability_info: bool,
    runtime: Runtime | None = None,
) -> SamplingClient:
    runtime = runtime or default_runtime()
    session, clone_id = join_sampler(runtime, config, session_id, sampling_session_id)
    return SamplingClient(
        session,
        sampling_session_id,
        retry=retry,
        record_stability_info=record_stability_info,
        clone_id=clone_id,
    )
