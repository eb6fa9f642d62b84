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
    Column("key_id", _BigId),  # the key that made it
    Column("name", Text),
    Column("tags", Text),
    Column("root_id", String(128)),  # the first run of its chain; none if it is that
    Column("resumed_from", String(128)),  # the run whose checkpoint it was made from
    Column("first_point", _BigId),  # that run's last point at the checkpoint
    Column("series", LargeBinary),  # `run_series.SeriesHead`
    Column("logged", LargeBinary),  # `run_series.LoggedHead`
    Index("models_by_owner", "owner", "created_at"),
    Index("models_by_session", "session_id"),
)
models_by_root = Index(
    "models_by_root",
    models.c.root_id,
    sqlite_where=models.c.root_id.is_not(None),
    postgresql_where=models.c.root_id.is_not(None),
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
    Column("key_id", _BigId),
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
    Column("key_id", _BigId),
    Column("run_id", String(128)),  # the run whose weights it samples from
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
    # What the run had done when it was saved: its last point, steps and tokens.
    Column("at_point", _BigId),
    Column("at_step", _BigId),
    Column("at_tokens", _BigId),
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
    Column("store_id", String(32), nullable=False),  # identifies this database
    Column("holder", String(32)),
    Column("host", Text),
    Column("pid", Integer),
    Column("since", Float),  # this and the next by the clock of the database
    Column("expires_at", Float, nullable=False),
)
checkpoints_on_disk = Index("checkpoints_on_disk", checkpoints.c.owner, checkpoints.c.size_bytes)

run_points = Table(
    "run_points",
    metadata,
    Column("model_id", String(128), primary_key=True),
    Column("number", _BigId, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),  # `run_points.PointBody`
    sqlite_with_rowid=False,
)
usage = Table(
    "usage",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("day", Integer, primary_key=True, autoincrement=False),  # since the epoch, in UTC
    Column("key_id", _BigId, primary_key=True, autoincrement=False),  # 0: not known
    Column("run_id", String(128), primary_key=True),  # empty: no run's
    Column("tokens_trained", BigInteger, nullable=False),
    Column("tokens_sampled", BigInteger, nullable=False),
    Column("tokens_scored", BigInteger, nullable=False),
    Column("tokens_cached", BigInteger, nullable=False),
    Column("engine_s", Float, nullable=False),
    Column("bytes_kept", BigInteger, nullable=False),  # at the last count of the day
    Index("usage_by_day", "day"),
)
