"""`tinkex run`: sampling, prompts in every form, and the list of runs."""

import io
import json
import shutil
import sys

import pytest

KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"
SAMPLE_FIELDS = ["text", "stop_reason", "average_logprob", "tokens", "logprobs"]


@pytest.fixture
def sample(cli, model):
    """Samples from the tiny model."""
    return lambda *arguments: cli("run", "--base-model", model, *arguments)


def sent(server) -> dict:
    return server.calls("asample")[-1].decoded


def prompt_tokens(server) -> list[int]:
    return [token for chunk in sent(server)["prompt"]["chunks"] for token in chunk["tokens"]]


def test_result_goes_to_stdout_and_talk_to_stderr(sample):
    ran = sample("--prompt", "Hi", "--max-tokens", "3")
    assert ran.code == 0
    assert ran.err == "Starting sampling…\nDone.\n"
    assert ran.out.startswith("Sample 1:\n")
    assert "[stop reason: length · 3 tokens · average logprob: -" in ran.out


def test_json_has_everything_that_was_sampled(sample, model):
    ran = sample("--prompt", "Hi", "--max-tokens", "4", "--num-samples", "2", "--json")
    document = ran.json
    assert list(document) == ["base_model", "model_path", "prompt_tokens", "samples"]
    assert document["base_model"] == model
    assert document["prompt_tokens"] == [72, 105]
    assert len(document["samples"]) == 2
    for each in document["samples"]:
        assert list(each) == SAMPLE_FIELDS
        assert len(each["tokens"]) == len(each["logprobs"]) == 4
        assert each["average_logprob"] == pytest.approx(sum(each["logprobs"]) / 4)
        assert each["stop_reason"] == "length"


def test_options_reach_the_server(sample, server):
    options = "--max-tokens 5 --temperature 0.5 --top-k 7 --top-p 0.9 --seed 3 --num-samples 2"
    assert sample("--prompt", "Hi", *options.split(), "--stop", "a", "--stop", "b").code == 0
    assert sent(server)["num_samples"] == 2
    assert sent(server)["sampling_params"] == {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "seed": 3,
        "stop": ["a", "b"],
    }


def test_extensions_reach_a_server_that_announces_them(sample, server):
    names = ("min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")
    server.service.flags["extensions"] = [f"sampling.{name}" for name in names]
    options = (
        "--min-p 0.1 --repetition-penalty 1.2 --presence-penalty -1 --frequency-penalty 0.5"
        " --logit-bias 5=-2.5 --logit-bias 6=100"
    )
    assert sample("--prompt", "Hi", *options.split()).code == 0
    assert sent(server)["sampling_params"] == {
        "max_tokens": 256,
        "temperature": 1.0,
        "top_k": -1,
        "top_p": 1.0,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -1.0,
        "frequency_penalty": 0.5,
        "logit_bias": {"5": -2.5, "6": 100.0},
    }


def test_extensions_a_server_does_not_know_are_refused(sample, server):
    ran = sample("--prompt", "Hi", "--min-p", "0.1")
    assert ran.code == 1
    assert "does not announce the sampling parameter min_p" in ran.err
    assert server.count("asample") == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--min-p", "1.5"), "1.5 is not in the range 0<=x<=1"),
        (("--min-p", "nan"), "nan is not a finite number"),
        (("--repetition-penalty", "0"), "0.0 is not in the range 0.01<=x<=100"),
        (("--presence-penalty", "-2.5"), "-2.5 is not in the range -2<=x<=2"),
        (("--logit-bias", "5"), "'5' is not ID=NUMBER"),
        (("--logit-bias", "x=1"), "'x=1' is not ID=NUMBER"),
        (("--logit-bias", "5=101"), "logit_bias[5]=101.0 must be at least -100 and at most 100"),
        (("--logit-bias", "5=nan"), "logit_bias[5]=nan must be"),
    ],
)
def test_values_outside_their_range_are_refused(sample, server, options, message):
    ran = sample("--prompt", "Hi", *options)
    assert ran.code in (1, 2)
    assert message in ran.err
    assert server.count("asample") == 0


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("Hi", [72, 105]),
        ("Hi\n", [72, 105]),
        ("Hi\r\n", [72, 105]),
        ("Hi\n\n", [72, 105, 10]),
        ("[1, 2, 3]", [1, 2, 3]),
        ('{"tokens": [4, 5]}\n', [4, 5]),
        ('"Hi"', [34, 72, 105, 34]),
        ("7", [55]),
        ('{"a": 1}', list(b'{"a": 1}')),
    ],
)
@pytest.mark.parametrize("is_stdin", [False, True])
def test_prompt_files_hold_text_or_tokens(
    sample, server, tmp_path, monkeypatch, content, tokens, is_stdin
):
    (tmp_path / "prompt").write_bytes(content.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
    ran = sample("--prompt-file", "-" if is_stdin else "prompt", "--max-tokens", "1")
    assert ran.code == 0, ran.err
    assert prompt_tokens(server) == tokens


@pytest.mark.parametrize("content", ["[]", "[1.5]", '["a"]', '{"tokens": 3}', "[true]"])
def test_json_without_token_ids_is_refused(sample, server, tmp_path, content):
    (tmp_path / "prompt").write_text(content)
    ran = sample("--prompt-file", "prompt")
    assert ran.code == 2
    assert "no list of token ids" in ran.err
    assert server.count("asample") == 0


def test_chat_renders_the_prompt_as_a_message(sample):
    ran = sample("--prompt", "Hi", "--chat", "--max-tokens", "1", "--json")
    expected = "user\nHi\n" + "assistant\n"
    text = bytes(token for token in ran.json["prompt_tokens"] if token < 256).decode()
    assert text == expected


def test_chat_without_a_template_says_what_else_can_be_done(cli, model, tmp_path):
    folder = tmp_path / "base"
    shutil.copytree(model, folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ran = cli("run", "--base-model", str(folder), "--prompt", "a", "--chat")
    assert ran.code == 1
    assert "without --chat" in ran.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "a", "--prompt-file", "b"], "--prompt or --prompt-file, not both"),
        ([], "There is no prompt"),
        (["--prompt", "a", "--model-path", "tinker://r/weights/a"], "not both"),
        (["--prompt", "a", "--max-tokens", "0"], "0 is not in the range"),
        (["--prompt", "a", "--temperature", "-1"], "not in the range"),
        (["--prompt", "a", "--top-p", "0"], "not in the range"),
        (["--prompt", "a", "--num-samples", "0"], "not in the range"),
        (["--prompt", "a", "--top-k", "x"], "not a valid integer"),
        (["--prompt-file", "-", "--api-key-file", "-"], "Only one of"),
        (["--prompt", "a", "--temperature", "nan"], "nan is not a finite number"),
        (["--prompt", "a", "--temperature", "inf"], "inf is not a finite number"),
        (["--prompt", "a", "--top-p", "nan"], "nan is not a finite number"),
        (["--prompt", "a", "--api-key", "k", "--api-key-file", "f"], "not both"),
        (["--prompt", "a", "--temprature", "1"], "Did you mean '--temperature'?"),
    ],
)
def test_wrong_usage_is_2_and_sends_nothing(sample, server, arguments, message):
    ran = sample(*arguments)
    assert ran.code == 2
    assert message in ran.err
    assert ran.out == ""
    assert server.requests == []


def test_no_model_is_a_usage_error_that_says_where_to_find_one(cli):
    ran = cli("run", "--prompt", "a")
    assert ran.code == 2
    assert "tinkex checkpoint list" in ran.err


def test_missing_prompt_file_is_reported_with_its_name(sample):
    ran = sample("--prompt-file", "nowhere.txt")
    assert (ran.code, "nowhere.txt: No such file" in ran.err) == (1, True)
    assert "Check the name" in ran.err


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize(("name", "shown"), [("prompt", "prompt"), ("-", "stdin")])
def test_binary_prompt_is_refused(sample, server, tmp_path, monkeypatch, name, shown, errors):
    content = b"\xff\xfe\x00"
    (tmp_path / "prompt").write_bytes(content)
    stdin = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors=errors)
    monkeypatch.setattr(sys, "stdin", stdin)
    ran = sample("--prompt-file", name)
    assert (ran.code, f"{shown} is not UTF-8 text." in ran.err) == (2, True)
    assert server.count("asample") == 0


def test_prompt_of_many_brackets_is_a_text(sample, server, tmp_path):
    (tmp_path / "prompt").write_text("[" * 100_000)
    assert sample("--prompt-file", "prompt", "--max-tokens", "1").code == 0
    assert len(prompt_tokens(server)) == 100_000


def test_tokenizer_that_cannot_be_loaded_is_a_user_error(cli):
    ran = cli("run", "--base-model", "./nowhere", "--prompt", "a")
    assert ran.code == 1
    assert ran.err.startswith("Error: Failed to load tokenizer ./nowhere: ")


def test_token_ids_can_be_sampled_from_without_a_tokenizer(cli, tmp_path):
    (tmp_path / "prompt").write_text("[1, 2]")
    ran = cli("run", "--base-model", "./nowhere", "--prompt-file", "prompt", "--max-tokens", "2")
    assert ran.code == 0
    assert "Warning: Failed to load tokenizer" in ran.err
    assert "Sample 1:\n[" in ran.out
    refused = cli("run", "--base-model", "./nowhere", "--prompt-file", "prompt", "--chat")
    assert refused.code == 2


@pytest.mark.parametrize(
    ("status", "code", "start"),
    [
        (400, 1, "Error"),
        (401, 3, "Error"),
        (403, 3, "Error"),
        (404, 4, "Error"),
        (429, 5, "Error"),
        (500, 6, "Server error"),
        (503, 6, "Server error"),
    ],
)
@pytest.mark.parametrize("is_json", [False, True])
def test_refusals_have_their_exit_codes_and_a_next_step(
    sample, server, status, code, start, is_json
):
    server.on("asample").reply(status=status, json_body={"detail": "because"}).always()
    ran = sample("--prompt", "a", *(["--json"] if is_json else []))
    assert ran.code == code
    assert ran.out == ""
    assert server.count("asample") == 1
    last = ran.err.strip().splitlines()
    if is_json:
        error = json.loads(last[-1])["error"]
        assert error["hint"]
        assert "because" in error["message"]
    else:
        assert last[1].startswith(f"{start}: ")
        assert len(last) == 4
        assert "Traceback" not in ran.err


def test_failed_sampling_has_an_exit_code_by_its_cause(sample, server):
    server.on("retrieve_future").failed("too long", "user")
    assert sample("--prompt", "a").code == 1
    server.on("retrieve_future").failed("out of memory", "server")
    ran = sample("--prompt", "a")
    assert (ran.code, "Server error: " in ran.err) == (6, True)


def test_no_server_is_7_and_says_how_to_start_one(run, monkeypatch):
    monkeypatch.setenv("TINKEX_RETRY_BUDGET_S", "0.01")
    ran = run("run", "list", "--base-url", "http://127.0.0.1:1", "--api-key", KEY)
    assert ran.code == 7
    assert "Network error" in ran.err
    assert "tinkex serve" in ran.err


def test_missing_key_is_3_and_says_where_to_put_it(run):
    ran = run("run", "--base-model", "m", "--prompt", "a")
    assert ran.code == 3
    assert "TINKER_API_KEY" in ran.err
    assert "--api-key-file" in ran.err


@pytest.mark.parametrize("is_stdin", [False, True])
def test_key_comes_from_a_file_or_stdin(run, server, tmp_path, monkeypatch, is_stdin):
    (tmp_path / "key").write_text(f"{KEY}\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"  {KEY}  \nmore\n".encode())))
    name = "-" if is_stdin else "key"
    ran = run("run", "list", "--base-url", server.url, "--api-key-file", name)
    assert ran.code == 0
    assert server.calls("list_training_runs")[0].headers["x-api-key"] == KEY
    assert "Warning" not in ran.err


def test_empty_key_file_is_reported(run, tmp_path):
    (tmp_path / "key").write_text("\n")
    ran = run("run", "list", "--api-key-file", "key")
    assert (ran.code, "no API key in key" in ran.err) == (2, True)


def test_key_as_option_works_and_warns(run, server):
    ran = run("run", "list", "--base-url", server.url, "--api-key", KEY)
    assert ran.code == 0
    assert "Warning: --api-key shows in the list of processes" in ran.err
    assert KEY not in ran.err


@pytest.mark.parametrize("is_json", [False, True])
def test_output_is_written_whole_and_stdout_stays_empty(sample, tmp_path, is_json):
    (tmp_path / "out").write_text("old")
    extra = ["--json"] if is_json else []
    ran = sample("--prompt", "Hi", "--max-tokens", "2", "--output", "out", *extra)
    assert (ran.code, ran.out) == (0, "")
    content = (tmp_path / "out").read_text()
    assert json.loads(content)["samples"] if is_json else content.startswith("Sample 1:")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


def test_failure_leaves_the_old_output_alone(sample, server, tmp_path):
    (tmp_path / "out").write_text("old")
    server.on("asample").reply(status=500)
    assert sample("--prompt", "Hi", "--output", "out").code == 6
    assert (tmp_path / "out").read_text() == "old"


def test_saved_weights_can_be_sampled_from(cli, checkpoints, server):
    ran = cli("run", "--model-path", checkpoints[0], "--prompt", "a", "--json", "--max-tokens", "1")
    assert ran.json["model_path"] == checkpoints[0]
    missing = checkpoints[0].replace("c0", "c9")
    assert cli("run", "--model-path", missing, "--prompt", "a").code == 4
    assert cli("run", "--model-path", "nonsense", "--prompt", "a").code == 1


def test_waiting_in_the_queue_is_reported(sample, server):
    server.on("retrieve_future").not_ready("paused_capacity", "3 requests are ahead")
    ran = sample("--prompt", "a")
    assert ran.code == 0
    assert "Waiting: 3 requests are ahead.\n" in ran.err


def test_waiting_is_reported_where_one_poll_serves_all_samples(sample, server):
    server.service.flags |= {
        "sample_use_retrieve_futures": True,
        "extensions": ["futures.queue_state"],
    }
    reason = "The engine is busy."
    paused = {"queue_state": "paused_capacity", "queue_state_reason": reason}
    server.on("retrieve_futures").reply(json_body={"cursor": 0, "completions": [], **paused})
    ran = sample("--prompt", "a")
    assert ran.code == 0
    assert "Waiting: The engine is busy.\n" in ran.err


def test_ctrl_c_is_130(sample, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tinkex.client.futures.Future.result", interrupt)
    ran = sample("--prompt", "a")
    assert (ran.code, ran.err.strip()) == (130, "Interrupted.")


# Runs ------------------------------------------------------------------------------------------


def test_run_list_shows_runs(cli, checkpoints, model):
    lines = cli("run", "list").out.splitlines()
    assert " ".join(lines[0].split()) == "RUN NAME MODEL RANK LAST REQUEST STATUS LAST CHECKPOINT"
    assert len(lines) == 4
    assert model in lines[1]
    assert lines[1].endswith("sampler_weights/c0")
    assert len(cli("run", "ls", "-q").out.splitlines()) == 3
    assert len(cli("run", "list", "--limit", "2", "--json").json["runs"]) == 2


def test_run_list_pages_to_the_end(cli, checkpoints, server, monkeypatch):
    monkeypatch.setattr("tinkex.cli.run_list.PAGE", 2)
    assert len(cli("run", "list", "--limit", "0", "-q").out.splitlines()) == 3
    assert [call.query["offset"] for call in server.calls("list_training_runs")] == ["0", "2"]


def test_empty_list_says_what_to_do(cli):
    ran = cli("run", "list")
    assert (ran.code, ran.out) == (0, "")
    assert "tinkex train" in ran.err
    assert cli("run", "list", "--json").json == {"runs": []}


def test_run_info_takes_an_id_or_a_path(cli, checkpoints):
    run_id = checkpoints[1].split("/")[2]
    for name in (run_id, checkpoints[1]):
        document = cli("run", "info", name, "--json").json
        assert document["training_run_id"] == run_id
        assert document["last_sampler_checkpoint"]["tinker_path"] == checkpoints[1]
    assert f"run              {run_id}\n" in cli("run", "info", run_id).out
    missing = cli("run", "info", "nope")
    assert missing.code == 4
    assert "tinkex run list" in missing.err


@pytest.mark.parametrize("option", [["--json"], ["--base-url", "http://x"], ["--seed", "1"]])
def test_options_in_the_wrong_place_are_not_lost_silently(cli, option):
    ran = cli("run", *option, "list")
    assert ran.code == 2
    assert f"Write {option[0]} after 'tinkex run list'" in ran.err


def test_unknown_command_of_a_group_is_suggested(cli):
    ran = cli("run", "lits")
    assert ran.code == 2
    assert "Did you mean 'list'?" in ran.err
