"""No event, log line or repr shows an API key."""

import copy
import json
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkex.errors import AuthenticationError
from tinkex.telemetry import Bus, Secret, attach_logger, mask_secret, redact

KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmN"


@pytest.mark.parametrize(
    ("secret", "shown"),
    [
        (KEY, "tml-…a1b2"),
        (TOKEN, "eyJ…jVmN"),
        (f"Bearer {KEY}", "tml-…a1b2"),
        ("tml-x", "tml-…"),
        ("0123456789abcdef", "…cdef"),
        ("short", "…"),
        ("", "…"),
    ],
)
def test_mask_shows_kind_and_end_of_long_secrets_only(secret, shown):
    assert mask_secret(secret) == shown


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "API_KEY",
        "x-api-key",
        "X-API-Key",
        "authorization",
        "Authorization",
        "apikey",
        "weights_access_token",
        "X-Tinker-Weights-Access-Token",
        "CF-Access-Client-Secret",
        "password",
        "Cookie",
    ],
)
def test_secret_names_hide_any_value_under_them(name):
    assert redact({name: "an ordinary looking value"})[name] in ("…", "…alue")
    assert redact({name: ["one", {"two": "three"}]})[name] == ["…", {"two": "…"}]
    assert redact({name: b"raw"})[name] == "…"


@pytest.mark.parametrize("name", ["num_tokens", "eos_token", "path", "monkey", "seq_id", "keys"])
def test_innocent_names_stay(name):
    assert redact({name: "value"}) == {name: "value"}


@pytest.mark.parametrize("secret", [KEY, TOKEN])
@pytest.mark.parametrize(
    "around", ["{}", "key={} end", "'{}'", '{{"k":"{}"}}', "https://h/{}?x", "({})"]
)
def test_keys_inside_texts_are_masked(secret, around):
    text = around.format(secret)
    assert secret not in redact(text)
    assert secret[:12] not in redact(text)
    assert redact(text) == around.format(mask_secret(secret))


def test_texts_without_keys_are_untouched():
    text = "keys start with 'tml-' or 'eyJ'; htmltml-like words and eyJ stay"
    assert redact(text) == text


def test_nested_values_are_copied_and_masked():
    original = {"headers": {"X-API-Key": KEY, "Accept": "json"}, "list": [KEY, (KEY, 1)], "n": 1.5}
    before = copy.deepcopy(original)
    masked = redact(original)
    assert masked == {
        "headers": {"X-API-Key": "tml-…a1b2", "Accept": "json"},
        "list": ["tml-…a1b2", ("tml-…a1b2", 1)],
        "n": 1.5,
    }
    assert original == before


def test_a_key_used_as_a_name_is_masked_too():
    assert redact({KEY: 1}) == {"tml-…a1b2": 1}


def test_errors_keep_their_type_unless_their_text_shows_a_key():
    harmless = AuthenticationError("no such key", status=401)
    assert redact(harmless) is harmless
    assert redact(ValueError(f"bad {KEY}")) == "ValueError: bad tml-…a1b2"


def test_self_referring_values_end():
    loop: list[object] = [KEY]
    loop.append(loop)
    assert KEY not in repr(redact(loop))


@given(
    st.recursive(
        st.text() | st.integers() | st.just(f"x {KEY}"),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
        max_leaves=20,
    )
)
def test_no_shape_of_metadata_lets_a_key_through(value):
    assert KEY not in repr(redact(value))


class TestSecret:
    def test_shows_itself_nowhere_but_in_reveal(self):
        secret = Secret(KEY)
        shown = [
            repr(secret),
            str(secret),
            f"{secret}",
            f"{secret!r:>40}",
            f"{secret}",
            repr([secret]),
        ]
        assert all(KEY not in each for each in shown)
        assert str(secret) == "tml-…a1b2"
        assert secret.reveal() == KEY

    def test_equality_and_hash_are_by_content(self):
        assert Secret("a") == Secret("a")
        assert Secret("a") != Secret("b")
        assert Secret("a") != "a"
        assert len({Secret("a"), Secret("a"), Secret("b")}) == 2

    def test_survives_pickle_and_copy(self):
        assert pickle.loads(pickle.dumps(Secret(KEY))).reveal() == KEY
        assert copy.deepcopy(Secret(KEY)) == Secret(KEY)

    def test_cannot_slip_into_json(self):
        with pytest.raises(TypeError):
            json.dumps(Secret(KEY))


def test_no_handler_ever_sees_a_key():
    bus, seen = Bus(), []
    bus.attach("h", "*", lambda *event: seen.append(event))
    bus.execute(
        "tinkex.http.request.exception",
        {"duration": 1.0, "odd": KEY},
        {"headers": {"x-api-key": KEY}, "reason": f"refused {KEY}", "error": ValueError(KEY)},
    )
    assert KEY not in repr(seen)
    assert "tml-…a1b2" in repr(seen)


def test_report_of_a_failed_handler_shows_no_key(caplog):
    bus = Bus()

    def failing(event, measurements, metadata, config):
        raise RuntimeError(f"cannot deliver with {KEY}")

    bus.attach("h", "*", failing)
    with caplog.at_level(logging.ERROR, logger="tinkex.telemetry"):
        bus.execute("tinkex.a", {}, {})
    assert "tml-…a1b2" in caplog.text
    assert KEY not in caplog.text


def test_log_lines_show_no_key(caplog):
    bus = Bus()
    attach_logger("info", bus=bus)

    class Odd:
        def __str__(self):
            return f"odd {KEY}"

    with caplog.at_level(logging.INFO, logger="tinkex.events"):
        bus.execute(
            "tinkex.a", {}, {"authorization": KEY, "odd": Odd(), "long": "x" * 490 + f" {KEY}"}
        )
    assert KEY[:12] not in caplog.text
    assert "tml-…a1b2" in caplog.text
