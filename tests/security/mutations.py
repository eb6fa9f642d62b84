"""Requests made wrong, one way at a time or several: seeded, so that a failure can be run again.

A valid request is changed at any of its fields, in its JSON as text, in its bytes, in its path,
its query or its headers. Knows nothing of what a route does.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import zstandard

from tests.security.surface import PROTOBUF, Call

TRAVERSALS = [
    "..",
    ".",
    "../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e",
    "..\\..\\x",
    "/etc/passwd",
    "x/../../y",
    "x\x00.json",
    "~root",
    "file:///etc/passwd",
    "tinker://../weights/x",
    "tinker://a/weights/..",
    "tinker://a/weights/x/y",
    "C:\\x",
    "CON",
    "x\r\nSet-Cookie: a=b",
    ".ssh",
    "-rf",
    "a" * 129,
    "a..b",
]
TEXTS = [
    "",
    " ",
    "\x00",
    "\x7f",
    "\u202eevil",
    "A\u0301",
    "\ufb00",
    "\U0001f600",
    "\ufeff",
    "\ud800",
    "\udfff\ud800",
    "K" + "\u0345" * 50,
    "'; DROP TABLE keys; --",
    "{{7*7}}",
    "${jndi:ldap://x}",
    "<script>alert(1)</script>",
    "%s%n%x",
    "null",
    "NaN",
    "1e999",
    "0x10",
    "١٢٣",
    "²",
    "tml-0000000000000000000000000000",
    "eyJhbGciOiJub25lIn0.e30.",
    "x" * 5000,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467" * 200,
]
NUMBERS = [
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**32,
    2**53,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**31) - 1,
    -(2**63),
    -(2**63) - 1,
    10**30,
    10**400,
    0.1,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    1e-400,
    float("nan"),
    float("inf"),
    float("-inf"),
]
SHAPES: list[Any] = [
    None,
    True,
    False,
    [],
    {},
    [[]],
    [None],
    [None] * 50,
    {"": {}},
    {"type": "x"},
    {"__proto__": 1},
    {"a": {"b": {"c": {}}}},
    list(range(300)),
    ["a", 1, None, {}],
    [[[[[[1]]]]]],
    [float("nan")],
]
CONTENT_TYPES = [
    "",
    "text/plain",
    "application/json; charset=utf-16",
    "application/x-protobuf",
    "application/json",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
    "application/" + "j" * 3000,
    "\xff",
]
ENCODINGS = ["gzip", "br", "zstd", "identity", "deflate", "zstd, zstd", "", "ZSTD ", "x" * 200]
HEADERS: dict[str, list[str]] = {
    "accept": ["*/*", "", "application/x-protobuf", "text/html", "a" * 4000],
    "user-agent": ["", "AsyncTinker/Python 0.99999.0", "Tinker/Python 0.4.0", "\xe9" * 100],
    "x-tinker-weights-access-token": ["", "tml-x", "eyJ.e30.x", "\xff"],
    "x-idempotency-key": ["", "a" * 4000],
    "host": ["", "evil.example", "a:b:c", "[::1", "x" * 2000],
    "range": [
        "bytes=0-",
        "bytes=5-1",
        "bytes=-1",
        "bytes=0-0,1-1,2-2",
        "x",
        "bytes=" + "0-1," * 99,
    ],
    "if-range": ["x", '"x"'],
    "expect": ["100-continue", "x"],
    "x-forwarded-for": ["1.2.3.4", "' OR 1=1"],
    "transfer-encoding": ["identity"],
    "origin": ["http://evil.example"],
}
Mutator = Callable[[random.Random, Call], Call]


def mutate(rng: random.Random, call: Call) -> Call:
    """The call, made wrong in one to three ways; now and then left as it is."""
    if rng.random() < 0.03:
        return call
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        call = rng.choices(_MUTATORS, _WEIGHTS)[0](rng, call)
    return call


def nasty(rng: random.Random) -> Any:
    """A value that a field may not expect."""
    return copy.deepcopy(rng.choice(rng.choice([TEXTS, NUMBERS, SHAPES, TRAVERSALS])))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container and key or index inside a JSON value."""
    found: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        each = stack.pop()
        pairs: list[tuple[Any, Any]] = []
        if isinstance(each, dict):
            pairs = list(each.items())
        elif isinstance(each, list):
            pairs = list(enumerate(each))
        found += [(each, key) for key, _ in pairs]
        stack += [inner for _, inner in pairs]
    return found


def damage(rng: random.Random, raw: bytes) -> bytes:
    """Bytes with bits flipped, cut short, or with a piece put in, taken out or written twice."""
    body = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(body) + 1)
        match rng.randrange(6):
            case 0 if body:
                body[at % len(body)] ^= 1 << rng.randrange(8)
            case 1:
                del body[at:]
            case 2:
                body[at:at] = rng.randbytes(rng.choice([1, 2, 8, 64]))
            case 3:
                del body[at : at + rng.choice([1, 4, 16])]
            case 4:
                body[at:at] = body[at : at + rng.choice([1, 16, 200])]
            case 5 if body:
                body[at % len(body)] = rng.choice([0, 0x7F, 0x80, 0xFF])
    return bytes(body)


def as_text(rng: random.Random, value: Any) -> bytes:
    """JSON as careless or hostile writers write it."""
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    match rng.randrange(12):
        case 0 if isinstance(value, dict) and value:
            key = rng.choice(list(value))
            doubled = json.dumps({str(key): nasty(rng)})[1:-1]
            text = text[:-1] + ", " + doubled + "}"
        case 1:
            text = "\ufeff" + text
        case 2:
            return text.encode("utf-16", "surrogatepass")
        case 3:
            text += rng.choice([" ", "\x00", "{}", ",", "]", "// x", text])
        case 4:
            depth = rng.choice([31, 33, 100, 3000])
            text = '{"a":' * depth + text + "}" * depth
        case 5:
            text = text.replace('"', "'")
        case 6:
            text = text.replace(":", ":" + " " * 50)
    return text.encode("utf-8", rng.choice(["surrogatepass", "replace"]))


def _change_field(rng: random.Random, call: Call) -> Call:
    if not isinstance(call.content, dict | list):
        return _change_bytes(rng, call)
    content = copy.deepcopy(call.content)
    found = places(content)
    if not found:
        return call._replace(content=nasty(rng))
    where, key = rng.choice(found)
    match rng.randrange(7):
        case 0 if isinstance(where, dict):
            del where[key]
        case 1 if isinstance(where, dict):
            where[str(nasty(rng))[:300]] = where.pop(key)
        case 2:
            where[key] = [where[key]] * rng.choice([2, 40])
        case 3:
            where[key] = {"type": where[key]}
        case _:
            where[key] = nasty(rng)
    return call._replace(content=content)


def _change_text(rng: random.Random, call: Call) -> Call:
    if isinstance(call.content, bytes):
        return _change_bytes(rng, call)
    return call._replace(content=as_text(rng, call.content))


def _change_bytes(rng: random.Random, call: Call) -> Call:
    raw = call.body
    if raw is None:
        return call._replace(content=rng.randbytes(rng.choice([0, 1, 30])))
    if rng.random() < 0.1:
        return call._replace(content=rng.randbytes(rng.choice([0, 1, 10, 200, 5000])))
    return call._replace(content=damage(rng, raw))


def _change_path(rng: random.Random, call: Call) -> Call:
    parts = call.path.split("/")
    at = rng.randrange(1, len(parts))
    word = rng.choice([*TRAVERSALS, *TEXTS])[:400]
    text = quote(word.encode("utf-8", "surrogatepass"), safe=rng.choice(["", "/:.", "%"]))
    match rng.randrange(4):
        case 0:
            parts[at] = parts[at][: len(parts[at]) // 2] + text
        case 1:
            parts.insert(at, text)
        case _:
            parts[at] = text
    return call._replace(path="/".join(parts))


def _change_query(rng: random.Random, call: Call) -> Call:
    query = dict(call.query) or {"limit": "1"}
    key = rng.choice(list(query))
    value = nasty(rng)
    query[key] = value[:3000] if isinstance(value, str) else str(value)[:3000]
    query = {
        name.encode("utf-8", "replace").decode(): text.encode("utf-8", "replace").decode()
        for name, text in query.items()
    }
    return call._replace(query=query)


def _change_type(rng: random.Random, call: Call) -> Call:
    return call._replace(content_type=rng.choice(CONTENT_TYPES))


def _change_headers(rng: random.Random, call: Call) -> Call:
    name = rng.choice(list(HEADERS))
    return call._replace(headers={**call.headers, name: rng.choice(HEADERS[name])})


def _change_encoding(rng: random.Random, call: Call) -> Call:
    raw = call.body or b""
    headers = {**call.headers, "content-encoding": rng.choice(ENCODINGS)}
    packed = rng.choice(
        [
            raw,
            zstandard.compress(raw),
            zstandard.compress(raw)[: rng.randrange(1, 20)],
            damage(rng, zstandard.compress(raw)),
            zstandard.compress(zstandard.compress(raw)),
            gzip.compress(raw),
            zlib.compress(raw),
            zstandard.compress(bytes(3_000_000)),
        ]
    )
    return call._replace(content=packed, headers=headers)


def _change_method(rng: random.Random, call: Call) -> Call:
    return call._replace(method=rng.choice(["GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"]))


def _swap_form(rng: random.Random, call: Call) -> Call:
    """The other content type over the same body, and the other way round."""
    other = PROTOBUF if call.content_type != PROTOBUF else "application/json"
    return call._replace(content_type=other)


_MUTATORS: list[Mutator] = [
    _change_field,
    _change_text,
    _change_bytes,
    _change_path,
    _change_query,
    _change_type,
    _change_headers,
    _change_encoding,
    _change_method,
    _swap_form,
]
_WEIGHTS = [10, 3, 4, 2, 2, 1, 2, 1, 1, 1]
