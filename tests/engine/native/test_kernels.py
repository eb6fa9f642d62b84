"""The compiled kernels against the same written out in float64, and how they are built."""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.engine.conftest import SHAPES
from tests.engine.work import tokens
from tinkex.engine.interface import LoraSpec
from tinkex.engine.lora.adapter import AdapterWeights, LoraBatch, LoraGroup, LoraLayout, LoraTarget
from tinkex.engine.model.config import parse_config, read_json
from tinkex.engine.model.decoder import Decoder
from tinkex.engine.model.hf_weights import load_decoder
from tinkex.engine.model.rope import RopeTable
from tinkex.engine.model.spec import DecoderSpec, LayerSpec, NormSpec, QkNorm, RopeSpec
from tinkex.engine.native import build
from tinkex.engine.native.adapters import AdapterCopies, RowRuns
from tinkex.engine.native.forward import KernelOutputRows, NativePass
from tinkex.engine.native.kernels import Kernels
from tinkex.engine.native.step import KernelStep, StepList
from tinkex.engine.options import EngineOptions
from tinkex.engine.sampling.kv_cache import BLOCK_TOKENS, FIRST_BLOCK, KvCache
from tinkex.engine.torch_engine import TorchEngine


@pytest.fixture(params=[1, 2, 5], ids="{} threads".format)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return _kernels(request.param)


def _kernels(num_threads: int = 1) -> Kernels:
    try:
        return Kernels(build.library(), build.team_function(), num_threads)
    except build.NoKernels as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    torch.manual_seed(0)


def _config(
    heads: int, kv_heads: int, width: int, window: int = 0, qk_norm: QkNorm = "head"
) -> DecoderSpec:
    return DecoderSpec(
        arch="llama", vocab_size=9, hidden_size=heads * width, intermediate_size=8,
        num_heads=heads, num_kv_heads=kv_heads, head_dim=width, norm=NormSpec(1e-5),
        context_length=4096, ropes=(RopeSpec(theta=10_000.0),), has_tied_head=True,
        layers=(LayerSpec(window),), query_scale=1 / math.sqrt(width), qk_norm=qk_norm,
    )  # fmt: skip


class _Part:
    """The attributes of a prefill chunk that a step reads."""

    def __init__(self, start: int, end: int, blocks: list[int]) -> None:
        self.start, self.end, self.prefix = start, end, self
        self.tokens, self.blocks = np.zeros(end, np.int64), blocks


class _Sequences:
    """Sequences with some new rows, in scattered blocks, and the expected attention output."""

    def __init__(
        self, config: DecoderSpec, parts: list[tuple[int, int, bool]], rotated: int | None = None
    ) -> None:
        self.config = config
        count = sum(-(-end // BLOCK_TOKENS) for _, end, _ in parts)
        self.cache = KvCache(config, count, torch.zeros(1))
        free = (torch.randperm(count) + FIRST_BLOCK).tolist()
        self.rows, self.parts, self.past = StepList(), parts, []
        for start, end, is_kept in parts:
            blocks = [free.pop() for _ in range(-(-end // BLOCK_TOKENS))] if is_kept else []
            shape = 2, start, config.num_kv_heads, config.head_dim
            keys, values = torch.randn(shape)
            position = np.arange(start)
            if start:
                where = self.cache.places(
                    np.array(blocks)[position // BLOCK_TOKENS].tolist(),
                    (position % BLOCK_TOKENS).tolist(),
                )
                self.cache.store(0, where, keys, values)
            self.past.append((keys, values))
            part = _Part(start, end, blocks)
            self.rows.add_part(part)  # type: ignore[arg-type]
        angles = torch.randn(4096, (rotated or config.head_dim) // 2)
        self.angles = RopeTable(angles.cos(), angles.sin())
        width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        self.qkv = torch.randn(self.rows.num_rows, width)

    def output(self, kernels: Kernels) -> torch.Tensor:
        config, qkv = self.config, self.qkv.clone()
        step = KernelStep(self.rows, self.cache, config, [self.angles], kernels)
        kernels.rotate(step.rotate(0, qkv, (None, None)))
        output = torch.full((len(qkv), config.num_heads * config.head_dim), math.nan)
        kernels.attend(step.attention(0, qkv, output))
        return output

    def expected(self) -> torch.Tensor:
        config, found, row = self.config, [], 0
        group = config.num_heads // config.num_kv_heads
        for (start, end, _), (keys, values) in zip(self.parts, self.past, strict=True):
            rows = self.qkv[row : row + end - start].double().unflatten(1, (-1, config.head_dim))
            row += end - start
            positions = torch.arange(start, end)
            rotated = _rotated(rows, self.angles, positions)
            q, k = rotated[:, : config.num_heads], rotated[:, config.num_heads :]
            k = torch.cat([keys.double(), k[:, : config.num_kv_heads]])
            v = torch.cat([values.double(), rows[:, -config.num_kv_heads :]])
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
            distance = positions[:, None] - torch.arange(end)
            hidden = distance < 0
            if config.layers[0].window:
                hidden |= distance >= config.layers[0].window
            scores = torch.einsum("thc,mhc->htm", q, k) / math.sqrt(config.head_dim)
            probs = scores.masked_fill(hidden, -math.inf).softmax(-1)
            found.append(torch.einsum("htm,mhc->thc", probs, v).flatten(1))
        return torch.cat(found)


def _rotated(rows_THC: torch.Tensor, angles: RopeTable, positions: torch.Tensor) -> torch.Tensor:
    half = angles.cos_PZ.shape[1]
    cos, sin = (x[positions][:, None].double() for x in angles)
    a, b, rest = rows_THC.split([half, half, rows_THC.shape[-1] - 2 * half], dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1)


@pytest.mark.parametrize("window", [0, 70])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width"), [(9, 3, 64), (6, 2, 8), (4, 4, 80), (16, 2, 128), (5, 1, 20)]
)
def test_attention_follows_the_formula(heads, kv_heads, width, window, kernels) -> None:
    # Beginnings, continued prompts, single rows; kept or not; ends on both sides of blocks' edges.
    parts = [
        (0, 3, True), (0, 130, True), (0, 64, False), (64, 65, True), (63, 64, True),
        (700, 701, True), (128, 200, True), (5, 6, True), (0, 1, False), (0, 100, False),
    ]  # fmt: skip
    sequences = _Sequences(_config(heads, kv_heads, width, window), parts)
    expected = sequences.expected()
    torch.testing.assert_close(sequences.output(kernels).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("width", "rotated"), [(64, 48), (20, 2), (32, 16)])
def test_partial_rope_rotates_the_first_features_of_each_head(width, rotated, kernels) -> None:
    parts = [(0, 3, True), (64, 65, True), (0, 100, False)]
    sequences = _Sequences(_config(6, 2, width), parts, rotated)
    expected = sequences.expected()
    torch.testing.assert_close(sequences.output(kernels).double(), expected, atol=1e-5, rtol=1e-5)


def test_few_sequences_are_divided_by_heads_and_give_the_same_bits() -> None:
    many = _Sequences(_config(9, 3, 64), [(500, 501, True), *[(20, 21, True)] * 40])
    alone = _Sequences(_config(9, 3, 64), [(500, 501, True)])
    alone.qkv[:] = many.qkv[:1]
    alone.angles = many.angles
    keys, values = many.past[0]
    where = alone.cache.places(
        [int(alone.rows.block_tables()[i // BLOCK_TOKENS]) for i in range(500)],
        [i % BLOCK_TOKENS for i in range(500)],
    )
    alone.cache.store(0, where, keys, values)
    for num_threads in (1, 2, 30):
        kernels = _kernels(num_threads)
        assert torch.equal(alone.output(kernels)[0], many.output(kernels)[0]), num_threads


def test_cache_entries_beyond_the_end_do_not_affect_the_output(kernels) -> None:
    sequences = _Sequences(_config(6, 2, 64), [(70, 71, True), (0, 30, True)])
    expected = sequences.output(kernels)
    blocks = sequences.rows.block_tables().tolist()
    sequences.cache._k_LNKCW[0, blocks[1], :, :, 7:] = math.nan
    sequences.cache._v_LNKWC[0, blocks[1], :, 7:] = math.inf
    sequences.cache._k_LNKCW[0, blocks[2], :, :, 30:] = math.inf
    sequences.cache._v_LNKWC[0, blocks[2], :, 30:] = math.nan
    assert torch.equal(sequences.output(kernels), expected)


def test_a_key_that_is_not_a_number_affects_only_the_rows_that_attend_to_it(kernels) -> None:
    sequences = _Sequences(_config(6, 2, 64), [(70, 71, True), (0, 30, True), (3, 9, True)])
    expected = sequences.output(kernels)
    sequences.qkv[13] = math.nan  # within the second sequence
    found = sequences.output(kernels)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[31:], expected[31:])
    assert found[13:31].isnan().all()


@pytest.mark.parametrize("width", [8, 20, 64])
def test_queries_and_keys_are_normed_per_head(width, kernels) -> None:
    config = _config(4, 2, width)
    sequences = _Sequences(config, [(0, 15, True)])
    norms = torch.randn(2, width)
    step = KernelStep(sequences.rows, sequences.cache, config, [sequences.angles], kernels)
    qkv = sequences.qkv.clone()
    kernels.rotate(step.rotate(0, qkv, (norms[0], norms[1])))
    rows = sequences.qkv.double().unflatten(1, (-1, width))
    unit = rows / (rows.square().mean(-1, keepdim=True) + config.norm.eps).sqrt()
    weight = torch.cat([norms[:1].expand(4, -1), norms[1:].expand(2, -1)]).double()
    rotated = _rotated(unit[:, :6] * weight, sequences.angles, torch.arange(15))
    found = qkv.double().unflatten(1, (-1, width))
    torch.testing.assert_close(
        found[:, :4] * math.sqrt(width), rotated[:, :4], atol=1e-5, rtol=1e-5
    )
    (block,) = sequences.rows.block_tables().tolist()
    stored = sequences.cache._k_LNKCW[0, block, :, :, :15].permute(2, 0, 1).double()
    torch.testing.assert_close(stored, rotated[:, 4:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [8, 20, 64])
def test_queries_and_keys_are_normed_over_all_heads(width, kernels) -> None:
    config = _config(4, 2, width, qk_norm="projection")
    sequences = _Sequences(config, [(0, 15, True)])
    q_norm, k_norm = torch.randn(4 * width), torch.randn(2 * width)
    step = KernelStep(sequences.rows, sequences.cache, config, [sequences.angles], kernels)
    qkv = sequences.qkv.clone()
    kernels.rotate(step.rotate(0, qkv, (q_norm, k_norm)))
    halves = sequences.qkv.double().split([4 * width, 2 * width, 2 * width], dim=1)
    q, k = (F.rms_norm(x, x.shape[1:], eps=config.norm.eps) for x in halves[:2])
    rows = torch.cat([q * q_norm, k * k_norm], dim=1).unflatten(1, (-1, width))
    rotated = _rotated(rows, sequences.angles, torch.arange(15))
    found = qkv.double().unflatten(1, (-1, width))
    torch.testing.assert_close(
        found[:, :4] * math.sqrt(width), rotated[:, :4], atol=1e-5, rtol=1e-5
    )
    (block,) = sequences.rows.block_tables().tolist()
    stored = sequences.cache._k_LNKCW[0, block, :, :, :15].permute(2, 0, 1).double()
    torch.testing.assert_close(stored, rotated[:, 4:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("shape", [(1, 48), (40, 576), (7, 50)])
def test_norm_adds_and_scales(shape, kernels) -> None:
    x, plus, weight = torch.randn(shape), torch.randn(shape), torch.randn(shape[1])
    total = (x + plus).double()
    unit = total / (total.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    found = kernels.norm(x, plus, weight, 1e-5)
    torch.testing.assert_close(x.double(), total, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found.double(), unit * weight.double(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(kernels.norm(x, None, weight, 1e-5), found)


@pytest.mark.parametrize("shape", [(1, 48), (40, 576), (7, 50)])
@pytest.mark.parametrize("has_weight", [True, False])
def test_what_is_added_can_be_normed_first(shape, has_weight, kernels) -> None:
    x, plus, weights = torch.randn(shape), torch.randn(shape), torch.randn(2, shape[1])
    total = x.double() + F.rms_norm(plus.double(), shape[1:], eps=1e-5) * weights[0]
    weight = weights[1] if has_weight else None
    found = kernels.norm(x, plus, weight, 1e-5, plus_weight_D=weights[0])
    torch.testing.assert_close(x.double(), total, atol=1e-5, rtol=1e-5)
    expected = F.rms_norm(total, shape[1:], eps=1e-5) * weights[1] if has_weight else total
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_gelu_holds_for_small_and_large_numbers(kernels) -> None:
    gate = torch.tensor([-1e30, -20, -5, -1.5, -1e-3, -0.0, 1e-30, 0.5, 3, 30, 1e12, 1e30])
    gate_up = torch.cat([gate.repeat(3, 7), torch.randn(3, 84)], dim=1)
    x = gate_up[:, :84].double()
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    expected = x * torch.sigmoid(2 * u) * gate_up[:, 84:].double()
    found = kernels.gate(gate_up, "gelu_tanh").double()
    torch.testing.assert_close(found, expected, atol=1e-30, rtol=2e-5)
    gate_up[1, 3] = math.nan
    assert kernels.gate(gate_up, "gelu_tanh").isnan().nonzero().tolist() == [[1, 3]]


def test_swiglu_holds_for_small_and_large_numbers(kernels) -> None:
    gate = torch.tensor([-1e30, -200, -88.5, -87.4, -20, -1e-3, -0.0, 1e-30, 0.5, 30, 90, 1e30])
    gate_up = torch.cat([gate.repeat(3, 7), torch.randn(3, 84)], dim=1)
    expected = F.silu(gate_up[:, :84].double()) * gate_up[:, 84:].double()
    found = kernels.gate(gate_up, "silu").double()
    torch.testing.assert_close(found, expected, atol=1e-30, rtol=3e-6)
    gate_up[1, 3] = math.nan
    assert kernels.gate(gate_up, "silu").isnan().nonzero().tolist() == [[1, 3]]


def _groups(inputs: int, outputs: list[int]) -> list[LoraGroup]:
    """The sites of a layer, of which the first is the one under test."""
    targets = tuple(LoraTarget(f"t{i}", inputs, o) for i, o in enumerate(outputs))
    other = (LoraTarget("x", inputs, 16),)
    return [
        LoraGroup("first", "attn", targets),
        *(LoraGroup(f"other{i}", "mlp", other) for i in range(3)),
    ]


def _adapter(groups: list[LoraGroup], rank: int, **switches: bool) -> AdapterWeights:
    layout = LoraLayout(groups, LoraSpec(rank=rank, **switches))
    return AdapterWeights(layout, torch.randn(layout.numel) / 8)


@pytest.mark.parametrize("num_rows", [1, 13, 24, 25, 90])
@pytest.mark.parametrize(("inputs", "outputs"), [(48, [40]), (50, [20, 300]), (576, [576, 192, 9])])
def test_lora_is_added_to_the_rows_of_each_adapter(num_rows, inputs, outputs, kernels) -> None:
    groups = _groups(inputs, outputs)
    edges = [0, num_rows // 4, num_rows // 3, num_rows // 2, num_rows * 2 // 3, num_rows]
    owners = [
        _adapter(groups, 8), None, _adapter(groups, 1), _adapter(groups, 33),
        _adapter(groups, 8, train_attn=False),
    ]  # fmt: skip
    runs = [(edges[i], edges[i + 1], owner) for i, owner in enumerate(owners)]
    x, y = torch.randn(num_rows, inputs), torch.randn(num_rows, sum(outputs))
    expected = y.double()
    for start, end, owner in runs:
        pair = None if owner is None else owner.pairs.get("first")
        if pair is not None:
            down = (x[start:end].double() @ pair.a_RD.double().T).unflatten(1, (len(outputs), -1))
            for part, added in enumerate(expected[start:end].split(outputs, dim=1)):
                added += pair.scale * down[:, part] @ pair.bs_OR[part].double().T
    found = y.clone()
    rows = RowRuns(num_rows, runs, AdapterCopies(groups))
    job = rows.at(0, x, found)
    assert job is not None
    kernels.begin_lora(job)
    kernels.norm(torch.zeros_like(found), found, torch.ones(sum(outputs)), 1e-5, job)
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("rank", [3, 8, 33])
def test_bits_of_a_row_do_not_depend_on_how_many_share_a_step(rank) -> None:
    groups, kernels = _groups(50, [20, 300, 9]), _kernels(2)
    weights, x = _adapter(groups, rank), torch.randn(90, 50)
    found = []
    for count in (90, 25, 24, 7, 1):
        y = torch.ones(count, 329)
        rows = RowRuns(count, [(0, count, weights)], AdapterCopies(groups))
        job = rows.at(0, x, y)
        assert job is not None
        kernels.begin_lora(job)
        kernels.norm(torch.zeros_like(y), y, torch.ones(329), 1e-5, job)
        found.append(y[0])
    assert all(torch.equal(each, found[0]) for each in found)


def test_rows_without_an_adapter_need_no_lora() -> None:
    groups = _groups(48, [40])
    rows = RowRuns(3, [(0, 3, None)], AdapterCopies(groups))
    assert rows.at(0, torch.zeros(3, 48), torch.zeros(3, 40)) is None


def test_copies_are_made_once_and_freed_with_their_adapters() -> None:
    groups = _groups(48, [40])
    adapters = [_adapter(groups, 4), _adapter(groups, 4, train_mlp=False)]
    copies = AdapterCopies(groups)
    assert copies.of(adapters[0]) is copies.of(adapters[0])
    for weights in adapters:
        assert copies.size_bytes(weights.layout) == 4 * copies.of(weights)._flat.numel()
    del weights
    adapters.clear()
    assert len(copies._copies) == 0


def _decoder(folder: Path) -> Decoder:
    config = parse_config(read_json(folder / "config.json"))
    assert isinstance(config, DecoderSpec)
    return load_decoder(folder, config, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ("qwen3_moe", "float32", "they have no mixture of experts, which qwen3_moe models have"),
        ("smollm", "bfloat16", "they are for float32 on a CPU, not torch.bfloat16 on cpu"),
    ],
)
def test_the_log_says_why_a_model_is_sampled_without_kernels(
    shape, dtype, reason, model_folder, caplog
) -> None:
    caplog.set_level("INFO", "tinkex.engine")
    TorchEngine(EngineOptions(models={"tiny": str(model_folder(shape))}, dtype=dtype))
    assert f"Sampling runs without compiled kernels: {reason}." in caplog.messages


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape != "qwen3_moe"])
def test_a_native_pass_equals_the_forward_of_training(shape, model_folder, kernels) -> None:
    decoder = _decoder(model_folder(shape))
    layout = LoraLayout(decoder.groups, LoraSpec(rank=4))
    weights = AdapterWeights(layout, torch.randn(layout.numel) / 8)
    lengths, rows = [9, 9, 40, 80], StepList()
    for n in lengths:
        part = _Part(0, n, [])
        part.tokens = tokens(n)
        rows.add_part(part)  # type: ignore[arg-type]
    lora = LoraBatch([(9, None), (138, weights.pairs)])
    expected = decoder.forward_hidden(rows.tokens(), lengths, lora)
    model = NativePass(decoder, kernels, AdapterCopies(decoder.groups[:-1]))
    cache = KvCache(decoder.spec, 1, torch.zeros(1))
    runs = [(0, 9, None), (9, 138, weights)]
    wanted_N = torch.tensor([8, 17, 57, 137])
    wanted = KernelOutputRows(wanted_N, [(0, 1, None), (1, 4, weights)])
    with torch.inference_mode():
        step = KernelStep(rows, cache, decoder.spec, model.ropes, kernels)
        found = model.hidden(rows.tokens(), step, runs)
        some = model.hidden(rows.tokens(), step, runs, wanted)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(some, found[wanted_N], atol=2e-6, rtol=2e-6)


Find = Callable[[], "ctypes.CDLL | build.NoKernels"]


@pytest.fixture
def fresh_find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Find:
    """Finds kernels as a new process of a new user does."""
    with suppress(build.NoKernels):
        build.library()  # this process's own are not built into the new user's cache
    tmp_path.chmod(0o700)
    monkeypatch.setattr(build, "user_cache_path", lambda _: tmp_path / "cache")
    return build._find.__wrapped__


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Install:
    """Makes this shell script the only compiler, by each of the names; `real` is the machine's."""
    real = next(filter(None, map(shutil.which, build._COMPILERS)), None)
    folder = tmp_path / "bin"

    def put(script: str, *names: str) -> None:
        if real is None:
            pytest.skip("no C compiler")
        folder.mkdir(exist_ok=True)
        for name in names or build._COMPILERS:
            (folder / name).write_text(f"#!/bin/sh\nPATH={path}\nreal={real}\n{script}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    path = os.environ["PATH"]
    return put


def _kept(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "kernels").iterdir())


def test_without_a_compiler_there_are_none(
    fresh_find: Find, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no C compiler" in str(fresh_find())


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'no such header' >&2; exit 1", "no such header"),
        ("exit 0", "kernels.so"),  # and has made nothing
        ('echo "int x;" > $0.c; exec $real -shared -fPIC -o "${8}" $0.c', "tinkex_norm"),
    ],
    ids=["fails", "makes nothing", "makes something else"],
)
def test_a_compiler_that_fails_is_reported_and_nothing_is_kept(
    script, said, fresh_find: Find, install: Install, tmp_path: Path
) -> None:
    install(script)
    found = fresh_find()
    assert isinstance(found, build.NoKernels)
    assert str(found).count(said) >= len(build._COMPILERS), "each is told of"
    assert _kept(tmp_path) == []


@pytest.mark.parametrize("script", ["exit 1", "exit 0"], ids=["fails", "makes nothing"])
def test_the_next_compiler_is_tried_and_its_library_is_kept(
    script, fresh_find: Find, install: Install, tmp_path: Path
) -> None:
    install(f"echo >> $0.count; {script}", "cc")
    install('exec $real "$@"', "clang")
    for _ in range(2):
        assert isinstance(fresh_find(), ctypes.CDLL)
    assert (tmp_path / "bin" / "cc.count").read_text() == "\n", "not asked at every start"


def test_a_compiler_of_two_names_is_tried_once(
    fresh_find: Find, install: Install, tmp_path: Path
) -> None:
    install("echo >> $0.count; exit 1", "gcc")
    (tmp_path / "bin" / "cc").symlink_to("gcc")
    assert isinstance(fresh_find(), build.NoKernels)
    assert (tmp_path / "bin" / "cc.count").read_text() == "\n"


def test_the_output_of_a_compiler_may_be_any_bytes(fresh_find: Find, install: Install) -> None:
    install("printf 'warning: \\351\\n' >&2; exec $real \"$@\"")
    assert isinstance(fresh_find(), ctypes.CDLL)


def test_kernels_are_built_once(fresh_find: Find, install: Install, tmp_path: Path) -> None:
    install('echo >> $0.count; exec $real "$@"')
    for _ in range(3):
        assert isinstance(fresh_find(), ctypes.CDLL)
    assert (tmp_path / "bin" / "cc.count").read_text().count("\n") == 1
    (made,) = _kept(tmp_path)
    assert stat.S_IMODE(made.parent.stat().st_mode) == 0o700


def test_libraries_not_used_for_long_are_deleted(fresh_find: Find, tmp_path: Path) -> None:
    _kernels()
    fresh_find()
    (made,) = _kept(tmp_path)
    old, recent = made.with_name("old.so"), made.with_name("recent.so")
    long_ago = time.time() - build._UNUSED_S - 60
    for path in (made, old, recent):
        path.touch()
        if path != recent:
            os.utime(path, (long_ago, long_ago))
    fresh_find()  # which uses the first
    made_again = made.rename(made.with_name(f"other-{made.name}"))  # so that one has to be built
    fresh_find()
    assert set(_kept(tmp_path)) == {made, made_again, recent}


@pytest.mark.parametrize("size", [0, 20_000])
def test_a_file_that_was_cut_short_is_built_again(size, fresh_find: Find, tmp_path: Path) -> None:
    _kernels()
    fresh_find()
    (made,) = _kept(tmp_path)
    whole = made.read_bytes()
    made.unlink()  # not written to, for it is mapped into this process
    made.write_bytes(whole[:size])
    assert isinstance(fresh_find(), ctypes.CDLL)
    assert [path.stat().st_size for path in _kept(tmp_path)] == [len(whole)]


@pytest.mark.parametrize("folder", ["cache", "cache/kernels"])
def test_a_folder_others_can_write_to_is_not_trusted(
    folder, fresh_find: Find, tmp_path: Path
) -> None:
    _kernels()
    (tmp_path / "cache" / "kernels").mkdir(parents=True)
    (tmp_path / folder).chmod(0o777)
    assert isinstance(fresh_find(), ctypes.CDLL), "built elsewhere"
    assert _kept(tmp_path) == []


def test_a_user_without_a_home_folder_has_kernels_too(
    fresh_find: Find, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kernels()

    def no_home(_: str) -> Path:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(build, "user_cache_path", no_home)
    assert isinstance(fresh_find(), ctypes.CDLL)


def test_another_openmp_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: {}.get)
    with pytest.raises(build.NoKernels, match="OpenMP"):
        build.team_function()
