"""Everything together: a real server with a tiny model, driven from the command line alone."""

import json
import signal
import subprocess

import pytest

from tests.cli.shell import Shell

ARGUMENTS = (
    *("--base-model", "tiny", "--batch-size", "3", "--epochs", "2", "--seed", "5"),
    *("--rank", "4", "--learning-rate", "0.01", "--save-every", "4"),
)


@pytest.fixture
def tinkex(live, tmp_path):
    """Commands against the live server."""
    return Shell(tmp_path, live)


def losses(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_from_nothing_to_a_downloaded_adapter(tinkex, data, tmp_path):
    assert tinkex("doctor").returncode == 0
    trained = tinkex("train", str(data), *ARGUMENTS, "--output", "run", "--json")
    assert trained.returncode == 0, trained.stderr
    summary = json.loads(trained.stdout)
    assert summary["steps"] == 8
    found = losses(tmp_path / "run")
    assert sum(found[4:]) < 0.9 * sum(found[:4])

    listed = json.loads(
        tinkex("checkpoint", "list", "--run-id", summary["run_id"], "--json").stdout
    )
    names = {each["checkpoint_id"] for each in listed["checkpoints"]}
    assert names == {*("weights/step-000004", "weights/final", "sampler_weights/final")}
    info = json.loads(tinkex("run", "info", summary["run_id"], "--json").stdout)
    assert info["lora_rank"] == 4

    downloaded = tinkex("checkpoint", "download", summary["checkpoint"], "-o", "adapter", "--json")
    assert downloaded.returncode == 0, downloaded.stderr
    assert {"adapter_config.json", "adapter_model.safetensors"} <= set(
        json.loads(downloaded.stdout)["files"]
    )
    sampled = tinkex(
        *("run", "--model-path", summary["sampler_checkpoint"], "--chat", "--prompt", "user 3"),
        *("--max-tokens", "12", "--temperature", "0", "--json"),
    )
    assert sampled.returncode == 0, sampled.stderr
    (sample,) = json.loads(sampled.stdout)["samples"]
    assert sample["average_logprob"] < 0

    step = f"tinker://{summary['run_id']}/weights/step-000004"
    assert tinkex("checkpoint", "set-ttl", step, "--ttl", "2h").returncode == 0
    assert tinkex("checkpoint", "publish", step).returncode == 0
    shown = json.loads(tinkex("checkpoint", "info", step, "--json").stdout)
    assert shown["public"] is True
    assert shown["expires_at"] is not None
    assert tinkex("checkpoint", "delete", step, "--yes").returncode == 0
    assert tinkex("checkpoint", "info", step).returncode == 4


def test_sampling_parameters_of_the_command_line_reach_the_engine(tinkex):
    def tokens(*options):
        ran = tinkex(
            *("run", "--base-model", "tiny", "--prompt", "Hello", "--json"),
            *("--max-tokens", "20", "--temperature", "0", *options),
        )
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)["samples"][0]["tokens"]

    plain = tokens()
    assert tokens("--logit-bias", "77=100", "--logit-bias", "78=-100") == [77] * 20
    assert tokens("--min-p", "1", "--temperature", "2") == plain
    for penalty in ("--repetition-penalty", "--presence-penalty", "--frequency-penalty"):
        assert tokens(penalty, "2") != plain, penalty
    refused = tinkex("run", "--base-model", "tiny", "--prompt", "Hello", "--min-p", "1.1")
    assert refused.returncode == 2
    assert "1.1 is not in the range 0<=x<=1" in refused.stderr


def test_stopped_and_resumed_training_ends_with_the_same_weights(tinkex, data, tmp_path):
    import numpy as np
    from safetensors.numpy import load_file

    adapters = []
    for name in ("whole", "resumed"):
        arguments = ("train", str(data), *ARGUMENTS, "--output", name)
        if name == "whole":
            assert tinkex(*arguments).returncode == 0
        else:
            process = tinkex.start(*arguments, stderr=subprocess.PIPE, text=True)
            while "step 3/8" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
            assert process.returncode == 130, err
            assert "Go on with: tinkex train --resume resumed" in err
            assert tinkex("train", "--resume", name).returncode == 0
        state = json.loads((tmp_path / name / "run.json").read_text())
        target = f"{name}-adapter"
        assert tinkex("checkpoint", "download", state["checkpoint"], "-o", target).returncode == 0
        adapters.append(load_file(tmp_path / target / "adapter_model.safetensors"))
    assert losses(tmp_path / "resumed") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    assert adapters[0].keys() == adapters[1].keys()
    for name, tensor in adapters[0].items():
        np.testing.assert_allclose(adapters[1][name], tensor, rtol=1e-3, atol=1e-4)


def test_errors_of_a_real_server(tinkex):
    unknown = tinkex("run", "--base-model", "tinny", "--prompt", "a")
    assert unknown.returncode == 4
    assert "Served are: tiny." in unknown.stderr
    assert tinkex("run", "list", TINKER_API_KEY="tml-wrong").returncode == 3
    assert tinkex("run", "info", "nope").returncode == 4
    too_much = tinkex("checkpoint", "--base-model", "tiny", "--rank", "100000")
    assert too_much.returncode == 1
    assert "100000" in too_much.stderr


def test_keys_of_a_running_server(live, tinkex):
    """A second server on the same folder is refused; keys can be made beside a running one."""
    made = tinkex("keys", "create", "--data-dir", "elsewhere", "--json")
    assert json.loads(made.stdout)["key"].startswith("tml-")
