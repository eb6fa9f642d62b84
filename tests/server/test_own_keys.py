"""Keys of one's own owner over HTTP: listing, making, revoking, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.server.driving import Http
from tinkex.server.embedded import EmbeddedServer


@pytest.fixture
def tenant(server: EmbeddedServer, make_key: Callable[[], str]) -> Iterator[Http]:
    """An owner with one key."""
    with httpx.Client(base_url=server.base_url, timeout=60) as client:
        yield Http(client, make_key())


def names(tenant: Http) -> list[str]:
    return [each["name"] for each in tenant.get("keys")["keys"]]


def revoke(tenant: Http, key_id: int, query: str = "") -> httpx.Response:
    return tenant.call("DELETE", f"keys/{key_id}{query}")


def test_a_made_key_sees_the_same_work_and_is_shown_once(tenant: Http) -> None:
    run = tenant.model()
    made = tenant.post("keys", {"name": "laptop"})
    assert made["key"].startswith("tml-")
    assert made["tail"] == made["key"][-4:]
    listed = tenant.get("keys")
    assert names(tenant) == ["test", "laptop"]
    assert made["key"] not in str(listed)
    assert [each["is_this_key"] for each in listed["keys"]] == [True, False]
    other = Http(tenant.client, made["key"])
    assert other.get(f"training_runs/{run}")["training_run_id"] == run
    assert other.get("keys")["owner"] == listed["owner"]
    assert tenant.get("keys")["keys"][1]["last_used"] is not None


def test_a_revoked_key_stops_at_once(tenant: Http) -> None:
    made = tenant.post("keys", {"name": "gone"})
    other = Http(tenant.client, made["key"])
    other.get("keys")  # so that the server remembers it
    assert revoke(tenant, made["key_id"]).status_code == 200
    other.get("keys", status=401)
    assert names(tenant) == ["test"]
    assert revoke(tenant, made["key_id"]).json()["code"] == "unknown-key"


def test_the_callers_own_key_is_revoked_only_with_confirmation(tenant: Http) -> None:
    (mine,) = tenant.get("keys")["keys"]
    refused = revoke(tenant, mine["key_id"])
    assert (refused.status_code, refused.json()["code"]) == (422, "revokes-itself")
    assert "last key" in refused.json()["detail"]
    tenant.post("keys", {"name": "spare"})
    assert "last key" not in revoke(tenant, mine["key_id"]).json()["detail"]
    assert revoke(tenant, mine["key_id"], "?confirm=true").status_code == 200
    tenant.get("keys", status=401)


def test_keys_of_other_owners_are_unknown(tenant: Http, http: Http) -> None:
    (theirs,) = tenant.get("keys")["keys"]
    answer = revoke(http, theirs["key_id"])
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-key")
    assert answer.json() == revoke(http, 10**9).json()
    tenant.get("keys")


@pytest.mark.parametrize("name", ["", "  ", "a" * 129, "a\nb", 7])
def test_bad_names_are_refused(tenant: Http, name: Any) -> None:
    answer = tenant.call("POST", "keys", {"name": name})
    assert answer.status_code == 422
    assert names(tenant) == ["test"]


def test_a_token_makes_no_key(tenant: Http) -> None:
    token = Http(tenant.client, tenant.post("auth/token")["jwt"])
    token.get("keys")
    assert token.post("keys", {"name": "forever"}, status=422)["code"] == "key-needed"


def test_the_number_of_keys_is_bounded_and_old_revoked_ones_are_forgotten(tenant: Http) -> None:
    for number in range(99):
        tenant.post("keys", {"name": f"k{number}"})
    refused = tenant.post("keys", {"name": "more"}, status=422)
    assert refused["code"] == "limit-exceeded"
    made = tenant.get("keys")["keys"][1:]
    for each in made:
        revoke(tenant, each["key_id"])
    for number in range(5):
        again = tenant.post("keys", {"name": f"n{number}"})
        revoke(tenant, again["key_id"])
    assert names(tenant) == ["test"]


def test_an_archive_is_named_by_a_link_instead_of_a_redirect(tenant: Http) -> None:
    model = tenant.model()
    saved = tenant.post("save_weights", {"model_id": model, "path": "x", "seq_id": 1})
    tenant.result(saved["request_id"])
    link = tenant.get(f"training_runs/{model}/checkpoints/weights/x/archive?redirect=false")["url"]
    archive = httpx.get(link, timeout=30)
    assert archive.headers["content-type"] == "application/x-tar"
    assert len(archive.content) % 512 == 0
