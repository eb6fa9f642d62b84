"""The commit of a package: written at a build, read from its own repository, never from another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import tinkex
from tinkex.commit import FILE_NAME, commit_of_package, commit_of_repository

ROOT = Path(__file__).parent.parent.parent
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *arguments: str) -> str:
    names = {"GIT_AUTHOR_NAME": "t", "GIT_COMMITTER_NAME": "t"}
    mails = {"GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_EMAIL": "t@t"}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false", *arguments]
    environ = {**plain, **names, **mails, "GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True)
    return done.stdout.decode().strip()


def project(folder: Path) -> Path:
    """A folder with the layout of this project; the package's folder."""
    package = folder / "src" / "tinkex"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text("")
    return package


def repository(folder: Path) -> str:
    """Makes the folder a repository with one commit; its hash."""
    git(folder, "init")
    git(folder, "commit", "--allow-empty", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


@needs_git
def test_a_clone_reports_what_is_checked_out(tmp_path: Path) -> None:
    package = project(tmp_path)
    first = repository(tmp_path)
    assert commit_of_package(package) == first
    git(tmp_path, "commit", "--allow-empty", "-m", "two")
    second = git(tmp_path, "rev-parse", "HEAD")
    assert commit_of_package(package) == second
    git(tmp_path, "pack-refs", "--all")
    assert commit_of_package(package) == second
    git(tmp_path, "checkout", "--detach", first)
    assert commit_of_package(package) == first


@needs_git
def test_a_worktree_reports_its_own_commit(tmp_path: Path) -> None:
    main = tmp_path / "main"
    main.mkdir()
    repository(main)
    git(main, "worktree", "add", "-b", "other", str(tmp_path / "other"))
    other = tmp_path / "other"
    git(other, "commit", "--allow-empty", "-m", "two")
    assert commit_of_package(project(other)) == git(other, "rev-parse", "HEAD")


@needs_git
def test_a_package_inside_anothers_repository_is_not_of_its_commit(tmp_path: Path) -> None:
    repository(tmp_path)
    installed = tmp_path / "venv" / "lib" / "site-packages" / "tinkex"
    installed.mkdir(parents=True)
    assert commit_of_package(installed) is None
    assert commit_of_package(project(tmp_path / "vendored")) is None


@needs_git
def test_neither_the_current_folder_nor_the_environment_names_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    repository(elsewhere)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("GIT_DIR", str(elsewhere / ".git"))
    assert commit_of_package(project(tmp_path / "copied")) is None


def test_what_a_build_wrote_down_goes_first(tmp_path: Path) -> None:
    package = project(tmp_path)
    (package / FILE_NAME).write_text("ab" * 20 + "\n")
    assert commit_of_package(package) == "ab" * 20
    (package / FILE_NAME).write_text("no commit")
    assert commit_of_package(package) is None


@pytest.mark.parametrize(
    "head",
    ["", "ref: refs/heads/none", "ref: ../../secret", "ref: HEAD", "zz" * 20, "ab" * 19, "\0\xff"],
)
def test_a_damaged_repository_has_no_commit(tmp_path: Path, head: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text(head)
    assert commit_of_repository(tmp_path) is None


def test_a_git_file_that_names_nothing_has_no_commit(tmp_path: Path) -> None:
    assert commit_of_repository(tmp_path) is None
    (tmp_path / ".git").write_text("gitdir: \0nowhere")
    assert commit_of_repository(tmp_path) is None


@needs_git
def test_wheels_and_source_packages_know_their_commit(tmp_path: Path) -> None:
    """Also a wheel that is built from a source package, far from any repository."""
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("tools", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    sha = repository(source)
    build(source, tmp_path / "dist", "wheel")
    build(source, tmp_path / "dist", "sdist")
    assert in_wheel(tmp_path / "dist") == sha
    assert commit_of_package(source / "src" / "tinkex") == sha, "nothing was left in the source"
    assert not (source / "src" / "tinkex" / FILE_NAME).exists()

    (archive,) = (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    build(unpacked, tmp_path / "again", "wheel")
    assert in_wheel(tmp_path / "again") == sha


def build(source: Path, target: Path, kind: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


def in_wheel(folder: Path) -> str:
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        return packed.read(f"tinkex/{FILE_NAME}").decode().strip()


def test_this_package_is_not_taken_for_another(tmp_path: Path) -> None:
    package = Path(tinkex.__file__).resolve().parent
    found = commit_of_package(package)
    if (ROOT / ".git").exists() and shutil.which("git") is not None:
        assert found == git(ROOT, "rev-parse", "HEAD")
