"""The signing secret lies outside the database, and what it signs has an end.

Servers run with the null engine; rotation and the checks at start go through the command line.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.children import start_module
from tests.server.driving import MODEL, Http, null_config
from tinkex.cli.main import run
from tinkex.errors import ServerError
from tinkex.server.embedded import EmbeddedServer

FILE = "signing-secret"
DATABASE = ("tinkex.db", "tinkex.db-wal", "tinkex.db-shm")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(null_config(tmp_path / "data")) as running:
        yield running


@pytest.fixture
def http(server: EmbeddedServer) -> Iterator[Http]:
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield Http(client, server.api_key)


def claims_of(token: str) -> dict[str, Any]:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def signed_with(secret: bytes, claims: dict[str, Any]) -> str:
    """A token as anyone makes it who knows the secret."""
    parts = ({"alg": "HS256", "typ": "JWT"}, claims)
    signed = b".".join(base64url(json.dumps(part).encode()) for part in parts)
    return (signed + b"." + base64url(hmac.digest(secret, signed, "sha256"))).decode()


def signature_of(token: str, secret: bytes) -> str:
    signed = token.rpartition(".")[0].encode()
    return base64url(hmac.digest(secret, signed, "sha256")).decode()


def base64url(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def newest_secret(data_dir: Path) -> bytes:
    return bytes.fromhex((data_dir / FILE).read_text().split()[0])


def status(http: Http, credential: str) -> int:
    return Http(http.client, credential).call("GET", "sessions").status_code


def wait_for_status(http: Http, credential: str, wanted: int) -> None:
    """A running server looks at the file from time to time."""
    deadline = time.monotonic() + 30
    while status(http, credential) != wanted:
        assert time.monotonic() < deadline, f"not {wanted} in time"
        time.sleep(0.1)


def rotate(data_dir: Path, *options: str) -> int:
    return run(["keys", "rotate-signing", "--data-dir", str(data_dir), *options]).exit_code


def test_a_copy_of_the_database_signs_nothing(http: Http, tmp_path: Path) -> None:
    genuine = http.post("auth/token")["jwt"]
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in DATABASE:
        shutil.copy(tmp_path / "data" / name, copy)
    whole = b"".join((copy / name).read_bytes() for name in DATABASE)
    with closing(sqlite3.connect(copy / DATABASE[0])) as db:
        values = [value for (value,) in db.execute("SELECT value FROM settings")]
        assert db.execute("SELECT count(*) FROM keys").fetchone() == (1,)
    for value in values:
        assert status(http, signed_with(value, claims_of(genuine))) == 401
    kept = newest_secret(tmp_path / "data")
    assert kept not in whole
    assert kept.hex().encode() not in whole
    assert status(http, signed_with(kept, claims_of(genuine))) == 200


def test_the_file_is_private_and_stays_over_a_restart(server: EmbeddedServer, http: Http, tmp_path):
    path = tmp_path / "data" / FILE
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o600, os.geteuid())
    token = http.post("auth/token")["jwt"]
    server.kill()
    server.start()
    assert status(http, token) == 200


def _readable(path: Path) -> None:
    path.chmod(0o640)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _foreign(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, -1)


def _short(path: Path) -> None:
    path.write_text("abcd\n")


def _no_hex(path: Path) -> None:
    path.write_text("not hexadecimal " * 8)


def _not_a_file(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_readable, "chmod 600"),
        (_link, "symbolic link"),
        (_foreign, "chown"),
        (_short, "64 hexadecimal characters"),
        (_no_hex, "64 hexadecimal characters"),
        (_not_a_file, "not a regular file"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_file_that_others_may_know_or_that_is_none_ends_the_start(
    spoil, said: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    server.stop()
    path = tmp_path / "data" / FILE
    secret = path.read_text().strip()
    spoil(path)
    with pytest.raises(ServerError, match=said) as refusal:
        server.start()
    assert str(path) in str(refusal.value)
    assert secret not in server.log()


def test_tokens_stay_good_when_a_server_moves_with_its_file(tmp_path: Path) -> None:
    secret = tmp_path / "mounted"
    secret.write_text(secrets.token_hex(32) + "\n")
    secret.chmod(0o600)
    url = f"sqlite:///{tmp_path / 'moved.db'}"
    configs = [
        null_config(tmp_path / name, signing_secret_file=secret, database_url=url)
        for name in ("a", "b")
    ]
    with EmbeddedServer(configs[0]) as first, httpx.Client(base_url=first.base_url) as client:
        token = Http(client, first.api_key).post("auth/token")["jwt"]
    with EmbeddedServer(configs[1]) as second, httpx.Client(base_url=second.base_url) as client:
        assert status(Http(client, second.api_key), token) == 200
    assert not (tmp_path / "a" / FILE).exists()


def test_a_named_file_that_is_missing_is_not_made(tmp_path: Path) -> None:
    named = tmp_path / "missing"
    server = EmbeddedServer(null_config(tmp_path / "data", signing_secret_file=named))
    with pytest.raises(ServerError, match="openssl rand -hex 32"):
        server.start()
    server.close()
    assert not named.exists()


def test_rotation_lets_what_was_signed_before_end_by_itself(http: Http, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    old_secret = newest_secret(data_dir)
    old = http.post("auth/token")["jwt"]
    assert rotate(data_dir) == 0
    new_secret = newest_secret(data_dir)
    assert new_secret != old_secret
    assert stat.S_IMODE((data_dir / FILE).stat().st_mode) == 0o600
    wait_for_status(http, signed_with(new_secret, claims_of(old)), 200)
    assert status(http, old) == 200, "an hour of grace"
    new = http.post("auth/token")["jwt"]
    assert new.rpartition(".")[2] == signature_of(new, new_secret)
    # Without any overlap all that was signed before is refused; the key is as good as ever.
    assert rotate(data_dir, "--overlap-s", "0") == 0
    for token in (old, new):
        wait_for_status(http, token, 401)
    assert status(http, http.api_key) == 200
    assert status(http, http.post("auth/token")["jwt"]) == 200
    assert len((data_dir / FILE).read_text().split()) == 1


def test_the_overlap_of_a_rotation_ends(http: Http, tmp_path: Path) -> None:
    old = http.post("auth/token")["jwt"]
    assert rotate(tmp_path / "data", "--overlap-s", "3") == 0
    wait_for_status(http, old, 401)


def test_a_signed_link_outlives_a_rotation(http: Http, tmp_path: Path) -> None:
    model = http.model()
    saved = http.post("save_weights", {"model_id": model, "path": "kept", "seq_id": 1})
    http.result(saved["request_id"])
    archive = http.call("GET", f"training_runs/{model}/checkpoints/weights/kept/archive")
    link = archive.headers["location"]
    assert rotate(tmp_path / "data") == 0
    new_secret = newest_secret(tmp_path / "data")
    claims = claims_of(http.post("auth/token")["jwt"])
    wait_for_status(http, signed_with(new_secret, claims), 200)
    assert httpx.get(link).status_code == 200
    assert rotate(tmp_path / "data", "--overlap-s", "0") == 0
    wait_for_status(http, signed_with(new_secret, claims), 401)
    assert httpx.get(link).status_code == 401


def test_the_official_client_works_on_through_a_rotation(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    arguments = ("tests.server.official_run", server.base_url, server.api_key, "6", MODEL)
    with start_module(*arguments) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.startswith("step "):
                assert rotate(tmp_path / "data") == 0
            last = line
        assert child.wait(60) == 0
    assert len(json.loads(last)["losses"]) == 6


def test_rotation_says_what_it_did_and_shows_no_secret(
    http: Http, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rotate(tmp_path / "data", "--json") == 0
    shown = capsys.readouterr()
    printed = json.loads(shown.out)
    assert printed["file"] == str(tmp_path / "data" / FILE)
    assert printed["overlap_s"] == 3600
    for word in (tmp_path / "data" / FILE).read_text().split():
        assert len(word) < 64 or word not in shown.out + shown.err


@pytest.mark.parametrize("overlap", ["-1", "nan", "1e9"])
def test_an_overlap_out_of_bounds_is_refused(overlap: str, tmp_path: Path) -> None:
    assert rotate(tmp_path, "--overlap-s", overlap) == 2


def test_there_is_nothing_to_rotate_before_the_first_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rotate(tmp_path) != 0
    shown = capsys.readouterr().err
    assert str(tmp_path / FILE) in shown
    assert "first start" in shown


def test_a_file_damaged_later_leaves_a_running_server_as_it_is(
    server: EmbeddedServer, http: Http, tmp_path: Path
) -> None:
    token = http.post("auth/token")["jwt"]
    (tmp_path / "data" / FILE).chmod(0o644)
    deadline = time.monotonic() + 30
    while "chmod 600" not in server.log():
        assert status(http, token) == 200
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert status(http, token) == 200


def test_a_token_made_of_a_token_ends_when_the_first_would(tmp_path: Path) -> None:
    config = null_config(tmp_path / "data", token_life_s=3600, max_token_life_s=1800)
    with EmbeddedServer(config) as server, httpx.Client(base_url=server.base_url) as client:
        first = Http(client, server.api_key).post("auth/token")["jwt"]
        born = claims_of(first)
        assert born["exp"] - born["iat"] == 1800
        token = first
        for _ in range(3):
            time.sleep(0.4)
            token = Http(client, token).post("auth/token")["jwt"]
        last = claims_of(token)
        assert (last["until"], last["born"]) == (born["until"], born["born"])
        assert abs(last["exp"] - born["exp"]) <= 1, "of a clock in whole seconds"


def test_a_chain_of_tokens_dies(tmp_path: Path) -> None:
    config = null_config(tmp_path / "data", max_token_life_s=2)
    with EmbeddedServer(config) as server, httpx.Client(base_url=server.base_url) as client:
        token = Http(client, server.api_key).post("auth/token")["jwt"]
        deadline = time.monotonic() + 30
        while (answer := Http(client, token).call("POST", "auth/token", {})).status_code == 200:
            token = answer.json()["jwt"]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert answer.status_code == 401
        assert Http(client, server.api_key).get("sessions") is not None


def test_a_revoked_key_takes_its_tokens_along_at_once(http: Http) -> None:
    token = http.post("auth/token")["jwt"]
    assert status(http, token) == 200
    assert http.call("DELETE", "auth/apikey/me").status_code == 200
    assert status(http, token) == 401


def test_a_token_belongs_to_one_row_of_the_keys(
    server: EmbeddedServer, http: Http, tmp_path: Path
) -> None:
    """The same key, deleted and added again, is another one: tokens of the first are over."""
    other = http.post("auth/token")["jwt"]
    server.stop()
    with closing(sqlite3.connect(tmp_path / "data" / DATABASE[0])) as db:
        db.execute("UPDATE keys SET key_id = key_id + 100")
        db.commit()
    server.start()
    assert status(http, http.api_key) == 200
    assert status(http, other) == 401
