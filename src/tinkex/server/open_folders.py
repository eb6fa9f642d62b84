"""Opens the folders of adapters where the config says: the data folder, a shared one, a depot.

A server deletes folders that its database does not name. So a depot belongs to one database for
good, and a server whose database names folders in a depot never starts without it.
"""

from __future__ import annotations

from pathlib import Path

from tinkex.engine.remote.handshake import FolderPlace
from tinkex.errors import ConfigError
from tinkex.files.depot_claim import CLAIM, claim_folder
from tinkex.files.errors import StorageError
from tinkex.scheduler.adapters.data_folders import DataFolders
from tinkex.server.config import ServerConfig
from tinkex.server.data_folder import usable
from tinkex.store import Database, depots

__all__ = ["folder_place", "open_folders"]


def open_folders(config: ServerConfig, db: Database) -> DataFolders:
    """The folders of the database.

    Raises:
        ConfigError: the depot cannot be used, or the folders are in another one.
    """
    if config.depot is None:
        if db.read(depots.is_depot_used):
            raise ConfigError(
                "The folders of this database are in a depot, and --depot is not given.",
                hint="Start with the --depot of the last start.",
                code="no-depot",
            )
        return DataFolders(config.data_dir)
    database_id = db.write(depots.database_id)
    if "://" in config.depot:
        folders = _open_object_store(config, config.depot, database_id)
    else:
        folders = _open_shared_folder(Path(config.depot), config.data_dir, database_id)
    db.write(depots.record_depot_used)
    return folders


def folder_place(config: ServerConfig, db: Database, folders: DataFolders) -> FolderPlace:
    """Where workers on other machines find the folders.

    Without an object store they must see the folder itself; a file in it proves that they do.
    """
    database_id = db.write(depots.database_id)
    if config.depot is not None and "://" in config.depot:
        return FolderPlace(
            root="",
            depot=config.depot,
            database_id=database_id,
            silence_s=config.engine_hang_s,
        )
    root = folders.root.resolve()
    if config.depot is None:  # a depot is claimed when it is opened
        with usable(root):
            (root / CLAIM).write_text(database_id)
    return FolderPlace(
        root=str(root), depot=None, database_id=database_id, silence_s=config.engine_hang_s
    )


def _open_shared_folder(root: Path, data_dir: Path, database_id: str) -> DataFolders:
    try:
        root.mkdir(parents=True, exist_ok=True)
        _check_claim(claim_folder(root, database_id), database_id, str(root))
    except OSError as error:
        raise ConfigError(
            f"The depot {root} cannot be used: {error.strerror}.",
            hint="Give a folder that this server may write to.",
            code="bad-depot",
        ) from error
    kinds = [kind for kind in DataFolders.KINDS if any((data_dir / kind).glob("[0-9a-f]*"))]
    if kinds and root.resolve() != data_dir.resolve():
        raise ConfigError(
            f"{data_dir} still holds {', '.join(kinds)} from the time before the depot {root}.",
            hint=f"Move them: mv {data_dir}/{kinds[0]}/* {root}/{kinds[0]}/",
            code="bad-depot",
        )
    return DataFolders(root)


def _open_object_store(config: ServerConfig, url: str, database_id: str) -> DataFolders:
    try:
        from tinkex.depot.folder_cache import FolderCache
        from tinkex.depot.object_depot import ObjectDepot
    except ImportError as error:
        raise ConfigError(
            f"--depot {url} needs a package that is not installed: {error.name}.",
            hint='Install it in the folder of the project: pip install ".[server,depot]".',
            code="missing-package",
        ) from error
    try:
        depot = ObjectDepot(url)
        _check_claim(depot.claim(database_id), database_id, url)
    except (StorageError, ValueError) as error:
        raise ConfigError(
            str(error),
            hint="Check the address, the credentials and the network. They are read from the "
            "variables that the store's own tools use, such as AWS_ENDPOINT and "
            "AWS_ACCESS_KEY_ID.",
            code="bad-depot",
        ) from error
    return DataFolders(config.data_dir, FolderCache(depot, config.max_depot_cache_bytes))


def _check_claim(found: str, database_id: str, where: str) -> None:
    if found != database_id:
        raise ConfigError(
            f"The depot {where} belongs to another database.",
            hint="Give every database a depot of its own, such as another prefix of the bucket.",
            code="bad-depot",
        )
