"""One server leads a PostgreSQL database: a second is refused or stands by, an old leader ends."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg
import pytest

from tests.server.driving import Http, null_config
from tests.server.test_start_errors import refused, serve
from tests.support.waiting import wait_until
from tinkex.errors import ConfigError, ServerError
from tinkex.server.config import ServerConfig
from tinkex.server.data_folder import share_folder
from tinkex.server.embedded import EmbeddedServer
from tinkex.store.keys import new_key

KEY = new_key()
LEASE_S = 4.0  # a leader on a busy machine renews it all the same


@pytest.fixture
def shared(tmp_path: Path, empty_postgres_url: str) -> ServerConfig:
    """What two servers of one database have in common; leases end soon."""
    return null_config(
        tmp_path / "data", database_url=empty_postgres_url, bootstrap_key=KEY, lease_s=LEASE_S
    )


def changed(config: ServerConfig, **changes: Any) -> ServerConfig:
    return msgspec.structs.replace(config, **changes)


def options(config: ServerConfig) -> list[str]:
    at = ["--port", "0", "--data-dir", str(config.data_dir), "--device", "null"]
    return [*at, "--database-url", str(config.database_url), "--lease-s", f"{LEASE_S:g}"]


@contextmanager
def client_of(server: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield Http(client, server.api_key)


def end_of(server: EmbeddedServer) -> int:
    """The exit code of a server that ends by itself."""
    assert server._process is not None
    return server._process.wait(60)


def received(sock: socket.socket) -> bytes:
    """The beginning of an answer; empty if the other side ended without one."""
    try:
        return sock.recv(12)
    except ConnectionError:
        return b""


def test_the_refusal_of_a_second_server_names_the_first(shared: ServerConfig) -> None:
    with EmbeddedServer(shared) as first, client_of(first) as http:
        ended = serve(*options(shared))
        refused(ended, "Another server leads", f"process {first.pid}", "since 20", "--standby")
        assert "database-in-use" in ended.err
        elsewhere = changed(shared, data_dir=shared.data_dir / "elsewhere")
        refused(serve(*options(elsewhere)), "Another server leads", f"process {first.pid}")
        http.model()


def test_a_server_that_was_killed_is_followed_by_a_plain_start(shared: ServerConfig) -> None:
    with EmbeddedServer(shared) as server:
        server.kill()
        server.start()  # waits for the end of the lease of the one that is gone
        with client_of(server) as http:
            http.model()


def test_a_standby_says_so_until_the_leader_stops(shared: ServerConfig) -> None:
    with (
        EmbeddedServer(shared) as leader,
        EmbeddedServer(changed(shared, is_standby=True)) as standby,
        client_of(standby) as http,
    ):
        for path in ("get_server_capabilities", "healthz"):
            answer = http.call("GET", path)
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert (answer.json()["code"], answer.json()["status"]) == ("standby", "standby")
        assert http.client.get("/healthz").status_code == 503
        assert http.train("m", 1).status_code == 503
        assert "version" in http.get("version")
        assert leader.stop() == 0
        standby.wait_ready()
        http.model()
        assert standby.stop() == 0


def test_a_standby_that_is_stopped_leaves_the_leader_alone(shared: ServerConfig) -> None:
    with EmbeddedServer(shared) as leader, client_of(leader) as http:
        standby = EmbeddedServer(changed(shared, is_standby=True))
        standby.start()
        assert standby.stop() == 0
        http.model()


def test_a_frozen_leader_that_wakes_up_commits_nothing_and_ends(shared: ServerConfig) -> None:
    with (
        EmbeddedServer(shared) as old,
        EmbeddedServer(changed(shared, is_standby=True)) as new,
        client_of(old) as to_old,
        client_of(new) as to_new,
    ):
        model = to_old.model()
        assert to_old.result(to_old.step(model, 1)["request_id"])["metrics"]
        os.kill(old.pid, signal.SIGSTOP)
        try:
            new.wait_ready()
            assert to_new.result(to_new.train(model, 2).json()["request_id"])["metrics"]
        finally:
            os.kill(old.pid, signal.SIGCONT)
        assert end_of(old) == 6
        assert "Another server has taken over this database" in old.log()
        assert to_new.result(to_new.step(model, 3)["request_id"])["metrics"]
        assert to_new.get(f"training_runs/{model}")["usage"]["optimizer_steps"] == 2


def test_an_old_leader_refuses_what_reaches_it_when_it_wakes_up(shared: ServerConfig) -> None:
    with (
        EmbeddedServer(shared) as old,
        EmbeddedServer(changed(shared, is_standby=True)) as new,
        client_of(old) as to_old,
        client_of(new) as to_new,
    ):
        model = to_old.model()
        os.kill(old.pid, signal.SIGSTOP)
        new.wait_ready()
        body = f'{{"model_id": "{model}", "seq_id": 1, "adam_params": {{}}}}'
        head = (
            f"POST /api/v1/optim_step HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        address = ("127.0.0.1", int(old.base_url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=60) as late:
            late.sendall((head + body).encode())  # it waits in the socket of the stopped process
            os.kill(old.pid, signal.SIGCONT)
            answer = received(late)
        assert answer in (b"", b"HTTP/1.1 503"), "cut off by the end of the process, or refused"
        assert end_of(old) == 6
        assert to_new.result(to_new.step(model, 1)["request_id"])["metrics"]


def test_a_leader_without_its_database_takes_no_work_until_it_is_back(
    shared: ServerConfig, postgres_url: str
) -> None:
    name = str(shared.database_url).partition("@/")[2].partition("?")[0]
    with (
        EmbeddedServer(shared) as leader,
        client_of(leader) as http,
        psycopg.connect(postgres_url, autocommit=True) as admin,
    ):
        model = http.model()
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        wait_until(lambda: http.call("GET", "healthz").json().get("code") == "lease-not-renewed")
        answer = http.call("POST", "optim_step", {"model_id": model, "seq_id": 1})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        leader.wait_ready()
        assert http.result(http.step(model, 1)["request_id"])["metrics"]


def test_a_standby_needs_postgresql(tmp_path: Path) -> None:
    at = ["--port", "0", "--data-dir", str(tmp_path), "--device", "null"]
    refused(serve(*at, "--standby"), "PostgreSQL", "standby-needs-postgresql")


def test_a_lease_that_is_too_short_is_refused(tmp_path: Path) -> None:
    at = ["--port", "0", "--data-dir", str(tmp_path), "--device", "null"]
    refused(serve(*at, "--lease-s", "0.5"), "0.5", "--lease-s of at least 1")


def test_a_standby_with_a_folder_of_its_own_is_refused(shared: ServerConfig) -> None:
    with EmbeddedServer(shared):
        elsewhere = changed(shared, data_dir=shared.data_dir / "elsewhere")
        ended = serve(*options(elsewhere), "--standby")
        refused(ended, str(elsewhere.data_dir), "data-dir-not-shared")


def test_servers_of_two_databases_do_not_share_a_folder(
    shared: ServerConfig, postgres_url: str, tmp_path: Path
) -> None:
    with EmbeddedServer(shared):
        on_sqlite = EmbeddedServer(changed(shared, database_url=None))
        with pytest.raises(ServerError, match="Another server uses the data folder"):
            on_sqlite.start()
        on_sqlite.close()
        with pytest.raises(ConfigError, match="with another database"):
            share_folder(shared.data_dir, "0" * 32)
    with EmbeddedServer(null_config(tmp_path / "sqlite")):
        on_postgres = EmbeddedServer(changed(shared, data_dir=tmp_path / "sqlite"))
        with pytest.raises(ServerError, match="Another server uses the data folder"):
            on_postgres.start()
        on_postgres.close()
