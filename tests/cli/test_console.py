"""Exit codes through the operating system, pipes, closed streams and Ctrl-C."""

import json
import signal
import subprocess

import pytest


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["version"], 0),
        (["run", "list"], 0),
        (["--help"], 0),
        ([], 2),
        (["nonsense"], 2),
        (["run", "--base-model", "m"], 2),
        (["run", "--base-model", "./nowhere", "--prompt", "a"], 1),
        (["run", "info", "nope"], 4),
        (["run", "list", "--base-url", "http://127.0.0.1:1"], 7),
    ],
)
def test_exit_codes(shell, arguments, code):
    ran = shell(*arguments)
    assert ran.returncode == code, ran.stderr
    assert "Traceback" not in ran.stderr
    assert (ran.stdout == "") == (code != 0 or arguments == ["run", "list"])


@pytest.mark.parametrize(
    ("status", "code"), [(401, 3), (403, 3), (404, 4), (429, 5), (500, 6), (422, 1)]
)
def test_refusals_of_the_server(shell, server, status, code):
    server.on("list_training_runs").reply(status=status, json_body={"detail": "no"}).always()
    ran = shell("run", "list", "--json")
    assert ran.returncode == code
    assert set(json.loads(ran.stderr)["error"]) == {"code", "message", "hint", "request_id"}


def test_no_key_is_3(shell):
    del shell.environ["TINKER_API_KEY"]
    assert shell("run", "list").returncode == 3


def test_traceback_only_on_request(shell):
    assert "Traceback" not in shell("run", "info", "nope").stderr
    debugged = shell("run", "info", "nope", TINKEX_DEBUG="1")
    assert "Traceback" in debugged.stderr
    assert "tml-Q7x9" not in debugged.stderr


def test_reader_that_stops_early_is_no_failure(shell):
    ran = shell.script("set -o pipefail; tinkex config show | head -1")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) == 1


def test_reader_that_never_reads_is_no_failure(shell):
    ran = shell.script("tinkex train --help | true; echo ${PIPESTATUS[0]}")
    assert (ran.stdout, ran.stderr) == ("0\n", "")


def test_closed_stdout_is_no_crash(shell):
    ran = shell.script("tinkex version >&-; echo code $? >&2")
    assert "Traceback" not in ran.stderr
    assert "Exception ignored" not in ran.stderr
    assert "code 0" in ran.stderr


def test_full_disk_is_a_failure(shell):
    ran = shell.script("tinkex version > /dev/full; echo code $? >&2")
    assert "code 1" in ran.stderr
    assert "No space left" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_prompt_and_key_come_through_pipes(shell, model):
    ran = shell(
        *("run", "--base-model", model, "--prompt-file", "-", "--json", "--max-tokens", "2"),
        stdin="Hi\n",
    )
    assert json.loads(ran.stdout)["prompt_tokens"] == [72, 105]
    key = shell.environ.pop("TINKER_API_KEY")
    assert shell("run", "list", "--api-key-file", "-", stdin=key).returncode == 0


def test_output_can_be_piped_into_the_next_command(shell, model):
    for name in ("a", "b"):
        shell("checkpoint", "--base-model", model, "--name", name)
    ran = shell.script("tinkex checkpoint list -q | xargs tinkex checkpoint delete --yes --json")
    assert json.loads(ran.stdout)["deleted_count"] == 2


def test_there_is_no_question_without_a_terminal(shell):
    ran = shell("checkpoint", "delete", "tinker://r/weights/a")
    assert ran.returncode == 2
    assert "--yes" in ran.stderr


def test_narrow_terminal_is_no_reason_to_fail(shell, model):
    ran = shell("run", "--base-model", model, "--prompt", "ü…", PYTHONIOENCODING="ascii")
    assert ran.returncode == 0, ran.stderr


def steps_in(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_ctrl_c_while_sampling_is_130(shell, server, model):
    server.hold("asample")
    process = shell.start(
        *("run", "--base-model", model, "--prompt", "a"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server.wait_for("retrieve_future", timeout_s=30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out == ""
    assert err.strip().endswith("Interrupted.")
    assert "Traceback" not in err
    (session,) = server.service.world.sessions.values()
    assert session.finished["reason"]["type"] == "interrupted"


def test_ctrl_c_while_downloading_leaves_the_old_folder_and_nothing_else(shell, server, model):
    path = shell("checkpoint", "--base-model", model).stdout.strip()
    (shell.folder / "adapter").mkdir()
    (shell.folder / "adapter/old").touch()
    server.on("file").slow(1000).always()
    process = shell.start(
        *("checkpoint", "download", path, "-o", "adapter", "--force"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server.wait_for("file", 2, timeout_s=30)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    found = {path.name for path in shell.folder.iterdir()} - {"home"}
    assert found == {"adapter"}
    assert [path.name for path in (shell.folder / "adapter").iterdir()] == ["old"]
    assert not [path for path in server.service.world.checkpoints if "external" in path]


def test_ctrl_c_while_training_saves_and_resume_goes_on(shell, server, model, data):
    arguments = ("--base-model", model, "--batch-size", "2", "--output", "out", "--save-every", "0")
    process = shell.start(
        *("train", str(data), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    server.hold("optim_step")
    server.wait_for("optim_step", timeout_s=30)
    process.send_signal(signal.SIGINT)
    line = ""
    while "Stopping" not in line:
        line = process.stderr.readline()
        assert line
    server.release("optim_step")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert "Go on with: tinkex train --resume out" in err
    done = json.loads((shell.folder / "out/run.json").read_text())["step"]
    assert 1 <= done < 6
    ran = shell("train", "--resume", "out", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["steps"] == 6
    assert steps_in(shell.folder / "out") == [1, 2, 3, 4, 5, 6]
    assert server.count("forward_backward") == 6


def test_killed_training_goes_on_from_its_checkpoint(shell, server, model, data):
    arguments = ("--base-model", model, "--batch-size", "2", "--output", "out", "--save-every", "2")
    server.on("forward_backward").after(3).not_ready()
    process = shell.start("train", str(data), *arguments, stderr=subprocess.DEVNULL)
    server.wait_until(lambda: (shell.folder / "out/run.json").exists(), 30)
    server.wait_until(
        lambda: json.loads((shell.folder / "out/run.json").read_text())["step"] == 2, 30
    )
    process.kill()
    process.wait(30)
    ran = shell("train", "--resume", "out", "--json")
    assert ran.returncode == 0, ran.stderr
    assert "Going on after step 2." in ran.stderr
    assert steps_in(shell.folder / "out") == [1, 2, 3, 4, 5, 6]


def test_module_is_the_same_command(shell):
    ran = shell.script("python -m tinkex version")
    assert ran.stdout == shell("version").stdout
