"""Hints on what to install are commands that work for the installation at hand."""

import json
from importlib.metadata import Distribution, PackageNotFoundError

import pytest

from tinkex.cli import installing
from tinkex.cli.installing import install_command


class Installed(Distribution):
    def __init__(self, record):
        self._record = record

    def read_text(self, filename):
        if filename == "direct_url.json":
            return None if self._record is None else json.dumps(self._record)
        return "Metadata-Version: 2.1\nName: tinkex\nVersion: 0\n" if "META" in filename else None

    def locate_file(self, path):
        return path


@pytest.fixture
def installed(monkeypatch):
    def install(record):
        monkeypatch.setattr(installing, "distribution", lambda _: Installed(record))

    return install


@pytest.mark.parametrize(("editable", "flag"), [({}, ""), ({"editable": True}, "-e ")])
def test_install_from_a_clone_names_its_folder(installed, tmp_path, editable, flag):
    clone = tmp_path / "my clone"
    clone.mkdir()
    (clone / "pyproject.toml").write_text("")
    installed({"url": clone.as_uri(), "dir_info": editable})
    assert install_command("server") == f"pip install {flag}'{clone}[server]'"


def test_clone_that_has_moved(installed, tmp_path):
    installed({"url": (tmp_path / "gone").as_uri(), "dir_info": {}})
    assert install_command("server") == "pip install '.[server]'"


def test_install_from_elsewhere(installed, monkeypatch):
    installed({"url": "https://example.org/t.git", "vcs_info": {"vcs": "git"}})
    assert install_command("hf") == "pip install 'tinkex[hf] @ git+https://example.org/t.git'"
    installed({"url": "file:///w/tinkex-1.whl", "archive_info": {}})
    assert install_command() == "pip install 'tinkex @ file:///w/tinkex-1.whl'"
    installed(None)
    assert install_command("server") == "pip install 'tinkex[server]'"

    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr(installing, "distribution", missing)
    assert install_command("server") == "pip install '.[server]'"


def test_this_installation_has_a_command():
    assert install_command("server").startswith("pip install ")
