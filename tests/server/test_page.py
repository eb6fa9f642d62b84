"""The page's files: who gets them, with which headers, under which names of the server."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import tinkex
from tests.server.driving import null_config
from tinkex import web
from tinkex.server.embedded import EmbeddedServer
from tinkex.server.http.hosts import AllowedHosts
from tinkex.web import files

STATIC = Path(web.__file__).parent / "static"
MAX_GZIPPED_BYTES = 150_000


Get = Callable[..., httpx.Response]


@pytest.fixture(scope="module")
def get(server: EmbeddedServer) -> Iterator[Get]:
    """A GET without a key."""
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        yield lambda path, **headers: client.get(path, headers=headers)


def test_the_page_comes_without_a_key_and_with_a_strict_policy(get: Get) -> None:
    answer = get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(
        part.partition(" ")[::2] for part in answer.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert "unsafe" not in str(policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"


def test_every_file_comes_compressed_and_only_once(get: Get) -> None:
    for name in sorted(files.names()):
        plain = get(f"/page/{name}", **{"accept-encoding": "identity"})
        assert plain.content == (STATIC / name).read_bytes()
        compressed = get(f"/page/{name}", **{"accept-encoding": "gzip"})
        assert compressed.headers["content-encoding"] == "gzip"
        assert compressed.content == plain.content
        again = get(f"/page/{name}", **{"if-none-match": plain.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert "content-security-policy" in again.headers


def test_only_files_of_the_page_are_public(server: EmbeddedServer, get: Get) -> None:
    for path in (
        "/page/",
        "/page/x.js",
        "/page/..%2ffiles.py",
        "/page/app.js/",
        "/page//app.js",
        "/x",
    ):
        assert get(path).status_code == 401, path
        with_key = get(path, **{"x-api-key": server.api_key})
        assert with_key.status_code in {404, 307}, path


def test_other_names_of_the_server_are_refused(get: Get) -> None:
    for host in ("evil.example", "localhost.evil.example", "evil.example:8000"):
        for path in ("/", "/page/app.js"):
            answer = get(path, host=host)
            assert (answer.status_code, answer.json()["code"]) == (421, "wrong-host")
    for host in ("localhost", "LOCALHOST:80", "a.localhost", "[::1]:8000", "192.168.1.4:8000"):
        assert get("/", host=host).status_code == 200, host
    assert get("/healthz", host="behind.proxy").status_code == 200


@pytest.mark.parametrize(
    ("allowed_hosts", "host", "is_allowed"),
    [
        (("gpu.example.org",), "gpu.example.org:443", True),
        (("GPU.example.org",), "gpu.example.ORG.", True),
        (("gpu.example.org",), "x.gpu.example.org", False),
        ((".example.org",), "a.b.example.org", True),
        ((".example.org",), "example.org.evil", False),
        (("*",), "anything.at.all", True),
        ((), "gpu.example.org", False),
        ((), "public.example.org", True),
        ((), "tinkex.internal", True),
        ((), "", False),
        ((), "[::1", True),
    ],
)
def test_allowed_hosts(
    allowed_hosts: tuple[str, ...], host: str, is_allowed: bool, tmp_path: Path
) -> None:
    config = null_config(
        tmp_path,
        allowed_hosts=allowed_hosts,
        public_url="https://public.example.org/",
        host="tinkex.internal",
    )
    assert AllowedHosts(config).allows(host) is is_allowed


def test_the_page_needs_nothing_from_elsewhere_and_no_inline_code() -> None:
    for path in sorted(STATIC.iterdir()):
        if path.name.startswith("uplot"):
            continue
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://", text), path.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(",
            text.replace("no innerHTML", ""),
        ), path.name
        if path.suffix == ".html":
            assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text)


def test_every_import_and_link_is_a_file() -> None:
    for path in STATIC.glob("*.js"):
        for name in re.findall(
            r"(?:from |import\()\"\./([^\"]+)\"", path.read_text(encoding="utf-8")
        ):
            assert name in files.names(), f"{path.name} imports {name}"
    index = (STATIC / files.INDEX).read_text(encoding="utf-8")
    for name in re.findall(r"/page/([\w.-]+)", index):
        assert name in files.names()


def test_files_stay_short_and_the_page_small() -> None:
    own = [path for path in STATIC.iterdir() if not path.name.startswith("uplot")]
    for path in own:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path.name
    gzipped = sum(len(gzip.compress(path.read_bytes(), 9)) for path in STATIC.iterdir())
    assert gzipped <= MAX_GZIPPED_BYTES


def test_the_vendored_library_has_its_licence() -> None:
    (library,) = STATIC.glob("uplot-*.js")
    assert library.name.removesuffix(".js").partition("-")[2] in library.read_text()[:200]
    assert "MIT" in (STATIC / "uplot-license.txt").read_text()


def test_clients_name_addresses_on_the_page(server: EmbeddedServer, get: Get) -> None:
    with tinkex.ServiceClient(base_url=server.base_url, api_key=server.api_key) as service:
        training = service.create_lora_training_client(base_model="null", rank=4)
        session = service.session_id
        assert service.get_console_url() == f"{server.base_url}/#/runs?q={session}"
        assert training.get_console_url() == f"{server.base_url}/#/runs/{session}%3Atrain%3A0"
        assert service.get_playground_url() == f"{server.base_url}/#/playground"
        with_weights = service.get_playground_url("tinker://a:train:0/sampler_weights/x")
        assert with_weights.endswith(
            "#/playground?b=tinker%3A%2F%2Fa%3Atrain%3A0%2Fsampler_weights%2Fx"
        )
        assert get(training.get_console_url().removeprefix(server.base_url)).status_code == 200
