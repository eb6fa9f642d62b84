"""What a TrainingClient saves of its model, and loads onto it."""

from __future__ import annotations

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.client.model_operations import ModelWork
from tinkex.types.requests import (
    LoadWeightsRequest,
    SaveWeightsExternalRequest,
    SaveWeightsForSamplerRequest,
    SaveWeightsRequest,
)
from tinkex.types.training import (
    LoadWeightsResponse,
    ModelID,
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)

__all__ = ["TrainingStates"]


@errors_in_futures
class TrainingStates:
    """The `save_*` and `load_*` calls of a TrainingClient."""

    model_id: ModelID
    _work: ModelWork

    def save_state(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsResponse]:
        """Saves weights and optimizer state under `name`, to go on from later.

        Args:
            name: The last part of the path; letters, digits and `-_.`.
            ttl_seconds: Seconds until it expires; None never.
            overwrite: Whether a state of this name is replaced; otherwise it is an error.
            user_metadata: Texts of your own that are kept with it.

        Example: `training.save_state("step-10", ttl_seconds=86_400).result().path`.
        """
        return self._work.run(
            "/save_weights",
            SaveWeightsRequest(
                model_id=self.model_id,
                path=name,
                ttl_seconds=ttl_seconds,
                overwrite=overwrite,
                user_metadata=user_metadata,
            ),
            SaveWeightsResponse,
            "SaveWeights",
        )

    async def save_state_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        overwrite: bool = False,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsResponse]:
        """`save_state`; await the Future it returns for the result."""
        return self.save_state(name, ttl_seconds, overwrite, user_metadata)

    def load_state(
        self, path: str, weights_access_token: str | None = None
    ) -> Future[LoadWeightsResponse]:
        """Loads saved weights onto this model; the optimizer starts afresh.

        Args:
            path: What `save_state` gave, of a run whose adapter has the same shape.
            weights_access_token: The key of another account, if the weights are that one's.

        Example: `training.load_state(state_path).result()`.
        """
        return self._load(path, weights_access_token, with_optimizer=False)

    async def load_state_async(
        self, path: str, weights_access_token: str | None = None
    ) -> Future[LoadWeightsResponse]:
        """`load_state`; await the Future it returns for the result."""
        return self.load_state(path, weights_access_token)

    def load_state_with_optimizer(
        self, path: str, weights_access_token: str | None = None
    ) -> Future[LoadWeightsResponse]:
        """Loads saved weights and the optimizer's state with them.

        Args:
            path: What `save_state` gave, of a run whose adapter has the same shape.
            weights_access_token: The key of another account, if the weights are that one's.

        Example: `training.load_state_with_optimizer(state_path).result()`.
        """
        return self._load(path, weights_access_token, with_optimizer=True)

    async def load_state_with_optimizer_async(
        self, path: str, weights_access_token: str | None = None
    ) -> Future[LoadWeightsResponse]:
        """`load_state_with_optimizer`; await the Future it returns for the result."""
        return self.load_state_with_optimizer(path, weights_access_token)

    def _load(
        self, path: str, weights_access_token: str | None, *, with_optimizer: bool
    ) -> Future[LoadWeightsResponse]:
        return self._work.run(
            "/load_weights",
            LoadWeightsRequest(
                model_id=self.model_id,
                path=path,
                optimizer=with_optimizer,
                weights_access_token=weights_access_token,
            ),
            LoadWeightsResponse,
            "LoadWeights",
        )

    def save_weights_for_sampler(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsForSamplerResponse]:
        """Saves weights to sample from under `name`; they never change afterwards.

        Args:
            name: The last part of the path.
            ttl_seconds: Seconds until it expires; None never.
            user_metadata: Texts of your own that are kept with it.

        Example: `training.save_weights_for_sampler("step-10").result().path`.
        """
        return self._work.run(
            "/save_weights_for_sampler",
            SaveWeightsForSamplerRequest(
                model_id=self.model_id,
                path=name,
                ttl_seconds=ttl_seconds,
                user_metadata=user_metadata,
            ),
            SaveWeightsForSamplerResponse,
            "SaveWeightsForSampler",
        )

    async def save_weights_for_sampler_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        user_metadata: dict[str, str] | None = None,
    ) -> Future[SaveWeightsForSamplerResponse]:
        """`save_weights_for_sampler`; await the Future it returns for the result."""
        return self.save_weights_for_sampler(name, ttl_seconds, user_metadata)

    def save_weights_external(
        self,
        name: str,
        ttl_seconds: int | None = None,
        age_encryption_recipients: list[str] | None = None,
    ) -> Future[SaveWeightsExternalResponse]:
        """Exports the weights as files to download, encrypted for the recipients if given.

        Args:
            name: The last part of the path.
            ttl_seconds: Seconds until it expires; None never.
            age_encryption_recipients: Public keys of `age` that may read the files; None leaves
                them plain.

        Example: `training.save_weights_external("export").result().path`.
        """
        return self._work.run(
            "/save_weights_external",
            SaveWeightsExternalRequest(
                model_id=self.model_id,
                path=name,
                ttl_seconds=ttl_seconds,
                age_encryption_recipients=age_encryption_recipients,
            ),
            SaveWeightsExternalResponse,
            "SaveWeightsExternal",
        )

    async def save_weights_external_async(
        self,
        name: str,
        ttl_seconds: int | None = None,
        age_encryption_recipients: list[str] | None = None,
    ) -> Future[SaveWeightsExternalResponse]:
        """`save_weights_external`; await the Future it returns for the result."""
        return self.save_weights_external(name, ttl_seconds, age_encryption_recipients)
