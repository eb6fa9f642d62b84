"""Series of metrics, names, status and usage of runs, by SDK and `tinkex`, on a real engine."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinkex
from tests.support.data import CROSS_ENTROPY
from tests.support.waiting import wait_until
from tinkex import AdamParams, Config, RestClient, Runtime, ServiceClient, TrainingClient, types
from tinkex.cli.main import CommandOutcome
from tinkex.cli.main import run as run_cli
from tinkex.cli.run_metrics import sparkline
from tinkex.engine.convert.tiny_model import make_tiny_model
from tinkex.errors import NotFoundError, TinkexError, ValidationError
from tinkex.server.config import ServedModel, ServerConfig
from tinkex.server.embedded import EmbeddedServer

NAME = "<img src=x onerror=alert(1)>"
Cli = Callable[..., str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    folder = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "smollm")
    config = ServerConfig(
        data_dir=tmp_path_factory.mktemp("metrics"),
        port=0,
        models=(ServedModel(name="tiny", source=str(folder)),),
        num_threads=1,
        trim_every_s=0.2,
    )
    with EmbeddedServer(config) as running:
        yield running


@pytest.fixture(scope="module")
def service(tiny: EmbeddedServer) -> Iterator[ServiceClient]:
    config = Config(base_url=tiny.base_url, api_key=tiny.api_key, environ={}, files=())
    with Runtime() as runtime, ServiceClient(config=config, runtime=runtime) as made:
        yield made


@pytest.fixture(scope="module")
def rest(service: ServiceClient) -> RestClient:
    return service.create_rest_client()


@pytest.fixture
def cli(tiny: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> Cli:
    """What a command wrote to stdout; it must end well, or as `code` says."""

    def call(*arguments: str, code: int = 0) -> str:
        capsys.readouterr()
        given = ["--base-url", tiny.base_url, "--api-key", tiny.api_key]
        outcome: CommandOutcome = run_cli([*arguments, *given])
        written = capsys.readouterr()
        assert outcome.exit_code == code, written.err
        return written.out or written.err

    return call


def datum(first: int = 5, weights: tuple[float, ...] = (0.0, 1.0, 0.5, 2.0, 1.0)) -> types.Datum:
    tokens = [first, 9, 17, 3, 40, 8]
    return types.Datum(
        types.ModelInput.from_ints(tokens[:-1]),
        {"target_tokens": tokens[1:], "weights": list(weights)},
    )


def train(training: TrainingClient, steps: int) -> list[dict[str, float]]:
    """What the client was told of each step, of two batches each."""
    reported = []
    for step in range(steps):
        batches = [
            training.forward_backward([datum(n), datum(n + 1)], CROSS_ENTROPY)
            for n in (step, step + 2)
        ]
        optim = training.optim_step(AdamParams(learning_rate=1e-2)).result(60)
        losses = [each.result(60).metrics["loss:sum"] for each in batches]
        assert optim.metrics is not None
        reported.append({"loss:sum": sum(losses), "grad_norm": optim.metrics["grad_norm"]})
    return reported


def new(service: ServiceClient, **metadata: Any) -> TrainingClient:
    return service.create_lora_training_client("tiny", rank=4, seed=1, user_metadata=metadata)


def test_a_point_has_the_metrics_of_the_steps_result(
    service: ServiceClient, rest: RestClient
) -> None:
    training = new(service)
    reported = train(training, 2)
    training.forward([datum()], CROSS_ENTROPY).result(60)
    assert training.forward_backward([datum()], CROSS_ENTROPY, {"bad": 1.0}).outcome(60).error
    reported += train(training, 1)
    page = rest.get_run_metrics(training.model_id).result(60)
    assert page.columns["index"] == page.columns["step"] == [1, 2, 3]
    assert page.columns["tokens"] == [20, 40, 60]
    for name in ("loss:sum", "grad_norm"):
        assert page.columns[name] == pytest.approx([each[name] for each in reported], rel=1e-6)
    learned = 2 * 2 * 4  # four targets of each datum have a weight
    assert page.columns["loss_per_token"] == pytest.approx(
        [each["loss:sum"] / learned for each in reported], rel=1e-6
    )
    assert page.columns["learning_rate"] == [1e-2] * 3
    assert not page.has_more
    assert not page.thinned
    assert repr(page).startswith("RunMetricsResponse(3 points of loss:sum")
    run = rest.get_training_run(training.model_id).result(60)
    assert run.latest is not None
    assert run.latest["step"] == 3
    assert run.latest["grad_norm"] == page.columns["grad_norm"][-1]


def test_what_is_logged_counts_for_the_steps_called_before_it(
    service: ServiceClient, rest: RestClient
) -> None:
    training = new(service)
    reported = []
    for step in range(4):
        training.forward_backward([datum(step)], CROSS_ENTROPY)
        training.optim_step(AdamParams())
        reported.append(training.log_metrics({"reward": step, NAME: math.nan}))
    reported.append(asyncio.run(training.log_metrics_async({"other": math.inf}, step=100)))
    assert [each.result(60).step for each in reported] == [1, 2, 3, 4, 100]
    wait_until(lambda: len(points(rest, training, ["loss:sum"])["index"]) == 9)
    columns = points(rest, training)
    logged = [n for n, value in enumerate(columns["reward"]) if value is not None]
    assert [columns["step"][n] for n in logged] == [1, 2, 3, 4]
    assert [columns["reward"][n] for n in logged] == [0, 1, 2, 3]
    assert columns[NAME] == [None] * 9, "numbers that are not finite are missing"
    run = (asyncio.run(rest.get_training_run_async(training.model_id))).latest
    assert run is not None
    assert run["reward"] == 3
    with pytest.raises(ValidationError, match="metrics\\['a'\\] is a list"):
        training.log_metrics({"a": [1]}).result(60)  # type: ignore[dict-item]
    for wrong in ({}, {"step": 1}, {"": 1}, {"x" * 200: 1}, {str(n): n for n in range(200)}):
        with pytest.raises(TinkexError):
            training.log_metrics(wrong).result(60)
    assert len(points(rest, training)["index"]) == 9, "what was refused added nothing"


def points(
    rest: RestClient, training: TrainingClient, names: list[str] | None = None, **how: Any
) -> dict[str, list[Any]]:
    return dict(rest.get_run_metrics(training.model_id, names, **how).result(60).columns)


def test_points_come_page_by_page_or_squeezed(service: ServiceClient, rest: RestClient) -> None:
    training = new(service)
    logged = [training.log_metrics({"x": number}, step=number) for number in range(30)]
    assert [each.result(60).cursor for each in logged] == list(range(1, 31))
    page = asyncio.run(rest.get_run_metrics_async(training.model_id, ["x"], after=25))
    assert page.columns["index"] == [26, 27, 28, 29, 30]
    assert page.cursor == 30
    assert (asyncio.run(rest.get_run_metrics_async(training.model_id, after=30))).cursor == 30
    squeezed = asyncio.run(
        rest.get_run_metrics_async(training.model_id, ["x", "none"], max_points=3)
    )
    assert squeezed.columns["x"] == [9, 19, 29]
    assert squeezed.columns["none"] == [None] * 3
    assert squeezed.thinned
    with pytest.raises(TinkexError, match="after"):
        asyncio.run(rest.get_run_metrics_async(training.model_id, after=-1))
    with pytest.raises(NotFoundError):
        asyncio.run(rest.get_run_metrics_async("nobody:train:0"))


@pytest.mark.parametrize("way", ["created", "loaded", "copied"])
def test_a_run_that_is_resumed_goes_on_with_its_name_and_series(
    service: ServiceClient, rest: RestClient, way: str
) -> None:
    first = new(service, name=NAME, dataset="d")
    train(first, 2)
    path = first.save_state("half").result(60).path
    train(first, 2)
    if way == "loaded":
        second = new(service)
        second.load_state_with_optimizer(path).result(60)
    else:
        path = rest.copy_weights(path).result(60) if way == "copied" else path
        second = service.create_training_client_from_state_with_optimizer(path)
    train(second, 1)
    run = rest.get_training_run(second.model_id).result(60)
    assert (run.name, run.tags) == (NAME, {"dataset": "d"})
    assert run.resumed_from is not None
    if way != "copied":
        assert run.resumed_from == first.model_id
    whole = points(rest, second)
    assert whole["step"] == whole["index"] == [1, 2, 3]
    assert whole["tokens"] == [20, 40, 60]
    assert whole["loss:sum"][2] == pytest.approx(points(rest, first)["loss:sum"][2], rel=1e-5)
    assert points(rest, second, with_chain=False)["step"] == [3]
    rest.update_run(second.model_id, name="both", tags={"a": "b"}).result(60)
    other = rest.get_training_run(first.model_id).result(60)
    assert (other.name, other.tags) == ("both", {"a": "b"})
    assert rest.update_run(first.model_id, name="").result(60).name is None


def test_a_run_says_what_it_trains(service: ServiceClient, rest: RestClient) -> None:
    made = service.create_lora_training_client("tiny", rank=2, alpha=8.0, train_mlp=False, seed=7)
    lora = rest.get_training_run(made.model_id).result(60).lora
    assert lora == types.LoraConfig(rank=2, alpha=8.0, seed=7, train_mlp=False)
    drawn = rest.get_training_run(service.create_lora_training_client("tiny").model_id).result(60)
    assert drawn.lora is not None
    assert (drawn.lora.rank, drawn.lora.alpha) == (drawn.lora_rank, 32.0)
    assert drawn.lora.seed is not None


def test_names_and_tags_are_bounded(service: ServiceClient, rest: RestClient) -> None:
    run_id = new(service, name="x" * 500, tags={"k": "v"}).model_id
    run = asyncio.run(rest.get_training_run_async(run_id))
    assert run.name == "x" * 128
    assert run.tags == {"k": "v"}
    for wrong in (
        {"name": "x" * 129},
        {"tags": {str(n): "" for n in range(65)}},
        {"tags": {"k" * 129: ""}},
        {"tags": {"k": "v" * 1025}},
    ):
        with pytest.raises(TinkexError, match="limit"):
            asyncio.run(rest.update_run_async(run_id, **wrong))  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        asyncio.run(rest.update_run_async("nobody:train:0", name="n"))


def test_a_run_says_what_it_does(service: ServiceClient, rest: RestClient) -> None:
    training = new(service)

    def status() -> tuple[str, str | None]:
        found = rest.get_training_run(training.model_id).result(60).status
        assert found is not None
        return found.state, found.reason

    train(training, 1)
    assert status()[0] == "running"
    wait_until(lambda: status() == ("idle", None), timeout_s=60)
    training.unload_model()
    assert status() == ("ended", "It was unloaded.")


def test_usage_is_exact(tiny: EmbeddedServer, service: ServiceClient, rest: RestClient) -> None:
    training = new(service)
    train(training, 2)
    training.forward([datum()], CROSS_ENTROPY).result(60)
    sampling = training.save_weights_and_get_sampling_client()
    prompt = types.ModelInput.from_ints([*range(1, 41)] * 5)
    params = types.SamplingParams(max_tokens=4, temperature=0.0)
    answers = [sampling.sample(prompt, count, params).result(60) for count in (2, 1)]
    sampled = sum(len(each.tokens) for answer in answers for each in answer.sequences)
    cached = sum(answer.prompt_cache_hit_tokens or 0 for answer in answers)
    assert cached > 0, "the prompt is in the cache the second time"
    (mine,) = [
        each
        for each in (asyncio.run(rest.get_usage_async("run"))).rows
        if each.run == training.model_id
    ]
    assert (mine.tokens_trained, mine.tokens_sampled, mine.tokens_cached) == (40, sampled, cached)
    assert mine.tokens_scored == 5 + 2 * 200 - cached
    assert 0 < mine.engine_seconds < 60
    for by in ("run", "total", "key", "day"):
        (of_run,) = rest.get_usage(by, run=training.model_id).result(60).rows  # type: ignore[arg-type]
        assert of_run.tokens_trained == 40
        assert of_run.tokens_sampled == sampled
    assert rest.get_usage("total", run="nobody:train:0").result(60).rows[0].tokens_trained == 0
    wait_until(lambda: kept(rest, training.model_id) > 0)
    whole = rest.get_usage("total").result(60).rows[0]
    for by in ("day", "key", "run"):
        rows = rest.get_usage(by).result(60).rows  # type: ignore[arg-type]
        for name in ("tokens_trained", "tokens_sampled", "tokens_scored", "tokens_cached"):
            assert sum(getattr(each, name) for each in rows) == getattr(whole, name)
    with pytest.raises(TinkexError, match="grouping"):
        asyncio.run(rest.get_usage_async("hour"))  # type: ignore[arg-type]


def kept(rest: RestClient, run_id: str) -> int:
    rows = rest.get_usage("run").result(60).rows
    return next(each.bytes_kept for each in rows if each.run == run_id)


def test_commands_show_metrics_and_usage(
    service: ServiceClient, rest: RestClient, cli: Cli
) -> None:
    training = new(service, name="before")
    train(training, 3)
    training.log_metrics({"reward": 1.5}).result(60)
    run_id = training.model_id
    table = cli("run", "metrics", run_id, "--names", "loss:sum,reward")
    assert [line.split()[0] for line in table.splitlines()] == ["METRIC", "loss:sum", "reward"]
    rows = list(csv.DictReader(io.StringIO(cli("run", "metrics", run_id, "--csv", "-"))))
    assert [each["step"] for each in rows] == ["1", "2", "3", "3"]
    assert json.loads(cli("run", "metrics", run_id, "--json", "--own"))["columns"]["index"][-1] == 4
    assert "no points" in cli("run", "metrics", new(service).model_id)
    cli("run", "metrics", run_id, "--json", "--follow", code=2)
    assert json.loads(cli("run", "rename", run_id, NAME, "--json"))["name"] == NAME
    assert NAME in cli("run", "rename", run_id, NAME)
    assert "no name" in cli("run", "rename", run_id, "")
    assert json.loads(cli("run", "tag", run_id, "a=b", "c=d", "--json"))["tags"]["a"] == "b"
    assert "c=d" in cli("run", "tag", run_id, "--remove", "a")
    cli("run", "tag", run_id, code=2)
    cli("run", "tag", run_id, "x", code=2)
    assert "tag c" in cli("run", "info", run_id)
    assert "STATUS" in cli("run", "list")
    for by in ("day", "key", "run", "total"):
        assert "TRAINED" in cli("usage", "--by", by)
    of_run = json.loads(cli("usage", "--by", "total", "--run", run_id, "--json"))["rows"][0]
    assert of_run["tokens_trained"] == 60
    assert of_run["bytes_kept"] == kept(rest, run_id)
    assert "attention, MLP, unembedding" in cli("run", "info", run_id)
    usage = json.loads(cli("usage", "--json", "--from", "2020-01-01", "--to", "2999-01-01"))
    assert usage["rows"][0]["tokens_trained"] >= 60
    assert "Nothing" in cli("usage", "--to", "2020-01-01")


def test_following_a_run_ends_with_it(service: ServiceClient, cli: Cli) -> None:
    training = new(service)
    train(training, 2)
    path = training.save_state("end").result(60).path
    training.unload_model()
    lines = cli("run", "metrics", path, "--follow").splitlines()
    assert [line.split()[2] for line in lines] == ["1", "2"]


def test_a_sparkline_shows_the_course() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0, 1.0]) == "▅▅"
    assert sparkline([1.0, None, 2.0, 3.0]) == "▁▅█"
    assert len(sparkline([float(n) for n in range(100)], width=10)) == 10


def test_a_server_without_metrics_is_not_sent_any(service: ServiceClient) -> None:
    training = new(service)
    flags = training._connection.flags
    bare = tinkex.types.ClientConfig(
        **{**flags.model_dump(), "extensions": [e for e in flags.extensions if e != "runs.metrics"]}
    )
    training._session.connection.flags = bare
    try:
        with pytest.raises(ValidationError, match="not announced"):
            training.log_metrics({"a": 1.0}).result(60)
    finally:
        training._session.connection.flags = flags
