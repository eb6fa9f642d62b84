"""One of everything a tenant can own, so that requests can name it."""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from tests.server.driving import MODEL, Http


class Link(NamedTuple):
    """A signed link, without its origin and prefix."""

    path: str
    query: dict[str, str]

    @classmethod
    def of(cls, url: str) -> Link:
        parts = urlsplit(url)
        return cls(parts.path.removeprefix("/api/v1"), dict(parse_qsl(parts.query)))


@dataclass
class Things:
    """The ids of a tenant's things, and counters for new ones."""

    session: str
    model: str
    spare_model: str
    sampler: str
    future: str
    sample_future: str
    weights: str
    export: str
    archive_link: Link
    file_link: Link
    merged_link: Link
    key_id: int
    _seq: Any = field(default_factory=lambda: itertools.count(20))
    _sample: Any = field(default_factory=lambda: itertools.count(1))
    _model: Any = field(default_factory=lambda: itertools.count(10))

    def next_seq(self) -> int:
        """An unused number of the model."""
        return next(self._seq)

    def next_sample(self) -> int:
        """An unused number of the sampling session."""
        return next(self._sample)

    def next_model(self) -> int:
        """An unused number of the session, for a model or a sampler."""
        return next(self._model)

    def ids(self) -> list[str]:
        """The texts by which the things are known; long ones first, for some hold others."""
        names = ["session", "model", "spare_model", "sampler", "future", "sample_future"]
        found = [getattr(self, name) for name in names] + [self.archive_link.path]
        return sorted([*found, self.file_link.path.split("/")[2]], key=len, reverse=True)

    @classmethod
    def make(cls, http: Http) -> Things:
        """Everything, made through the server's own routes."""
        session = http.session()
        model, spare = http.model(session, 0), http.model(session, 1)
        future = http.step(model, 1)["request_id"]
        http.result(future)
        saved = http.post("save_weights", {"model_id": model, "path": "mine", "seq_id": 2})
        http.result(saved["request_id"])
        export = {"model_id": model, "path": "export", "seq_id": 3}
        http.result(http.post("save_weights_external", export)["request_id"])
        sampler = http.post(
            "create_sampling_session",
            {"session_id": session, "sampling_session_seq_id": 0, "base_model": MODEL},
        )["sampling_session_id"]
        sample = {
            "sampling_session_id": sampler,
            "seq_id": 0,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2]}]},
            "sampling_params": {"max_tokens": 2},
        }
        run = f"training_runs/{model}/checkpoints"
        archive = http.call("GET", f"{run}/weights/mine/archive")
        files = http.get(f"{run}/external_weights/export/external_weights_urls")["urls"]
        return cls(
            session=session,
            model=model,
            spare_model=spare,
            sampler=sampler,
            future=future,
            sample_future=http.post("asample", sample)["request_id"],
            weights="mine",
            export="export",
            archive_link=Link.of(archive.headers["location"]),
            file_link=Link.of(next(iter(files.values()))),
            merged_link=_merged(Link.of(archive.headers["location"])),
            key_id=_spare_key(http),
        )

    @classmethod
    def of_nobody(cls) -> Things:
        """Names of the same form behind which there is nothing."""
        session = str(uuid.uuid4())
        query = {"expires": "9" * 10, "signature": "0" * 64}
        return cls(
            session=session,
            model=f"{session}:train:0",
            spare_model=f"{session}:train:1",
            sampler=f"{session}:sample:0",
            future=uuid.uuid4().hex,
            sample_future=uuid.uuid4().hex,
            weights="mine",
            export="export",
            archive_link=Link(f"/download/archive/{uuid.uuid4().hex}", query),
            file_link=Link(f"/download/{uuid.uuid4().hex}/adapter_config.json", query),
            merged_link=Link(f"/download/merged/{uuid.uuid4().hex}/config.json", query),
            key_id=999_999_999,
        )


def _merged(archive: Link) -> Link:
    """A link to a file of the merged model. The null engine's models have no files to merge, so
    the server signs none: this has the signature of another link."""
    return Link(f"/download/merged/{archive.path.rpartition('/')[2]}/config.json", archive.query)


def _spare_key(http: Http) -> int:
    """The id of a key of the tenant that is not the one it uses."""
    spare = [each for each in http.get("keys")["keys"] if not each["is_this_key"]]
    made = spare[0] if spare else http.post("keys", {"name": "spare"})
    return int(made["key_id"])
