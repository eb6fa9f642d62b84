"""The training clients that a ServiceClient makes: new ones, and ones that go on."""

from __future__ import annotations

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.service_futures import ServiceFutures
from tinkex.client.training import TrainingClient
from tinkex.types.optimizers import OptimizerConfig

__all__ = ["TrainingCreation"]


@errors_in_futures
class TrainingCreation(ServiceFutures):
    """The blocking and awaited forms; those that give a Future are in ServiceFutures."""

    def create_lora_training_client(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfig | None = None,
        *,
        alpha: float | None = None,
    ) -> TrainingClient:
        """A client that trains a new LoRA adapter on a base model.

        Args:
            base_model: One of the models that `get_server_capabilities` lists.
            rank: The rank of the adapter's matrices.
            seed: Makes the adapter's start repeatable.
            train_mlp: Whether the MLP layers get an adapter.
            train_attn: Whether the attention layers get one.
            train_unembed: Whether the output layer gets one.
            user_metadata: Texts of your own that are kept with the run.
            optimizer: The optimizer's kind, if it is not AdamW.
            alpha: Scales the adapter by alpha / rank; Tinkex servers take it, and without it
                use 32.

        Example: `service.create_lora_training_client("smollm2-135m", rank=8)`.

        Raises:
            ValidationError: rank or alpha is out of range, nothing would be trained, or alpha is
                given and the server does not take one.
        """
        return self.create_lora_training_client_future(
            base_model,
            rank,
            seed,
            train_mlp,
            train_attn,
            train_unembed,
            user_metadata,
            optimizer,
            alpha=alpha,
        ).result()

    async def create_lora_training_client_async(
        self,
        base_model: str,
        rank: int = 32,
        seed: int | None = None,
        train_mlp: bool = True,
        train_attn: bool = True,
        train_unembed: bool = True,
        user_metadata: dict[str, str] | None = None,
        optimizer: OptimizerConfig | None = None,
        *,
        alpha: float | None = None,
    ) -> TrainingClient:
        """`create_lora_training_client`, awaited."""
        return await self.create_lora_training_client_future(
            base_model,
            rank,
            seed,
            train_mlp,
            train_attn,
            train_unembed,
            user_metadata,
            optimizer,
            alpha=alpha,
        )

    def create_training_client_from_state(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """A client that goes on from saved weights, with a fresh optimizer.

        Args:
            path: What `TrainingClient.save_state` gave.
            base_model: Not needed: the state names its model.
            user_metadata: Texts of your own that are kept with the new run.
            weights_access_token: The key of another account, if the weights are that one's.
            optimizer: The new optimizer's kind, if it is not AdamW.

        Example: `service.create_training_client_from_state(state_path)`.
        """
        return self.create_training_client_from_state_future(
            path, base_model, user_metadata, weights_access_token, optimizer
        ).result()

    async def create_training_client_from_state_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> TrainingClient:
        """`create_training_client_from_state`, awaited."""
        return await self.create_training_client_from_state_future(
            path, base_model, user_metadata, weights_access_token, optimizer
        )

    def create_training_client_from_state_with_optimizer(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """A client that goes on exactly where a saved state stopped, optimizer and all.

        Args:
            path: What `TrainingClient.save_state` gave.
            base_model: Not needed: the state names its model.
            user_metadata: Texts of your own that are kept with the new run.
            weights_access_token: The key of another account, if the weights are that one's.

        Example: `service.create_training_client_from_state_with_optimizer(state_path)`.
        """
        return self.create_training_client_from_state_with_optimizer_future(
            path, base_model, user_metadata, weights_access_token
        ).result()

    async def create_training_client_from_state_with_optimizer_async(
        self,
        path: str,
        base_model: str | None = None,
        user_metadata: dict[str, str] | None = None,
        weights_access_token: str | None = None,
    ) -> TrainingClient:
        """`create_training_client_from_state_with_optimizer`, awaited."""
        return await self.create_training_client_from_state_with_optimizer_future(
            path, base_model, user_metadata, weights_access_token
        )
