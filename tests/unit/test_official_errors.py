"""Errors are made as the official classes are, and carry the same."""

from __future__ import annotations

import pickle

import httpx
import pytest
import tinker

import tinkex
from tinkex.errors import ErrorResponse, status_error_class

REQUEST = httpx.Request("GET", "http://server/api/v1/x")
RESPONSE = httpx.Response(404, json={"error": "gone"}, request=REQUEST)


@pytest.mark.parametrize("module", [tinker, tinkex], ids=["official", "ours"])
def test_made_and_read_in_the_official_way(module) -> None:
    error = module.NotFoundError("no", response=RESPONSE, body={"error": "gone"})
    assert (error.status_code, error.body) == (404, {"error": "gone"})
    assert (error.response, error.request, error.message) == (RESPONSE, REQUEST, "no")
    assert module.BadRequestError("no", RESPONSE, None).body is None
    lost = module.APIConnectionError(request=REQUEST)
    assert (lost.request, bool(lost.message)) == (REQUEST, True)
    assert module.APIConnectionError(REQUEST, "lost").message == "lost"
    assert module.APITimeoutError(REQUEST).request is REQUEST
    assert module.APIError("x", REQUEST, body="text").body == "text"
    odd = module.APIResponseValidationError(RESPONSE, {"a": 1}, "odd")
    assert (odd.message, odd.status_code, odd.body) == ("odd", 404, {"a": 1})
    failed = module.RequestFailedError("m", "r", tinkex.types.RequestErrorCategory.User)
    assert (failed.message, failed.request_id, failed.category) == ("m", "r", "user")


def test_an_error_of_ours_carries_the_answer_and_survives_pickling() -> None:
    text = '{"error":"no such run"}'
    error = status_error_class(404)("no", ErrorResponse(404, text, {"a": "b"}), text)
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert each.status == each.status_code == each.response.status_code == 404
        assert each.body == each.response.json() == {"error": "no such run"}
        assert each.response.content == text.encode()
    assert status_error_class(500)("no", body="<html>", status=500).body == "<html>"
