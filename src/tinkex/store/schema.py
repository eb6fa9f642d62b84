"""The tables. Times are seconds since the epoch; ids are opaque text made by this server.

Times that ages are measured by are the steady clock's (see `clock`): of operations, samples,
results and sampling sessions, heartbeats and ends of sessions. Dates that people see are the wall
clock's. Times of leases are those of the database's own clock, which all servers share.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()

_BigId = BigInteger().with_variant(Integer, "sqlite")

settings = Table(
    "settings",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

keys = Table(
    "keys",
    metadata,
    Column("key_id", _BigId, primary_key=True, autoincrement=True),
    Column("owner", String(128), nullable=False),
    Column("name", String(128), nullable=False),
    Column("note", Text, nullable=False, default=""),
    Column("hash", LargeBinary(32), nullable=False, unique=True),
    Column("tail", String(8), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("revoked_at", Float),
    Column("used_at", Float),  # written from time to time
)

sessions = Table(
    "sessions",
    metadata,
    Column("session_id", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("tags", Text, nullable=False),
    Column("user_metadata", Text, nullable=False),
    Column("project_id", Text),
    Column("display_name", Text),
    Column("sdk_version", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("heartbeat_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("finish_reason", String(16)),
    Column("finish_detail", Text),
    Column("trimmed_at", Float),  # when what it held was dropped, long after its end
    Index("sessions_by_owner", "owner", "created_at"),
)
sessions_open = Index(
    "sessions_open",
    sessions.c.owner,
    sqlite_where=sessions.c.finished_at.is_(None),
    postgresql_where=sessions.c.finished_at.is_(None),
)

models = Table(
    "models",
    metadata,
    Column("model_id", String(128), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("session_id", String(64), nullable=False),
    Column("base_model", Text, nullable=False),  # the name in the request
    Column("engine_model", Text, nullable=False),  # the name the engine holds it under
    Column("spec", Text, nullable=False),
    Column("optimizer_config", Text, nullable=False),
    Column("user_metadata", Text),
    # creating, ready, failed, unloaded, imported, ended
    Column("state", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("last_request_at", Float, nullable=False),
    Column("snapshot_seq", Integer),
    Column("snapshot_folder", String(64)),
    Column("snapshot_bytes", BigInteger),
    Column("trimmed_seq", Integer),  # operations up to this number are no longer in the log
    Column("num_tokens", _BigId, nullable=False, default=0),
    Column("num_steps", _BigId, nullable=False, default=0),
    Index("models_by_owner", "owner", "created_at"),
    Index("models_by_session", "session_id"),
)
models_on_disk = Index(
    "models_on_disk",
    models.c.owner,
    models.c.snapshot_bytes,
    sqlite_where=models.c.snapshot_bytes.is_not(None),
    postgresql_where=models.c.snapshot_bytes.is_not(None),
)

operations = Table(
    "operations",
    metadata,
    Column("number", _BigId, primary_key=True, autoincrement=True),
    Column("request_id", String(64), nullable=False, unique=True),
    Column("owner", String(128), nullable=False),
    Column("model_id", String(128), nullable=False),
    Column("seq_id", Integer, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("body", LargeBinary),
    Column("body_hash", LargeBinary(32), nullable=False),
    Column("cost", Integer, nullable=False),
    Column("state", String(16), nullable=False),  # queued, done, failed, refused, skipped
    Column("created_at", Float, nullable=False),
    UniqueConstraint("model_id", "seq_id", name="operations_in_order"),
    Index("operations_by_state", "state"),
)

results = Table(
    "results",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("encoding", String(8), nullable=False),  # json, proto, error
    Column("body", LargeBinary, nullable=False),
    Column("size_bytes", Integer),
    Column("created_at", Float, nullable=False),
    Index("results_by_owner_and_age", "owner", "created_at", "size_bytes"),
)

sampling_sessions = Table(
    "sampling_sessions",
    metadata,
    Column("sampling_session_id", String(128), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("session_id", String(64), nullable=False),
    Column("base_model", Text, nullable=False),
    Column("engine_model", Text, nullable=False),
    Column("model_path", Text),
    Column("checkpoint_id", String(64)),  # a saved sampler
    Column("model_id", String(128)),  # an ephemeral one: whose snapshot it is
    Column("folder", String(64)),  # and where its weights lie once written
    Column("size_bytes", BigInteger),  # and how large they are there
    Column("num_clients", Integer, nullable=False, default=1),
    Column("created_at", Float, nullable=False),
    Column("used_at", Float),  # written from time to time
    Column("freed_at", Float),
    Index("sampling_sessions_by_session", "session_id"),
)
samplers_on_disk = Index(
    "samplers_on_disk",
    sampling_sessions.c.owner,
    sampling_sessions.c.size_bytes,
    sqlite_where=sampling_sessions.c.size_bytes.is_not(None),
    postgresql_where=sampling_sessions.c.size_bytes.is_not(None),
)

samples = Table(
    "samples",
    metadata,
    Column("request_id", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("sampling_session_id", String(128), nullable=False),
    Column("seq_id", BigInteger, nullable=False),
    Column("body", LargeBinary),
    Column("body_hash", LargeBinary(32), nullable=False),
    Column("num_samples", Integer, nullable=False),
    Column("cost", Integer, nullable=False),
    Column("state", String(16), nullable=False),  # queued, done, failed
    Column("completion", BigInteger),  # its place in the order of completions
    Column("created_at", Float, nullable=False),
    UniqueConstraint("sampling_session_id", "seq_id", name="samples_once"),
    Index("samples_by_state", "state"),
    Index("samples_by_completion", "sampling_session_id", "completion"),
    Index("samples_by_order", "completion"),
)

custom_losses = Table(
    "custom_losses",
    metadata,
    Column("loss_id", String(64), primary_key=True),
    Column("request_id", String(64), nullable=False, unique=True),
    Column("owner", String(128), nullable=False),
    Column("session_id", String(64), nullable=False),
    Column("seq_id", BigInteger, nullable=False),
    Column("name", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),  # what it takes and does
    Column("body_hash", LargeBinary(32), nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("created_at", Float, nullable=False),
    UniqueConstraint("session_id", "seq_id", name="custom_losses_once"),
    Index("custom_losses_by_owner", "owner", "size_bytes"),
)

sample_marks = Table(
    "sample_marks",
    metadata,
    Column("sampling_session_id", String(128), primary_key=True),
    Column("clone", BigInteger, primary_key=True, autoincrement=False),
    Column("trimmed_seq", BigInteger, nullable=False),  # rows up to this number are gone
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("checkpoint_id", String(64), primary_key=True),  # also its folder's name
    Column("owner", String(128), nullable=False),
    Column("model_id", String(128), nullable=False),
    Column("kind", String(32), nullable=False),  # weights, sampler_weights, external_weights
    Column("name", String(160), nullable=False),
    Column("base_model", Text, nullable=False),
    Column("engine_model", Text, nullable=False),
    Column("spec", Text, nullable=False),
    Column("optimizer_config", Text, nullable=False),
    Column("user_metadata", Text),
    Column("size_bytes", BigInteger, nullable=False),
    Column("digest", String(64)),  # of the list of its files, which has their hashes
    Column("is_public", Boolean, nullable=False, default=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    UniqueConstraint("model_id", "kind", "name", name="checkpoints_by_name"),
    Index("checkpoints_by_owner", "owner", "created_at"),
)
deletions = Table(
    "deletions",
    metadata,
    Column("path", String(512), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("deleted_at", Float, nullable=False),
)
leases = Table(
    "leases",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("epoch", BigInteger, nullable=False),  # raised each time another server takes it
    Column("store_id", String(32), nullable=False),  # tells this database from every other
    Column("holder", String(32)),
    Column("host", Text),
    Column("pid", Integer),
    Column("since", Float),  # this and the next by the clock of the database
    Column("expires_at", Float, nullable=False),
)
checkpoints_on_disk = Index("checkpoints_on_disk", checkpoints.c.owner, checkpoints.c.size_bytes)
