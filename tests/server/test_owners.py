"""Whose work a key sees: the first key, a further one, a lost one, through `tinkex serve` and
`tinkex keys`."""

from __future__ import annotations

import json
import os
import pwd
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from tests.server.driving import Http
from tests.server.test_cli import serving
from tinkex.cli.main import run
from tinkex.store import Database, keys, migrations

ME = pwd.getpwuid(os.getuid()).pw_name


class Operator:
    """`tinkex keys` on one data folder."""

    def __init__(self, data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._at = ("--data-dir", str(data_dir))
        self._capsys = capsys
        self.said = ""
        self.exit_code = 0

    def __call__(self, *arguments: str) -> str:
        self._capsys.readouterr()
        self.exit_code = run(["keys", *arguments, *self._at]).exit_code
        shown = self._capsys.readouterr()
        self.said = shown.err
        return shown.out

    def create(self, *arguments: str) -> Any:
        made = json.loads(self("create", "--json", *arguments))
        assert self.exit_code == 0, self.said
        return made

    def list(self) -> Any:
        return json.loads(self("list", "--json"))


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(tmp_path, capsys)


def train_and_save(url: str, key: str) -> str:
    """A run with one checkpoint; its id."""
    with httpx.Client(base_url=url, timeout=60) as client:
        http = Http(client, key)
        model_id = http.model()
        save = {"model_id": model_id, "path": "kept", "seq_id": 1}
        http.result(http.post("save_weights", save)["request_id"])
        return model_id


def runs(url: str, key: str) -> list[str]:
    with httpx.Client(base_url=url, timeout=60) as client:
        found = Http(client, key).get("training_runs")["training_runs"]
        return [each["training_run_id"] for each in found]


def test_a_key_made_after_the_first_was_lost_sees_the_same_work(
    tmp_path: Path, operator: Operator
) -> None:
    with serving(tmp_path) as first:
        run_id = train_and_save(first["url"], first["keys"][0])
    with serving(tmp_path) as second:
        made = operator.create("--name", "found-again")
        assert made["owner"] == ME
        assert runs(second["url"], made["key"]) == [run_id]
    operator("create")
    assert f"owner {ME} (1 run, 1 checkpoint)" in operator.said
    assert "--new-owner" in operator.said


def test_the_start_names_the_owners_and_the_way_back(tmp_path: Path, operator: Operator) -> None:
    with serving(tmp_path) as first:
        assert f"API key of {ME} (shown once" in first["text"]
        train_and_save(first["url"], first["keys"][0])
    with serving(tmp_path) as second:
        assert f"  {ME}: 1 key, 1 run, 1 checkpoint, last used " in second["text"]
        command = f"tinkex keys create --owner {ME} --data-dir {tmp_path}"
        assert command in second["text"]
    operator.create("--owner", "bob's team")
    with serving(tmp_path) as third:
        assert "  bob's team: 1 key, 0 runs, 0 checkpoints, never used" in third["text"]
        assert f"tinkex keys create --owner NAME --data-dir {tmp_path}" in third["text"]


def test_the_printed_command_quotes_any_owner_name(tmp_path: Path, operator: Operator) -> None:
    operator.create("--owner", "bob's team")
    with serving(tmp_path) as started:
        assert """tinkex keys create --owner 'bob'"'"'s team' --data-dir""" in started["text"]


def test_many_owners_are_not_all_listed_at_the_start(tmp_path: Path, operator: Operator) -> None:
    for number in range(12):
        operator.create("--owner", f"tenant-{number}")
    with serving(tmp_path) as started:
        assert started["text"].count("  tenant-") == 8
        assert "and 4 more" in started["text"]


def test_with_several_owners_a_choice_is_demanded(tmp_path: Path, operator: Operator) -> None:
    operator.create("--owner", "alice")
    operator.create("--owner", "bob")
    assert operator("create", "--name", "whose") == ""
    assert operator.exit_code == 2
    assert "alice" in operator.said
    assert "bob" in operator.said
    assert "--owner NAME" in operator.said
    assert "--new-owner" in operator.said
    assert len(operator.list()["keys"]) == 2, "no key was made"
    assert operator.create("--owner", "bob")["owner"] == "bob"


def test_a_revoked_owner_still_counts_as_one(tmp_path: Path, operator: Operator) -> None:
    """Work that is hidden by a revoked key must not be given to another key by default."""
    gone = operator.create("--owner", "alice")
    operator.create("--owner", "bob")
    operator("revoke", str(gone["key_id"]))
    operator("create")
    assert operator.exit_code == 2


def test_new_owner_is_apart(tmp_path: Path, operator: Operator) -> None:
    with serving(tmp_path) as server:
        run_id = train_and_save(server["url"], server["keys"][0])
        apart = operator.create("--new-owner")
        named = operator.create("--new-owner", "--owner", "carol")
        assert named["owner"] == "carol"
        assert len({ME, apart["owner"], "carol"}) == 3
        assert runs(server["url"], apart["key"]) == runs(server["url"], named["key"]) == []
        assert runs(server["url"], server["keys"][0]) == [run_id]
    operator("create", "--new-owner", "--owner", "carol")
    assert operator.exit_code == 2
    assert "carol" in operator.said


@pytest.mark.parametrize("owner", ["", "  ", "a\nb", "x" * 129])
def test_a_name_no_owner_can_have_is_refused(operator: Operator, owner: str) -> None:
    operator("create", "--owner", owner)
    assert operator.exit_code == 2
    assert "--owner" in operator.said
    assert operator.list()["keys"] == []


def test_the_first_key_may_come_before_the_first_start(tmp_path: Path, operator: Operator) -> None:
    assert operator.create()["owner"] == ME


def test_a_start_with_only_revoked_keys_keeps_the_owner(tmp_path: Path, operator: Operator) -> None:
    with serving(tmp_path) as first:
        run_id = train_and_save(first["url"], first["keys"][0])
    operator("revoke", "1")
    with serving(tmp_path) as second:
        assert runs(second["url"], second["keys"][0]) == [run_id]


def test_the_list_says_who_has_what_and_when_it_was_used(
    tmp_path: Path, operator: Operator
) -> None:
    with serving(tmp_path) as server:
        train_and_save(server["url"], server["keys"][0])
        operator.create("--owner", "bob", "--name", "idle")
    listed = operator.list()
    used, idle = listed["keys"]
    assert (used["name"], used["owner"]) == ("first", ME)
    assert used["last_used"] >= used["created"]
    assert idle["last_used"] is None
    mine = {"owner": ME, "keys": 1, "runs": 1, "checkpoints": 1, "last_used": used["last_used"]}
    theirs = {"owner": "bob", "keys": 1, "runs": 0, "checkpoints": 0, "last_used": None}
    assert listed["owners"] == [mine, theirs]
    shown = operator("list").splitlines()
    assert shown[0].split() == ["key_id", "name", "owner", "key", "created", "last_used", "revoked"]
    assert [line.split()[:4] for line in shown[-2:]] == [
        [ME, "1", "1", "1"],
        ["bob", "1", "0", "0"],
    ]


def test_a_database_of_before_keeps_its_keys(
    tmp_path: Path, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One made before keys had a time of last use, with an owner whose name was made up."""
    key = keys.new_key()
    db = Database(f"sqlite:///{tmp_path / 'tinkex.db'}")
    db.write(keys.add, key, name="first")
    step = migrations.m007_last_use_of_keys.__name__
    db.write(lambda conn: conn.execute(text("ALTER TABLE keys DROP COLUMN used_at")))
    db.write(
        lambda conn: conn.execute(text("DELETE FROM migrations WHERE name = :name"), {"name": step})
    )
    db.close()
    with serving(tmp_path) as server:
        run_id = train_and_save(server["url"], key)
        made = operator.create()
        assert made["owner"].startswith("user-")
        assert runs(server["url"], made["key"]) == [run_id]
