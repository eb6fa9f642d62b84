"""`tinkex train` against the loopback server: steps, checkpoints, stopping and going on."""

import json
import os
import signal
from pathlib import Path

import pytest

from tinkex.cli.sft_loop import StopRequest, Trainer


@pytest.fixture
def train(cli, model, data):
    """Trains on the ten conversations, two at a time, in the folder `out`."""

    def train_it(*arguments):
        base = ["--base-model", model, "--batch-size", "2", "--output", "out"]
        return cli("train", str(data), *base, *arguments)

    return train_it


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def state(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def batches(server, model_id=None) -> list[list[int]]:
    """The numbers in the questions of each batch that was trained on, in order."""
    order = list(server.service.world.models)
    calls = sorted(
        (call.decoded for call in server.calls("forward_backward")),
        key=lambda body: (order.index(body.model_id), body.seq_id),
    )
    return [
        [bytes(t for t in datum.model_input.to_ints() if t < 256)[5] - 48 for datum in body.data]
        for body in calls
        if model_id in (None, body.model_id)
    ]


def kinds(server, model_id=None) -> list[str]:
    return [kind for _, kind in server.applied(model_id)]


def test_trains_saves_and_says_what_to_do_next(train, server, tmp_path):
    ran = train("--epochs", "2", "--save-every", "4")
    assert ran.code == 0, ran.err
    assert ran.out.strip().endswith("/sampler_weights/final")
    assert "tinkex chat --model-path" in ran.err
    steps = metrics(tmp_path / "out")
    assert [each["step"] for each in steps] == list(range(1, 11))
    assert steps[-1]["epoch"] == 2.0
    assert steps[0]["loss"] > steps[5]["loss"] > 0
    assert {"learning_rate", "tokens", "learned_tokens", "tokens_per_s", "elapsed_s"} <= set(
        steps[0]
    )
    assert kinds(server).count("optim_step") == 10
    saved = [entry.detail for entry in server.history() if entry.kind == "save_weights"]
    assert [path.rpartition("/")[2] for path in saved] == ["step-000004", "step-000008", "final"]
    assert state(tmp_path / "out")["is_finished"]


def test_each_step_is_a_batch_and_an_optimizer_step_in_order(train, server):
    train("--max-steps", "3")
    expected = ["forward_backward", "optim_step"] * 3 + ["save_weights", "save_weights_for_sampler"]
    assert kinds(server) == expected
    assert all(
        entry.detail["gradients"] == 1 for entry in server.history() if entry.kind == "optim_step"
    )


def test_json_summary(train, tmp_path):
    ran = train("--max-steps", "2", "--json")
    assert list(ran.json) == [
        *("run_id", "steps", "loss", "checkpoint", "sampler_checkpoint", "output", "metrics")
    ]
    assert ran.json["steps"] == 2
    assert ran.json["output"] == str(tmp_path / "out")


def test_learning_rate_follows_the_schedule(train, server):
    train("--learning-rate", "1", "--schedule", "linear", "--max-steps", "2")
    rates = [call.decoded["adam_params"]["learning_rate"] for call in server.calls("optim_step")]
    assert sorted(rates) == [0.5, 1.0]


def test_loss_is_per_learned_token(train, server, tmp_path, data):
    from tests.support.numbers import logprob

    train("--max-steps", "1", "--batch-size", "1")
    (body,) = [call.decoded for call in server.calls("forward_backward")]
    (datum,) = body.data
    pairs = list(
        zip(
            datum.loss_fn_inputs["target_tokens"].tolist(),
            datum.loss_fn_inputs["weights"].tolist(),
            strict=True,
        )
    )
    learned = [token for token, weight in pairs if weight]
    assert bytes(token for token in learned if token < 256).decode().startswith("It is ")
    mean = -sum(logprob(token) for token in learned) / len(learned)
    assert metrics(tmp_path / "out")[0]["loss"] == pytest.approx(mean)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.jsonl", "--base-model", "m"], "nowhere.jsonl: No such file"),
        (["empty.jsonl", "--base-model", "m"], "holds no examples"),
        (["bad.jsonl", "--base-model", "m"], "bad.jsonl, line 1"),
    ],
)
def test_bad_data_is_found_before_anything_is_sent(cli, server, tmp_path, arguments, message):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "bad.jsonl").write_text("{}")
    ran = cli("train", *arguments)
    assert ran.code == 1
    assert message in ran.err
    assert server.requests == []
    assert not (tmp_path / "tinkex-runs").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Which data?"),
        (["d.jsonl"], "Which model?"),
        (["d.jsonl", "--base-model", "m", "--model-path", "tinker://r/weights/a"], "not both"),
        (["d.jsonl", "--model-path", "tinker://r/weights/a", "--rank", "4"], "--rank is fixed"),
        (["--resume", "out", "--epochs", "3"], "leave out --epochs"),
        (["d.jsonl", "--resume", "out"], "leave out data"),
        (["d.jsonl", "--base-model", "m", "--learning-rate", "0"], "not in the range"),
        (["d.jsonl", "--base-model", "m", "--learning-rate", "nan"], "nan is not a finite number"),
        (["d.jsonl", "--base-model", "m", "--learning-rate", "inf"], "inf is not a finite number"),
        (["d.jsonl", "--base-model", "m", "--schedule", "wavy"], "not one of"),
    ],
)
def test_wrong_usage(cli, server, arguments, message):
    ran = cli("train", *arguments)
    assert ran.code == 2, ran.err
    assert message in ran.err
    assert server.requests == []


def test_default_folder_is_named_after_the_data(cli, model, data, tmp_path):
    assert cli("train", str(data), "--base-model", model, "--max-steps", "1").code == 0
    (folder,) = (tmp_path / "tinkex-runs").iterdir()
    assert folder.name.startswith("data-2")


def test_context_of_the_model_limits_the_length(train, server, model, tmp_path):
    server.service.models = [model]
    server.on("get_server_capabilities").reply(
        json_body={"supported_models": [{"model_name": model, "max_context_length": 28}]}
    )
    ran = train("--max-steps", "1")
    assert "Cut for length: 10 examples." in ran.err
    assert metrics(tmp_path / "out")[0]["tokens"] == 56


def test_begins_with_saved_weights(cli, server, checkpoints, data):
    ran = cli("train", str(data), "--model-path", checkpoints[0], "--max-steps", "1", "--json")
    assert ran.code == 0, ran.err
    assert server.calls("load_weights")[0].decoded["optimizer"] is False


def test_dry_run_shows_the_plan_and_trains_nothing(train, server, tmp_path):
    ran = train("--dry-run")
    assert ran.code == 0
    assert "10 examples (0 cut, 0 left out)" in ran.out
    assert "5 steps" in ran.out
    assert "»It is 0.<|im_end|>«" in ran.out
    document = train("--dry-run", "--json").json
    assert document["steps"] == 5
    assert document["first_example"][-1] == {"text": "It is 0.<|im_end|>", "is_learned": True}
    assert server.count("create_model") == 0
    assert not (tmp_path / "out").exists()


# Stopping and going on ------------------------------------------------------------------------


def stop_after(monkeypatch, steps: int, send=lambda: os.kill(os.getpid(), signal.SIGINT)):
    """Has Ctrl-C pressed when so many steps are done."""
    receive = Trainer._receive

    def and_stop(self, sent):
        receive(self, sent)
        if self.step == steps:
            send()

    monkeypatch.setattr(Trainer, "_receive", and_stop)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_and_says_how_to_go_on(train, monkeypatch, tmp_path, number):
    stop_after(monkeypatch, 2, lambda: os.kill(os.getpid(), number))
    ran = train()
    assert ran.code == 130
    assert ran.out == ""
    assert "Stopping: " in ran.err
    assert "Saved after step 3. Go on with: tinkex train --resume out\n" in ran.err
    saved = state(tmp_path / "out")
    assert saved["step"] == 3
    assert saved["checkpoint"].endswith("/weights/step-000003")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def ignored_sigint():
    """SIGINT as `nohup` in a script and cron leave it to a program."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ignored_sigint")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 130)])
def test_where_sigint_is_ignored_only_sigterm_stops(train, monkeypatch, number, code):
    stop_after(monkeypatch, 2, lambda: os.kill(os.getpid(), number))
    assert train().code == code
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_ctrl_c_under_json_is_json_with_the_command(train, monkeypatch):
    stop_after(monkeypatch, 1)
    ran = train("--json")
    error = json.loads(ran.err.strip().splitlines()[-1])["error"]
    assert error["code"] == "interrupted"
    assert error["hint"].endswith("tinkex train --resume out")


def test_second_ctrl_c_stops_at_once(train, monkeypatch, tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    stop_after(monkeypatch, 3, twice)
    ran = train("--save-every", "2")
    assert ran.code == 130
    assert "The last saved step is 2." in ran.err
    assert state(tmp_path / "out")["step"] == 2


@pytest.mark.parametrize("first", [1, 2, 3, 4])
def test_resumed_run_neither_repeats_nor_misses_a_batch(
    cli, train, server, monkeypatch, tmp_path, first, data, model
):
    with monkeypatch.context() as patch:
        stop_after(patch, first)
        assert train("--epochs", "2", "--seed", "3").code == 130
    ran = cli("train", "--resume", "out")
    assert ran.code == 0, ran.err
    assert f"Going on after step {first + 1}." in ran.err
    seen = batches(server)
    assert len(seen) == 10
    for epoch in (seen[:5], seen[5:]):
        assert sorted(number for batch in epoch for number in batch) == list(range(10))
    arguments = ["--epochs", "2", "--seed", "3", "--batch-size", "2", "--output", "whole"]
    assert cli("train", str(data), "--base-model", model, *arguments).code == 0
    assert batches(server)[10:] == seen
    ours, whole = metrics(tmp_path / "out"), metrics(tmp_path / "whole")
    for name in ("step", "epoch", "loss", "learning_rate", "tokens"):
        assert [each[name] for each in ours] == [each[name] for each in whole]


def test_resume_loads_weights_and_optimizer(cli, train, server, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        train()
    cli("train", "--resume", "out")
    (load,) = server.calls("load_weights")
    assert load.decoded["optimizer"] is True
    assert load.decoded["path"].endswith("/weights/step-000002")


def test_run_that_crashed_goes_on_from_its_last_checkpoint(cli, train, server, tmp_path):
    server.on("optim_step").after(3).reply(status=400, json_body={"detail": "boom"}).always()
    ran = train("--save-every", "2")
    assert ran.code == 1
    assert "The last saved step is 2." in ran.err
    server.on("optim_step").off()
    server._script = type(server._script)()
    with (tmp_path / "out/metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss"')  # cut off by the crash
    again = cli("train", "--resume", "out")
    assert again.code == 0, again.err
    assert [each["step"] for each in metrics(tmp_path / "out")] == [1, 2, 3, 4, 5]
    last = state(tmp_path / "out")["run_id"]
    assert kinds(server, last)[0] == "load_weights"
    assert len(batches(server, last)) == 3


def test_lost_server_is_reported_with_the_command_to_resume(train, server):
    server.on("forward_backward").after(3).drop_before_answer().always()
    ran = train("--save-every", "1")
    assert ran.code == 7
    assert "Go on with: tinkex train --resume out" in ran.err


def test_checkpoint_counts_only_once_confirmed(train, server, tmp_path):
    server.on("save_weights").reply(status=400, json_body={"detail": "disk full"})
    ran = train("--save-every", "2")
    assert ran.code == 1
    assert state(tmp_path / "out")["checkpoint"] is None
    assert "No checkpoint was saved yet" in ran.err


def test_folder_of_another_run_is_not_overwritten(train):
    assert train("--max-steps", "1").code == 0
    ran = train("--max-steps", "1")
    assert ran.code == 1
    assert "tinkex train --resume out" in ran.err


def test_folder_of_a_run_that_never_saved_can_be_used_again(train, server, tmp_path):
    server.on("create_model").reply(status=400, json_body={"detail": "no"})
    assert train("--max-steps", "1").code == 1
    assert train("--max-steps", "1").code == 0
    assert len(metrics(tmp_path / "out")) == 1


@pytest.mark.parametrize("rate", ["nan", "inf", "-inf", "1e999"])
def test_learning_rate_that_is_no_number_writes_nothing(train, tmp_path, rate):
    assert train("--learning-rate", rate).code == 2
    assert not (tmp_path / "out").exists()


def test_folder_with_an_unreadable_run_that_never_saved_can_be_used_again(train, tmp_path):
    (tmp_path / "out").mkdir()
    content = b'{"options": {"learning_rate": null}, "checkpoint": null}'
    (tmp_path / "out/run.json").write_bytes(content)
    (tmp_path / "out/metrics.jsonl").write_text('{"step": 1}\n')
    ran = train("--max-steps", "1")
    assert ran.code == 0, ran.err
    assert [each["step"] for each in metrics(tmp_path / "out")] == [1]
    assert "loss" in metrics(tmp_path / "out")[0]


@pytest.mark.parametrize(
    "content",
    [
        '{"checkpoint": "tinker://r/weights/a"}',
        '{"checkpoint": "tinker://r/weig',
        "",
        '{"of": "another program"}',
    ],
)
def test_file_that_may_be_worth_something_is_kept(train, tmp_path, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/run.json").write_text(content)
    ran = train("--max-steps", "1")
    assert (ran.code, "There is a run in out already" in ran.err) == (1, True)
    assert (tmp_path / "out/run.json").read_text() == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "There is no run in out"),
        ("{", "cannot be read"),
        ('{"options": 3}', "cannot be read"),
    ],
)
def test_resume_wants_the_folder_of_a_run(cli, tmp_path, content, message):
    if content is not None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/run.json").write_text(content)
    ran = cli("train", "--resume", "out")
    assert ran.code == 1
    assert message in ran.err


def test_finished_run_cannot_be_resumed(cli, train):
    train("--max-steps", "1")
    ran = cli("train", "--resume", "out")
    assert ran.code == 1
    assert "is finished" in ran.err
    assert "--model-path tinker://" in ran.err


def test_changed_or_missing_data_is_noticed(cli, train, data, monkeypatch):
    stop_after(monkeypatch, 1)
    train()
    content = data.read_text()
    data.write_text(content.replace("0?", "9?"))
    assert "no longer what the run began with" in cli("train", "--resume", "out").err
    data.unlink()
    assert "is gone" in cli("train", "--resume", "out").err
    data.write_text(content)
    assert cli("train", "--resume", "out").code == 0


def test_data_that_comes_to_something_else_is_noticed(cli, train, server, monkeypatch, model):
    with monkeypatch.context() as patch:
        stop_after(patch, 1)
        train()
    server.on("get_server_capabilities").reply(
        json_body={"supported_models": [{"model_name": model, "max_context_length": 28}]}
    )
    ran = cli("train", "--resume", "out")
    assert ran.code == 1
    assert "the run began with 10 and 300" in ran.err
    assert cli("train", "--resume", "out").code == 0


def test_signals_are_left_alone_off_the_main_thread():
    import threading

    seen = []

    def work():
        with StopRequest(seen.append) as stop:
            seen.append(stop.is_set)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
