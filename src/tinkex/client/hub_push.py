"""`ServiceClient.push_to_hub`: from saved weights to a PEFT adapter on the Hugging Face Hub."""

from __future__ import annotations

import asyncio
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tinkex.client.call_errors import errors_in_futures
from tinkex.client.futures import Future
from tinkex.client.hub_upload import HubUpload, check_adapter, is_repository, open_hub
from tinkex.client.model_creation import create_from_state
from tinkex.client.rest import RestClient
from tinkex.client.shared_session import Holder
from tinkex.errors import TinkexError, ValidationError
from tinkex.wire.paths import TinkerPath

__all__ = ["HubPush"]

EXPORT_LIFE_S = 3600
log = logging.getLogger("tinkex")


@errors_in_futures
class HubPush:
    """What `tinkex checkpoint push-hf` does, for programs."""

    _holder: Holder

    def push_to_hub(
        self,
        path: str,
        repo: str | None = None,
        *,
        public: bool = False,
        revision: str | None = None,
        commit_message: str | None = None,
        create_pr: bool = False,
        allow_patterns: Sequence[str] | None = None,
        ignore_patterns: Sequence[str] | None = None,
        model_card: bool = True,
        hf_token: str | None = None,
        hub_url: str | None = None,
    ) -> Future[str]:
        """Uploads saved weights to the Hugging Face Hub as a PEFT adapter; gives the commit's URL.

        Weights that are no export are exported first. Needs the package huggingface_hub.

        Args:
            path: The weights, as `tinker://RUN/KIND/NAME`.
            repo: The repository, as `OWNER/NAME`; without one it is yours, named after base model
                and run, and has a branch for each checkpoint.
            public: Whether a new repository is public.
            revision: The branch to commit to.
            commit_message: Words of your own for the commit.
            create_pr: Proposes the commit as a pull request.
            allow_patterns: Only files whose names fit one of these.
            ignore_patterns: No files whose names fit one of these.
            model_card: Whether a README.md is written.
            hf_token: The hub's token; without one that of `hf auth login`.
            hub_url: Another hub.

        Example: `service.push_to_hub(path, "me/my-adapter").result()`.

        Raises:
            ValidationError: the path or the repository's name is none, huggingface_hub is missing,
                or the checkpoint is no adapter.
            APIStatusError: the hub, or the server, refuses.
        """
        parsed = TinkerPath.parse(path)
        if repo is not None and not is_repository(repo):
            raise ValidationError(f"{repo!r} is no repository such as me/my-adapter.")
        upload = HubUpload(
            repo=repo,
            is_public=public,
            revision=revision,
            commit_message=commit_message,
            is_pull_request=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            has_card=model_card,
        )
        return self._holder.submit(self._push(parsed, upload, hf_token, hub_url))

    async def push_to_hub_async(
        self,
        path: str,
        repo: str | None = None,
        *,
        public: bool = False,
        revision: str | None = None,
        commit_message: str | None = None,
        create_pr: bool = False,
        allow_patterns: Sequence[str] | None = None,
        ignore_patterns: Sequence[str] | None = None,
        model_card: bool = True,
        hf_token: str | None = None,
        hub_url: str | None = None,
    ) -> str:
        """`push_to_hub`, awaited."""
        return await self.push_to_hub(
            path,
            repo,
            public=public,
            revision=revision,
            commit_message=commit_message,
            create_pr=create_pr,
            allow_patterns=allow_patterns,
            ignore_patterns=ignore_patterns,
            model_card=model_card,
            hf_token=hf_token,
            hub_url=hub_url,
        )

    async def _push(
        self, path: TinkerPath, upload: HubUpload, token: str | None, hub_url: str | None
    ) -> str:
        hub = await asyncio.to_thread(open_hub, hub_url, token)
        rest = RestClient(self._holder)
        base_model = (await rest.get_weights_info_by_tinker_path(str(path))).base_model
        with tempfile.TemporaryDirectory(prefix="tinkex-") as folder:
            files = Path(folder) / "adapter"
            async with self._exported(path, rest) as exported:
                await rest.download_checkpoint(exported, files)

            def send() -> str:
                check_adapter(files)
                return upload.named(hub, path, base_model).run(hub, files, path, base_model).url

            return await asyncio.to_thread(send)

    @asynccontextmanager
    async def _exported(self, path: TinkerPath, rest: RestClient) -> AsyncIterator[str]:
        """An exported form of the checkpoint; what is made for it is removed afterwards."""
        if path.kind == "external_weights":
            yield str(path)
            return
        session = await self._holder.session()
        training = await create_from_state(
            session, str(path), None, None, None, None, resumes=False
        )
        exported: str | None = None
        try:
            name = f"push-{secrets.token_hex(4)}"
            saved = await training.save_weights_external(name, ttl_seconds=EXPORT_LIFE_S)
            exported = saved.path
            yield exported
        finally:
            try:
                if exported is not None:
                    await rest.delete_checkpoint_from_tinker_path(exported)
                await training.unload_model_future()
            except TinkexError as error:
                log.warning("what was made for an upload stays until it expires: %s", error.message)
