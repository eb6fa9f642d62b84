"""Options of the commands that use a server's data folder or database directly.

Apart from `serve`, which loads the server: these must be quick, and work without its packages.
"""

from __future__ import annotations

from pathlib import Path

import click


def default_data_dir() -> Path:
    """Returns the default data folder of a server."""
    try:
        from platformdirs import user_data_path
    except ImportError:  # it comes with the server's packages
        return Path.home() / ".local" / "share" / "tinkex"
    return user_data_path("tinkex")


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="TINKEX_DATA_DIR",
    default=default_data_dir,
    show_default="the user's data folder",
    help="Folder of models, checkpoints and the database.",
)
database_option = click.option(
    "--database-url",
    envvar="TINKEX_DATABASE_URL",
    show_default="an SQLite file in the data folder",
    help="SQLite or PostgreSQL, as an SQLAlchemy URL.",
)
signing_secret_option = click.option(
    "--signing-secret-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TINKEX_SIGNING_SECRET_FILE",
    show_default="signing-secret in the data folder, made at the first start",
    help="The secret that signs tokens and links, where the platform mounts it or it moves to "
    "another machine with its server.",
)
operator_token_option = click.option(
    "--operator-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="TINKEX_OPERATOR_TOKEN_FILE",
    show_default="operator-token in the data folder, made at the first start",
    help="The token of 'tinkex workers' and 'status --operator', where the platform mounts it.",
)
depot_option = click.option(
    "--depot",
    envvar="TINKEX_DEPOT",
    show_default="the data folder",
    help="Where checkpoints, snapshots and samplers are kept: a folder that all servers see, or "
    "an object store as s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX.",
)
