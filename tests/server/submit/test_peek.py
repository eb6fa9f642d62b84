"""The model and number in a body of which only a part is known or can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tinkex.server.submit import peek
from tinkex.server.submit.peek import HEAD_BYTES, TAIL_BYTES, Target, target_of_json

LONG = b"x" * 2 * HEAD_BYTES
FOUND = Target("m", 7)


@pytest.mark.parametrize(
    "body",
    [
        b'{"model_id":"m","seq_id":7}',
        b' {\n "seq_id" : 7 , "x": NaN, "model_id" : "m" , ',
        b'{"a":{"model_id":"n","seq_id":8},"b":[{"seq_id":9}],"model_id":"m","seq_id":7,"c":[',
        b'{"a":"\\"seq_id\\":8,{[","model_id":"m","seq_id":7,"b":"\xff',
        b'{"model_id":"m","path":"' + LONG + b'","seq_id":7,"overwrite":false,"type":"x"}',
        b'{"input":[' + LONG + b'],"model_id":"m","seq_id":7}\n',
        b'{"seq_id":7,"input":["' + LONG + b'"],"model_id":"m","input2":["' + LONG + b'"]}',
    ],
)
def test_found(body: bytes) -> None:
    assert target_of_json(body, body) == FOUND


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model_id":"m","seq_id":7',  # more digits may follow
        b'{"model_id":"m","seq_id":1.7}',
        b'{"model_id":"m","seq_id":-7}',
        b'{"model_id":"m","seq_id":"7"}',
        b'{"model_id":"m","seq_id":0}',
        b'{"model_id":"m","seq_id":2147483648}',
        b'{"model_id":"","seq_id":7}',
        b'{"a":{"model_id":"m","seq_id":7}}',
        b'["model_id","m","seq_id",7]',
        b'{"a":"model_id\\":\\"m\\",\\"seq_id\\":7}',
        b'{"a":[' + LONG + b'],"b":{"model_id":"m","seq_id":7}}',
        b'{"model_id":"' + b"m" * 300 + b'","seq_id":7}',
    ],
)
def test_not_taken_for_a_number(body: bytes) -> None:
    assert target_of_json(body, body) is None


def test_only_a_part_is_looked_at() -> None:
    head = b'{"model_id":"m","path":"' + LONG
    assert target_of_json(head) is None
    assert target_of_json(head, LONG + b'","seq_id":7}') == FOUND
    assert target_of_json(head, b'","seq_id":7,"z":"' + b"z" * TAIL_BYTES + b'"}') is None


@pytest.mark.parametrize(
    "filling",
    [b"[" * 16_300, b"[" + b"[]" * 8_000, b"[" + b'{"a":1},' * 2_000, b"[" + b'"",' * 5_000],
)
def test_the_beginning_is_looked_at_only_so_far(
    filling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0
    tokens = peek._TOKEN

    class Counting:
        def finditer(self, head: bytes) -> Iterator[re.Match[bytes]]:
            nonlocal looked_at
            for token in tokens.finditer(head):
                looked_at += 1
                yield token

    monkeypatch.setattr(peek, "_TOKEN", Counting())
    assert target_of_json(b'{"a":' + filling) is None
    assert looked_at < 1_000


def test_long_lists_of_numbers_do_not_hide_what_follows() -> None:
    head = b'{"a":[' + b"1," * 3_000 + b'1],"model_id":"m","seq_id":7,"b":['
    assert target_of_json(head) == FOUND


def test_many_repeated_fields_at_the_end_are_not_all_followed() -> None:
    fields = b',"model_id":"m","seq_id":7'
    assert target_of_json(b"[", b'{"x":1' + 3 * fields + b"}") == FOUND
    assert target_of_json(b"[", b'{"x":1' + 150 * fields + b"}") == FOUND


@pytest.mark.parametrize(
    "head", [b'{"seq_id":7,"model_id":"m', b'{"seq_id":7,"model_id":null,"m', b'{"seq_id":7,"m"']
)
def test_a_cut_id_is_not_taken_for_a_whole_one(head: bytes) -> None:
    assert target_of_json(head) is None
