"""A PostgreSQL server for tests, where PostgreSQL is installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.server.children import children_of
from tinkex.store import Database


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """A PostgreSQL server of our own, on a socket in a temporary folder."""
    pytest.importorskip("psycopg")
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("PostgreSQL is not installed")
    # Not below pytest's own folder: each run of pytest that starts closes that to other users.
    with TemporaryDirectory(prefix="tinkex-pg-", ignore_cleanup_errors=True) as name:
        server = PostgresServer(Path(name))
        server.start()
        yield server.url
        server.kill()


@pytest.fixture(params=["sqlite", "postgres"])
def each_database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A fresh store, once in SQLite and once in PostgreSQL; `db = each_database` in a module that
    has all its tests run on both."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'store.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    database = Database(url)
    yield database
    database.close()


class PostgresServer:
    """A PostgreSQL server with its files in a folder; it can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        as_user = _unprivileged(folder)
        data = folder / "data"
        command = ["initdb", "-D", str(data), "-U", "tinkex", "-A", "trust", "--no-sync"]
        if subprocess.run(as_user + command, capture_output=True).returncode:
            pytest.skip("PostgreSQL cannot be set up here")
        # Without fsync a kill loses nothing: the machine itself does not die.
        options = f"-c listen_addresses='' -c unix_socket_directories={folder} -c fsync=off"
        self._pid_file = data / "postmaster.pid"
        self._control = [*as_user, "pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log")]
        self._options = ["-o", options]
        self.url = f"postgresql://tinkex@/postgres?host={folder}"

    def start(self) -> None:
        """Starts the server and returns once it takes connections."""
        command = [*self._control, *self._options, "start"]
        subprocess.run(command, check=True, capture_output=True)

    def kill(self) -> None:
        """Ends all its processes at once, as a crash does."""
        command = [*self._control, "-m", "immediate", "stop"]
        subprocess.run(command, check=False, capture_output=True)

    def freeze(self) -> None:
        """Stops all its processes where they are, until `thaw`."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets them go on."""
        self._send(signal.SIGCONT)

    def cut(self) -> None:
        """Ends all connections to it."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as conn:
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )

    def _send(self, signum: signal.Signals) -> None:
        first = int(self._pid_file.read_text().split()[0])
        for pid in (first, *children_of(first)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL server of this test alone, which may kill it."""
    pytest.importorskip("psycopg")
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("PostgreSQL is not installed")
    with TemporaryDirectory(prefix="tinkex-pg-", ignore_cleanup_errors=True) as name:
        server = PostgresServer(Path(name))
        server.start()
        yield server
        server.kill()


@pytest.fixture
def empty_postgres_url(postgres_url: str) -> Iterator[str]:
    """A new database of that server, gone at the end with whatever is connected to it."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
        yield postgres_url.replace("/postgres?", f"/{name}?")
        conn.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _unprivileged(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: how to run it as another user, who owns the folder."""
    if os.getuid() != 0:
        return []
    names = {entry.pw_name for entry in pwd.getpwall()}
    name = next((each for each in ("postgres", "nobody") if each in names), None)
    if name is None or shutil.which("runuser") is None:
        pytest.skip("no unprivileged user to run PostgreSQL as")
    shutil.chown(folder, name)
    folder.chmod(0o755)  # for programs that run without root's privileges
    return ["runuser", "-u", name, "--"]
