"""Workers that dial in: calls, folders, connections, tokens, TLS, hostile peers and workers."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import ssl
import struct
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import tinkex.engine.remote.listener as listener_module
import tinkex.engine.remote.worker as worker_module
from tests.engine.remote.joined import (
    INFO,
    TOKEN,
    WorkerThread,
    config_for,
    listening,
    next_worker,
    place_at,
)
from tests.support.object_stores import bucket, object_store
from tests.support.waiting import wait_until
from tinkex.engine.interface import EngineFailure, EngineUserError, LoraSpec
from tinkex.engine.process.codec import PING, Reply, encode
from tinkex.engine.process.frames import FrameReader, write_frame
from tinkex.engine.remote.engine import RemoteEngine, local_folder
from tinkex.engine.remote.handshake import FolderPlace, RefusedError, RemoteWorkerInfo, join
from tinkex.engine.remote.listener import WorkerListener
from tinkex.engine.remote.worker import CannotSeeFoldersError
from tinkex.files.atomic_folder import verify_folder

__all__ = ["bucket", "object_store"]

SNAPSHOT = f"snapshots/{'a' * 32}"


def test_calls_and_folders_of_a_worker_that_dialled_in(tmp_path: Path) -> None:
    with (
        listening(place_at(tmp_path)) as listener,
        WorkerThread(config_for(listener.port, tmp_path)),
        RemoteEngine(next_worker(listener)) as engine,
    ):
        assert [model.name for model in engine.models()] == ["null"]
        engine.create_adapter("a", "null", LoraSpec(rank=4))
        with pytest.raises(EngineUserError, match="exists already"):
            engine.create_adapter("a", "null", LoraSpec(rank=4))
        engine.start_saving("a", tmp_path / SNAPSHOT, "all").result(20)
        verify_folder(tmp_path / SNAPSHOT)
        engine.unload_adapter("a")
        engine.load_adapter("a", "null", tmp_path / SNAPSHOT, "all")
        assert [each.adapter_id for each in engine.adapters()] == ["a"]


def test_folders_go_through_an_object_store(tmp_path: Path, bucket: str) -> None:
    place = FolderPlace(root="/nowhere", depot=bucket, database_id="d" * 32)
    with listening(place) as listener:
        for mine in ("one", "two"):  # another worker, with a disk of its own
            with (
                WorkerThread(config_for(listener.port, tmp_path / mine)),
                RemoteEngine(next_worker(listener)) as engine,
            ):
                if mine == "one":
                    engine.create_adapter("a", "null", LoraSpec(rank=4))
                    engine.save_adapter("a", Path("/server") / SNAPSHOT, "all")
                else:
                    engine.load_adapter("a", "null", Path("/server") / SNAPSHOT, "all")
                    assert len(engine.adapters()) == 1


def test_a_worker_forgets_everything_when_its_connection_ends_and_dials_again(
    tmp_path: Path,
) -> None:
    with (
        listening(place_at(tmp_path)) as listener,
        WorkerThread(config_for(listener.port, tmp_path)) as worker,
    ):
        for _ in range(3):
            engine = RemoteEngine(next_worker(listener))
            assert engine.adapters() == []
            engine.create_adapter("a", "null", LoraSpec(rank=4))
            engine.close()
            wait_until(lambda: not worker.engine.adapters())
            with pytest.raises(
                EngineFailure, match=r"gpu-1 at 127.0.0.1:\d+ has disconnected"
            ) as caught:
                engine.models()
            assert caught.value.is_loss_of_engine
            assert caught.value.is_from_outside, "the network may be to blame, not the work"


def test_a_worker_outlives_its_server(tmp_path: Path) -> None:
    place = place_at(tmp_path)
    with listening(place) as listener:
        port = listener.port
        with WorkerThread(config_for(port, tmp_path)):
            next_worker(listener).connection.close()
            listener.close()
            again = WorkerListener(("127.0.0.1", port), TOKEN, place, check=lambda _: None)
            with RemoteEngine(next_worker(again)) as engine:
                assert engine.models()
            again.close()


def test_a_worker_tries_every_address_of_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name for a server that is frozen and never answers, one that is down, and one that runs.
    Name resolution is the machine's, so it is replaced here."""
    monkeypatch.setattr(worker_module, "_DIAL_S", 0.5)
    resolve = socket.getaddrinfo

    def answer(host: str, *rest: Any, **options: Any) -> list[Any]:
        hosts = [f"127.0.0.{n}" for n in (2, 3, 1)] if host == "servers" else [host]
        return [each for one in hosts for each in resolve(one, *rest, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with (
        listening(place_at(tmp_path)) as listener,
        socket.create_server(("127.0.0.2", listener.port)),
    ):
        config = msgspec.structs.replace(config_for(listener.port, tmp_path), host="servers")
        with WorkerThread(config), RemoteEngine(next_worker(listener)) as engine:
            assert engine.models()


def test_a_worker_leaves_a_server_that_has_fallen_silent(tmp_path: Path) -> None:
    """A frozen server closes no connection. One that has never pinged is left in peace."""
    place = msgspec.structs.replace(place_at(tmp_path), silence_s=1.0)
    with (
        listening(place) as listener,
        WorkerThread(config_for(listener.port, tmp_path)),
    ):
        silent = next_worker(listener)
        assert listener.take(3) is None
        write_frame(silent.connection, encode(PING))  # the only sign of life
        with RemoteEngine(next_worker(listener), ping_s=0.1) as engine:
            assert listener.take(3) is None
            assert engine.models()
        silent.connection.close()


def test_a_worker_with_another_token_is_refused(tmp_path: Path) -> None:
    with listening(place_at(tmp_path)) as listener:
        with WorkerThread(config_for(listener.port, tmp_path, b"x" * 32)) as worker:
            worker.join()
            assert isinstance(worker.error, RefusedError)
            assert "token" in str(worker.error)
        assert listener.take(0) is None


def test_a_worker_serves_no_server_without_the_token(tmp_path: Path) -> None:
    """A false server cannot make the proof, whatever it answers."""
    with socket.create_server(("127.0.0.1", 0)) as false_server:
        port = false_server.getsockname()[1]
        with WorkerThread(config_for(port, tmp_path)) as worker:
            connection, _ = false_server.accept()
            challenge = {"magic": "tinkex-worker", "protocol": 1, "nonce": b"n"}
            write_frame(connection, encode(challenge))
            assert TOKEN not in (FrameReader(connection).next() or b"")
            write_frame(connection, encode({"refused": "", "place": b"", "proof": b"\0" * 32}))
            assert connection.recv(1) == b"", "it hangs up"
            assert worker.error is None, "and dials again"
            connection.close()


def test_a_refused_worker_gets_the_reason(tmp_path: Path) -> None:
    def check(info: RemoteWorkerInfo) -> str | None:
        return None if "big" in info.models else "It does not hold the model big."

    with (
        listening(place_at(tmp_path), check=check) as listener,
        WorkerThread(config_for(listener.port, tmp_path)) as worker,
    ):
        worker.join()
        assert str(worker.error) == "It does not hold the model big."


def test_a_worker_that_does_not_see_the_folders_says_so(tmp_path: Path) -> None:
    place = FolderPlace(root=str(tmp_path / "unseen"), depot=None, database_id="d")
    with listening(place) as listener, WorkerThread(config_for(listener.port, tmp_path)) as worker:
        worker.join()
        assert isinstance(worker.error, CannotSeeFoldersError)
        assert "--depot" in str(worker.error)


@pytest.mark.parametrize(
    "name", ["snapshots/../../etc", "/etc/passwd", "snapshots/short", "SNAP/" + "a" * 32, ""]
)
def test_a_server_cannot_name_other_folders_of_a_worker(tmp_path: Path, name: str) -> None:
    with pytest.raises(EngineFailure, match="is not a folder of adapters"):
        local_folder(tmp_path, Path(name))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tinkex")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


def test_calls_both_ways_at_once_over_tls(tmp_path: Path, certificate: Path) -> None:
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(certificate)
    of_worker = ssl.create_default_context(cafile=str(certificate))
    with (
        listening(place_at(tmp_path), tls=of_server) as listener,
        WorkerThread(config_for(listener.port, tmp_path), of_worker),
        RemoteEngine(next_worker(listener)) as engine,
    ):
        wrong: list[object] = []

        def call() -> None:
            for _ in range(200):
                if [model.name for model in engine.models()] != ["null"]:
                    wrong.append(engine)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert wrong == []
        assert not engine.is_gone


def test_a_worker_does_not_trust_another_certificate(tmp_path: Path, certificate: Path) -> None:
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(certificate)
    with (
        listening(place_at(tmp_path), tls=of_server) as listener,
        WorkerThread(config_for(listener.port, tmp_path), ssl.create_default_context()),
    ):
        assert listener.take(2) is None


def test_peers_without_the_token_get_nothing_and_block_no_worker(tmp_path: Path) -> None:
    dice = random.Random(7)
    with listening(place_at(tmp_path)) as listener:
        for number in range(60):
            with socket.create_connection(("127.0.0.1", listener.port), timeout=10) as stranger:
                if number % 4 == 0:
                    continue  # hangs up at once
                if number % 4 == 1:
                    stranger.sendall(struct.pack(">Q", 1 << dice.randint(17, 63)) + b"x" * 100)
                elif number % 4 == 2:
                    stranger.sendall(os.urandom(dice.randint(1, 5000)))
                else:
                    body = os.urandom(dice.randint(0, 300))
                    stranger.sendall(struct.pack(">Q", len(body)) + body)
                stranger.shutdown(socket.SHUT_WR)
                heard = b""
                while part := stranger.recv(65536):
                    heard += part
                assert TOKEN not in heard
        with (
            WorkerThread(config_for(listener.port, tmp_path)),
            RemoteEngine(next_worker(listener)) as engine,
        ):
            assert engine.models()


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_connections_that_drip_bytes_without_the_token_keep_no_worker_out(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, is_encrypted: bool
) -> None:
    monkeypatch.setattr(listener_module, "_HANDSHAKE_S", 2.0)
    monkeypatch.setattr(listener_module, "_MAX_STRANGERS", 1)
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(certificate)
    of_worker = ssl.create_default_context(cafile=str(certificate)) if is_encrypted else None
    has_ended = threading.Event()
    with (
        listening(place_at(tmp_path), tls=of_server if is_encrypted else None) as listener,
        socket.create_connection(("127.0.0.1", listener.port), timeout=10) as stranger,
    ):

        def drip() -> None:
            """The beginning of a long message, or of a long record of TLS."""
            start = b"\x16\x03\x01\x3f\xff" if is_encrypted else struct.pack(">Q", 60_000)
            with contextlib.suppress(OSError):  # the server hung up
                stranger.sendall(start)
                while not has_ended.wait(0.1):
                    stranger.sendall(b"\1")

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            with (
                WorkerThread(config_for(listener.port, tmp_path), of_worker),
                RemoteEngine(next_worker(listener)) as engine,
            ):
                assert engine.models()
        finally:
            has_ended.set()
            dripping.join()


@pytest.mark.parametrize("lie", ["garbage", "another-type", "unknown-call", "huge"])
def test_a_worker_that_lies_fails_like_one_that_died(tmp_path: Path, lie: str) -> None:
    with (
        listening(place_at(tmp_path)) as listener,
        socket.create_connection(("127.0.0.1", listener.port), timeout=10) as worker,
    ):
        join(worker, TOKEN, INFO)
        joined = next_worker(listener)
        liar = threading.Thread(target=_lie, args=[worker, lie])
        liar.start()
        engine = RemoteEngine(joined)
        with pytest.raises(EngineFailure):
            engine.models()
        wait_until(lambda: engine.is_gone)
        engine.close()
        liar.join()


def _lie(worker: socket.socket, lie: str) -> None:
    frames, nothing = FrameReader(worker), msgspec.Raw(encode(None))
    write_frame(worker, encode(Reply(0, None, nothing)))
    while True:
        frame = frames.next()
        if frame is None:
            return
        call_id = msgspec.msgpack.decode(frame)[0]
        if call_id < 0:
            continue
        if lie == "garbage":
            write_frame(worker, b"\xc1garbage")
        elif lie == "another-type":
            write_frame(worker, encode(Reply(call_id, None, msgspec.Raw(encode([1, "x"])))))
        elif lie == "unknown-call":
            write_frame(worker, encode(Reply(call_id + 5, None, nothing)))
        else:
            worker.sendall(struct.pack(">Q", 1 << 40))
