"""Where tokenizers come from, and what is said when there is none."""

import sys
import threading
from pathlib import Path

import pytest

from tinkex.config import ProcessSettings
from tinkex.errors import TokenizerError, ValidationError
from tinkex.tokenizers.tokenizer import TokenizerCache, load_tokenizer, resolve_tokenizer_id
from tinkex.types import ModelInput


def settings(cache: Path, *, is_offline: bool = True) -> ProcessSettings:
    return ProcessSettings(
        is_debug=False, has_color=False, hub_cache=cache, is_hub_offline=is_offline
    )


@pytest.mark.parametrize(
    ("model", "tokenizer_id", "expected"),
    [
        ("Qwen/Qwen3-8B", None, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B:latest", None, "Qwen/Qwen3-8B"),
        ("Qwen/Qwen3-8B", "other/tokenizer", "other/tokenizer"),
        ("Qwen/Qwen3-8B", "", "Qwen/Qwen3-8B"),
        ("org/model/variant", None, "org/model"),
        ("org/model/variant:tag", None, "org/model"),
        ("a/b/c/d", None, "a/b/c/d"),
        ("gpt2", None, "gpt2"),
        (
            "meta-llama/Llama-3.1-8B",
            None,
            "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer",
        ),
        ("meta-llama/Llama-3.1-8B", "mine/own", "mine/own"),
        ("meta-llama/Llama-2-7b", None, "meta-llama/Llama-2-7b"),
        ("/models/tiny", None, "/models/tiny"),
        ("./models/tiny", None, "./models/tiny"),
        ("~/models/tiny:1", None, "~/models/tiny:1"),
    ],
)
def test_names_are_resolved_as_the_official_client_does(model, tokenizer_id, expected):
    assert resolve_tokenizer_id(model, tokenizer_id) == expected


def test_from_a_local_folder_or_its_file(make_folder):
    folder = make_folder()
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.name_or_path == str(folder)
    assert tokenizer.decode(tokenizer.encode("the quick")) == "the quick"
    assert load_tokenizer(str(folder / "tokenizer.json")).vocab_size == tokenizer.vocab_size


def hub_snapshot(cache: Path, name: str, commit: str, *, is_main: bool = True) -> Path:
    repo = cache / f"models--{name.replace('/', '--')}"
    if is_main:
        (repo / "refs").mkdir(parents=True, exist_ok=True)
        (repo / "refs" / "main").write_text(commit)
    return repo / "snapshots" / commit


def test_from_the_hub_cache_without_the_hub_library(make_folder, tmp_path, monkeypatch):
    make_folder(hub_snapshot(tmp_path / "hub", "org/model", "abc123"))
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    tokenizer = load_tokenizer("org/model", settings=settings(tmp_path / "hub"))
    assert tokenizer.name_or_path == "org/model"
    assert tokenizer.encode("the")


def test_hub_cache_prefers_main_and_makes_do_with_another_snapshot(make_folder, tmp_path):
    hub = tmp_path / "hub"
    make_folder(hub_snapshot(hub, "org/model", "old", is_main=False), eos_token="<|pad|>")
    assert load_tokenizer("org/model", settings=settings(hub)).eos_token == "<|pad|>"
    make_folder(hub_snapshot(hub, "org/model", "new"))
    make_folder(hub_snapshot(hub, "org/model", "other", is_main=False), eos_token="<|begin|>")
    assert load_tokenizer("org/model", settings=settings(hub)).eos_token == "<|im_end|>"


def test_from_the_hub_when_not_on_this_machine(make_folder, tmp_path, monkeypatch):
    import huggingface_hub

    calls = []

    def snapshot_download(repo_id, *, allow_patterns, cache_dir):
        calls.append((repo_id, cache_dir))
        assert "tokenizer.json" in allow_patterns
        assert not any("safetensors" in pattern for pattern in allow_patterns)
        return str(make_folder(tmp_path / "downloaded"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    where = settings(tmp_path / "hub", is_offline=False)
    assert load_tokenizer("org/model", settings=where).eos_token == "<|im_end|>"
    assert calls == [("org/model", tmp_path / "hub")]


def test_hub_failure_is_a_tokenizer_error(tmp_path, monkeypatch):
    import huggingface_hub

    def snapshot_download(*_, **__):
        raise OSError("name resolution failed.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer("org/model", settings=settings(tmp_path, is_offline=False))
    assert caught.value.message == ("Failed to load tokenizer org/model: name resolution failed.")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org/absent", "HF_HUB_OFFLINE is set"),
        ("/no/such/folder", "no such folder"),
        ("./absent", "no such folder"),
        ("a/b/c", "no Hugging Face id"),
        ("org/../../etc", "no Hugging Face id"),
        ("TML/Inkling", "no public tokenizer"),
    ],
)
def test_failure_is_a_users_error_in_one_form(name, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(name, settings=settings(tmp_path))
    assert caught.value.message.startswith(f"Failed to load tokenizer {name}: ")
    assert reason in caught.value.message
    assert caught.value.hint
    assert isinstance(caught.value, ValidationError)
    assert caught.value.type == "validation"


@pytest.mark.parametrize("name", ["", "  "])
def test_empty_name_is_no_name(name):
    with pytest.raises(TokenizerError, match="the name is empty"):
        load_tokenizer(name)


def test_code_that_comes_with_a_model_is_never_run(tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    (tmp_path / "tokenizer_config.json").write_text(
        '{"auto_map": {"AutoTokenizer": ["evil.Evil", null]}, "tokenizer_class": "Evil"}'
    )
    with pytest.raises(TokenizerError, match="Failed to load tokenizer"):
        load_tokenizer(str(tmp_path))
    assert not mark.exists()


def test_broken_file_is_a_tokenizer_error(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="Failed to load tokenizer"):
        load_tokenizer(str(tmp_path))


def test_folder_without_tokenizer_json_needs_transformers(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json") as caught:
        load_tokenizer(str(tmp_path))
    assert "pip install transformers" in caught.value.hint


def test_folder_without_tokenizer_json_is_converted(make_folder, tmp_path):
    from tokenizers import models

    folder = tmp_path / "old-style"
    make_folder(folder, tokenizer_class="GPT2Tokenizer", bos_token=None)
    expected = load_tokenizer(str(folder)).encode("the quick fox")
    backend = load_tokenizer(str(folder))._backend
    assert isinstance(backend.model, models.BPE)
    backend.model.save(str(folder))
    (folder / "tokenizer.json").unlink()
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    tokenizer = load_tokenizer(str(folder))
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.encode("the quick fox") == expected


def test_cache_loads_once_and_forgets_the_least_used(make_folder, tmp_path):
    cache = TokenizerCache(max_size=2)
    names = [str(make_folder(tmp_path / name)) for name in "abc"]
    first, second = (load_tokenizer(name, cache=cache) for name in names[:2])
    assert load_tokenizer(names[0], cache=cache) is first
    load_tokenizer(names[2], cache=cache)
    assert len(cache) == 2
    assert load_tokenizer(names[0], cache=cache) is first
    assert load_tokenizer(names[1], cache=cache) is not second


def test_failure_is_not_cached(make_folder, tmp_path):
    cache = TokenizerCache()
    with pytest.raises(TokenizerError):
        load_tokenizer(str(tmp_path / "later"), cache=cache)
    make_folder(tmp_path / "later")
    assert load_tokenizer(str(tmp_path / "later"), cache=cache)


def test_threads_asking_for_the_same_tokenizer_load_it_once(make_folder):
    tokenizer = load_tokenizer(str(make_folder()))
    cache, entered, go, loads, got = TokenizerCache(), threading.Event(), threading.Event(), [], []

    def slow_load():
        loads.append(1)
        entered.set()
        assert go.wait(10)
        return tokenizer

    threads = [
        threading.Thread(target=lambda: got.append(cache.get("x", slow_load))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert entered.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
    assert loads == [1]
    assert all(each is tokenizer for each in got)
    assert len(got) == 4


def test_from_text_accepts_it(make_folder):
    tokenizer = load_tokenizer(str(make_folder()))
    model_input = ModelInput.from_text("the quick fox", tokenizer)
    assert model_input.to_ints() == tokenizer.encode("the quick fox")
