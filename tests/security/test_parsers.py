"""Every reader of foreign bytes: a value or its own typed error, whatever comes.

`PARSERS` lists them with the errors each may raise and inputs to begin from; a campaign damages
those inputs, mixes them, and makes up others. A result is looked at no further: that it is there,
and that it took no more memory than its limit allows, is the promise.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import json as plain_json
import random
import shutil
import tempfile
import tracemalloc
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.security.mutations import NUMBERS, TEXTS, TRAVERSALS, as_text, damage, nasty, places
from tests.security.surface import REQUESTS, Call
from tests.security.things import Things
from tests.server.driving import training_body
from tests.support.soak import SEED, amount
from tests.unit.wire import strategies as s
from tinkex.client.download import _safe_name
from tinkex.client.retry import retry_after_s
from tinkex.client.sampler_handle import SamplerHandle
from tinkex.config import Config
from tinkex.errors import (
    APIResponseValidationError,
    ClientError,
    ConfigError,
    InvalidPathError,
    ValidationError,
)
from tinkex.server.gate.signing import Signer
from tinkex.server.gate.signing_secret import SecretFile, ensure_secret_file
from tinkex.server.http.compression import decompress
from tinkex.server.submit.peek import target_of_json, target_of_protobuf
from tinkex.types import requests as request_types
from tinkex.types.checkpoint import ParsedCheckpointTinkerPath
from tinkex.types.search import SessionSearchRequest
from tinkex.wire import json, legacy_json, protobuf
from tinkex.wire.limits import Limits
from tinkex.wire.paths import TinkerPath, is_checkpoint_name

INPUTS = amount(400, 200_000)
LIMITS = Limits(max_body_bytes=1_000_000, max_tensor_values=1 << 16, chunk_max_bytes=100_000)
Seeds = Callable[[random.Random], bytes]


class Parser(NamedTuple):
    """A reader, what it may raise, and how its inputs are made before they are damaged."""

    read: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...]
    seeds: Seeds


def one_of(*inputs: bytes) -> Seeds:
    return lambda rng: rng.choice(inputs)


def as_str(read: Callable[[str], Any]) -> Callable[[bytes], Any]:
    return lambda raw: read(raw.decode("utf-8", "surrogateescape"))


def json_of(*values: Any) -> Seeds:
    """JSON texts of these values, changed at a field and in how they are written."""

    def make(rng: random.Random) -> bytes:
        value = plain_json.loads(plain_json.dumps(rng.choice(values)))
        for _ in range(rng.choice([0, 1, 1, 2])):
            if found := places(value):
                where, key = rng.choice(found)
                where[key] = nasty(rng)
        return as_text(rng, value)

    return make


def bodies_of(*paths: str) -> list[Any]:
    """The JSON bodies of these routes."""
    things = Things.of_nobody()
    calls: Iterable[Call] = (REQUESTS["POST", path].make(things) for path in paths)
    return [call.content for call in calls if not isinstance(call.content, bytes)]


def training_bodies() -> list[bytes]:
    """Training requests in protobuf: plain, sparse, with spans and settings, with images."""
    found = [training_body("m:train:0", 1), training_body("m:train:0", 2, tokens=300)]
    crow, col = array("q", [0, 1, 2]).tobytes(), array("q", [1, 0]).tobytes()
    csr = b"\x0a\x08" + bytes(8) + b"\x12\x18" + crow + b"\x1a\x10" + col
    tensor = b"\x12" + bytes([len(csr)]) + csr + b"\x18\x01" + b"\x22\x02\x02\x02"
    entry = b"\x0a\x01w\x12" + bytes([len(tensor)]) + tensor
    datum = b"\x12" + bytes([len(entry)]) + entry
    found.append(b"\x0a\x01m\x10\x01\x1a" + bytes([len(datum)]) + datum + b"\x22\x03ppo")
    spans = b"\x1a\x08\x0a\x06\x0a\x01s\x10\x05\x18"[:10] + b"\x07"
    image = b"\x0a\x0a\x12\x08\x0a\x02ab\x12\x02pn"
    found.append(b"\x1a" + bytes([len(image)]) + image + b"\x1a" + bytes([len(spans)]) + spans)
    found.append(
        b"\x2a\x0c\x0a\x01k\x11" + bytes(8) + b"\x3a\x08\x0a\x01k\x12\x03\x12\x01v\x30\x01"
    )
    return found


def answers() -> dict[str, list[bytes]]:
    """Results as a server sends them, in both forms."""
    floats = array("f", [-1.0, -2.0]).tobytes()
    sample = legacy_json.decode_sample_response(
        b'{"sequences":[{"stop_reason":"stop","tokens":[1,2],"logprobs":[-1.0,-2.0],'
        b'"topk_logprobs":[[[1,-0.5]],[[2,-1.5]]]}],"prompt_logprobs":[null,-1.0]}'
    )
    output = legacy_json.decode_forward_backward_output(
        b'{"loss_fn_output_type":"x","loss_fn_outputs":[{"logprobs":{"data":[-1.0,-2.0],'
        b'"dtype":"float32","shape":[2]}}],"metrics":{"loss:sum":1.5}}'
    )
    assert floats
    return {
        "sample": [protobuf.encode_sample_response(sample)],
        "output": [protobuf.encode_forward_backward_output(output)],
        "old sample": [legacy_json.encode_sample_response(sample)],
        "old output": [legacy_json.encode_forward_backward_output(output)],
    }


def requests_reader(raw: bytes) -> Any:
    """Every JSON request type, one after the other by the first byte."""
    types = JSON_TYPES
    return json.decode_request(raw[1:], types[raw[0] % len(types)] if raw else types[0])


JSON_TYPES: list[Any] = [
    *(
        each
        for each in vars(request_types).values()
        if isinstance(each, type)
        and issubclass(each, msgspec.Struct)
        and each.__name__.endswith("Request")
        and each.__name__ not in {"_Request", "ForwardBackwardRequest"}
    ),
    SessionSearchRequest,
]
JSON_PATHS = [path for method, path in REQUESTS if method == "POST" and "{" not in path]
SECRET = Path(tempfile.mkdtemp(prefix="tinkex-parsers-")) / "signing-secret"
atexit.register(shutil.rmtree, SECRET.parent, ignore_errors=True)
ensure_secret_file(SECRET)
SIGNER = Signer(SecretFile(SECRET))
TOKEN = SIGNER.make_token({"key": "00" * 32, "exp": 9_999_999_999, "until": 9e9}).encode()
HANDLE = SamplerHandle(base_url="http://x", session_id="s", sampling_session_id="s:sample:0")
TOML = b'[client]\nbase_url = "http://127.0.0.1:8000"\ntimeout_s = 30\ntags = ["a"]\n'


def read_toml(raw: bytes, folder: Any = None) -> Any:
    path = FOLDER / "tinkex.toml"
    path.write_bytes(raw)
    return Config(environ={}, files=[path]).as_dict()


def read_download_link(raw: bytes) -> bool:
    name, _, rest = raw.decode("utf-8", "replace").partition("|")
    expires, _, signature = rest.partition("|")
    return SIGNER.allows_download("0" * 32, name, expires, signature)


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FOLDER
    FOLDER = tmp_path_factory.mktemp("parsers")


FOLDER: Any = None
_PATHS = [*TRAVERSALS, *TEXTS, "tinker://a:train:0/weights/x", "tinker://a/sampler_weights/b.c"]
PATHS = [text.encode("utf-8", "surrogatepass") for text in _PATHS]
PACKED = [zstandard.compress(b"{}"), zstandard.compress(bytes(50_000)), zstandard.compress(b"")]
LINK = f"x.json|99999999999|{SIGNER.sign_download('0' * 32, 'x.json', 99999999999)}".encode()
ANSWERS = answers()
TRAINING = training_bodies()

PARSERS: dict[str, Parser] = {
    "training request": Parser(
        lambda raw: protobuf.decode_forward_backward_request(raw, limits=LIMITS),
        (ClientError,),
        one_of(*TRAINING),
    ),
    "training result": Parser(
        protobuf.decode_forward_backward_output,
        (APIResponseValidationError,),
        one_of(*ANSWERS["output"]),
    ),
    "sampling result": Parser(
        protobuf.decode_sample_response, (APIResponseValidationError,), one_of(*ANSWERS["sample"])
    ),
    "json requests": Parser(
        requests_reader,
        (ClientError,),
        lambda rng: bytes([rng.randrange(256)]) + json_of(*bodies_of(*JSON_PATHS))(rng),
    ),
    "old training request": Parser(
        lambda raw: legacy_json.decode_forward_backward_request(raw, limits=LIMITS),
        (ClientError,),
        json_of(*bodies_of("/forward")),
    ),
    "old results": Parser(
        lambda raw: (
            legacy_json.decode_sample_response(raw)
            if len(raw) % 2
            else legacy_json.decode_forward_backward_output(raw)
        ),
        (APIResponseValidationError,),
        one_of(*ANSWERS["old sample"], *ANSWERS["old output"]),
    ),
    "zstd": Parser(lambda raw: decompress(raw, LIMITS.max_body_bytes), (), one_of(*PACKED)),
    "head of a training request": Parser(target_of_protobuf, (), one_of(*TRAINING)),
    "head of a json request": Parser(
        lambda raw: (target_of_json(raw, raw), target_of_json(raw[:40], raw[-40:])),
        (),
        json_of({"model_id": "m", "seq_id": 1, "x": [{}]}),
    ),
    "tinker path": Parser(as_str(TinkerPath.parse), (InvalidPathError,), one_of(*PATHS)),
    "lenient tinker path": Parser(
        as_str(ParsedCheckpointTinkerPath.from_tinker_path), (InvalidPathError,), one_of(*PATHS)
    ),
    "checkpoint name": Parser(as_str(is_checkpoint_name), (), one_of(*PATHS)),
    "name of a download": Parser(as_str(_safe_name), (APIResponseValidationError,), one_of(*PATHS)),
    "token": Parser(as_str(SIGNER.read_token), (), one_of(TOKEN, b"eyJ.e30.x", b"a.b.c")),
    "link": Parser(read_download_link, (), one_of(LINK)),
    "sampler handle": Parser(
        as_str(SamplerHandle.from_text), (ValidationError,), one_of(HANDLE.to_text().encode())
    ),
    "retry-after": Parser(
        lambda raw: retry_after_s({"retry-after": raw.decode("latin-1")}, 0.0),
        (),
        one_of(b"5", b"0.5", b"Wed, 21 Oct 2026 07:28:00 GMT", b"1e400", b"nan", b"-1"),
    ),
    "settings file": Parser(read_toml, (ConfigError,), one_of(TOML)),
}


def inputs_of(rng: random.Random, seeds: Seeds) -> bytes:
    """An input: as it was made, damaged, spliced with another, or nothing but noise."""
    raw = seeds(rng)
    match rng.randrange(10):
        case 0:
            return raw
        case 1:
            return rng.randbytes(rng.choice([0, 1, 7, 40, 300]))
        case 2:
            other = seeds(rng)
            return raw[: rng.randrange(len(raw) + 1)] + other[rng.randrange(len(other) + 1) :]
        case 3:
            number = str(rng.choice(NUMBERS)).encode()
            at = rng.randrange(len(raw) + 1)
            return raw[:at] + number + raw[at:]
        case _:
            return damage(rng, raw)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARSERS)
def test_any_input_is_read_or_refused(name: str) -> None:
    parser = PARSERS[name]
    for number in range(INPUTS):
        rng = random.Random(f"{SEED}-{name}-{number}")
        raw = inputs_of(rng, parser.seeds)
        try:
            parser.read(raw)
        except parser.errors:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, input {number}: {error!r} for {raw!r}") from error


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=amount(30, 2000), deadline=None, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=300))
def test_arbitrary_bytes(name: str, raw: bytes) -> None:
    parser = PARSERS[name]
    with contextlib.suppress(*parser.errors):
        parser.read(raw)


@settings(max_examples=amount(100, 20_000), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_requests_of_any_type_with_any_values(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(JSON_TYPES))
    value = data.draw(s.JSON_VALUES)
    fields = data.draw(
        st.dictionaries(
            st.sampled_from(type_.__struct_fields__ or ("x",)), st.just(value) | s.JSON_VALUES
        )
    )
    with contextlib.suppress(ClientError):
        json.decode_request(plain_json.dumps(fields).encode(), type_)


BOMBS = {
    "a tensor of a few bytes and many values": (
        "training request",
        b"\x1a\x1d\x12\x1b\x0a\x01w\x12\x16\x12\x04\x12\x02\x00\x00"
        b"\x18\x01\x22\x0c" + b"\xff\xff\xff\xff\x0f" * 2 + b"\x01\x01",
    ),
    "brackets": ("json requests", b"\x00" + b"[" * 100_000),
    "quotes": ("json requests", b"\x00" + b'"' * 100_000),
    "backslashes": ("json requests", b"\x00" + b'"' + b"\\" * 100_001),
    "digits": ("json requests", b'\x00{"seq_id": ' + b"9" * 100_000 + b"}"),
    "equal keys": ("json requests", b"\x00{" + b'"a":1,' * 50_000 + b'"a":1}'),
    "slashes": ("tinker path", b"tinker://" + b"/" * 100_000),
    "dots": ("checkpoint name", b"a" + b"." * 100_000),
    "zeros": ("zstd", zstandard.compress(bytes(200_000_000))),
    "dots in a token": ("token", b"eyJ" + b"." * 100_000),
    "padding in a handle": ("sampler handle", b"=" * 100_000),
    "dates": ("retry-after", b"Wed, " * 20_000),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_input_stays_small(bomb: str) -> None:
    name, raw = BOMBS[bomb]
    parser = PARSERS[name]
    tracemalloc.start()
    try:
        parser.read(raw)
    except parser.errors:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8_000_000, f"{len(raw)} bytes took {peak}"


def test_names_cannot_leave_a_folder() -> None:
    for text in TRAVERSALS:
        try:
            assert ".." not in _safe_name(text).split("/")
        except APIResponseValidationError:
            continue
    refused = ["..", "../../etc/passwd", "/etc/passwd", "x/../../y", "..\\..\\x", "x\x00.json"]
    for text in refused:
        with pytest.raises(APIResponseValidationError):
            _safe_name(text)
        assert not is_checkpoint_name(text)


def test_handles_survive_being_written_down() -> None:
    assert SamplerHandle.from_text(HANDLE.to_text()) == HANDLE
    with pytest.raises(ValidationError):
        SamplerHandle.from_text(base64.urlsafe_b64encode(b"[]").decode())
