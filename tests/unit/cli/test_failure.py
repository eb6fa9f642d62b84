"""Errors as exit codes and words."""

import http.server
import threading

import click
import pytest

from tinkex import errors
from tinkex.cli.failure import as_json, as_text, exit_code_of


def status(number: int) -> errors.APIStatusError:
    return errors.status_error_class(number)("m", status=number)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ValidationError("m"), 1),
        (errors.ConfigError("m"), 2),
        (errors.TokenizerError("m"), 1),
        (errors.InvalidPathError("m"), 1),
        (click.UsageError("m"), 2),
        (click.BadParameter("m"), 2),
        (click.ClickException("m"), 1),
        (errors.ConfigError("m", code="missing-api-key"), 3),
        (status(401), 3),
        (status(403), 3),
        (status(404), 4),
        (status(410), 4),
        (status(429), 5),
        (status(500), 6),
        (status(503), 6),
        (status(400), 1),
        (status(402), 1),
        (status(409), 1),
        (status(422), 1),
        (status(418), 1),
        (errors.APIResponseValidationError("m"), 6),
        (errors.RequestFailedError("m", category="server"), 6),
        (errors.RequestFailedError("m", category="user"), 1),
        (errors.RequestFailedError("m"), 1),
        (errors.PromiseLostError("m"), 6),
        (errors.APIConnectionError("m"), 7),
        (errors.APITimeoutError("m"), 7),
        (errors.FutureTimeoutError("m"), 7),
        (errors.FutureCancelledError("m"), 130),
        (KeyboardInterrupt(), 130),
        (RuntimeError("m"), 1),
    ],
    ids=lambda value: getattr(type(value), "__name__", None),
)
def test_exit_codes(error, code):
    assert exit_code_of(error) == code


def every_error_class(kind=errors.TinkexError):
    yield kind
    for child in kind.__subclasses__():
        yield from every_error_class(child)


@pytest.mark.parametrize(
    "kind", sorted(set(every_error_class()), key=str), ids=lambda kind: kind.__name__
)
def test_every_error_of_the_tree_has_an_exit_code_and_words(kind):
    is_status = issubclass(kind, errors.APIStatusError)
    error = kind("what happened", status=400) if is_status else kind("what happened")
    assert exit_code_of(error) in {1, 2, 3, 4, 5, 6, 7, 130}
    assert "what happened" in as_text(error)
    assert as_json(error)["message"] == "what happened"
    assert as_json(error)["code"] == error.code


@pytest.mark.parametrize(
    ("error", "start"),
    [
        (errors.ValidationError("m"), "Error: m"),
        (status(500), "Server error: m"),
        (errors.APIConnectionError("m"), "Network error: m"),
        (FileNotFoundError(2, "No such file", "x.txt"), "Error: x.txt: No such file.\n"),
        (RuntimeError("m"), "Error: Tinkex stumbled over itself: RuntimeError: m"),
    ],
)
def test_errors_of_users_servers_and_networks_are_distinguished(error, start):
    assert as_text(error).startswith(start)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (OSError("m"), "error"),
        (RuntimeError("m"), "internal"),
        (click.UsageError("m"), "usage"),
    ],
)
def test_errors_from_elsewhere_have_codes_too(error, code):
    assert as_json(error)["code"] == code


@pytest.fixture
def plain_port():
    """A port that answers everything in plain HTTP."""
    handler = http.server.BaseHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("command", [["run", "list"], ["doctor"]])
def test_https_to_a_plain_port_is_reported(cli, plain_port, command):
    ran = cli(*command, "--base-url", f"https://127.0.0.1:{plain_port}")
    assert ran.code != 0
    assert "this port speaks plain HTTP: write http://" in ran.out + ran.err


@pytest.mark.parametrize("command", [["run", "list"], ["doctor"]])
def test_address_with_the_prefix_is_reported(cli, server, command):
    missing = {"detail": "Not Found", "code": "no-such-route", "hint": ""}
    for call in ("client_config", "list_training_runs", "get_server_capabilities"):
        server.on(call).reply(status=404, json_body=missing).always()
    ran = cli(*command)
    assert ran.code != 0
    assert "base_url is the address without /api/v1" in ran.out + ran.err
    assert "tinkex run list" not in ran.err


def test_other_things_not_found_point_at_the_lists():
    assert "tinkex run list" in as_text(status(404))
