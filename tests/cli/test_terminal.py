"""What a person sees: progress, questions, colours and a chat, in a terminal of their own."""

import os
import pty
import re
import select
import signal
import subprocess
import time

import pytest

from tests.cli.shell import TINKEX


class Terminal:
    """A command in a pseudo-terminal: what it shows, and what is typed."""

    def __init__(self, shell, *arguments, **environ):
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [TINKEX, *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=shell.folder,
            env={**shell.environ, "TERM": "xterm", **environ},
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(),
        )
        os.close(slave)
        self.text = ""
        self._seen = 0

    def type(self, text):
        os.write(self._master, text.encode())

    def wait_for(self, words, timeout_s=30):
        """Reads on until the words come, after those waited for before."""
        deadline = time.monotonic() + timeout_s
        while (place := self.text.find(words, self._seen)) < 0:
            if time.monotonic() > deadline or not self._read():
                raise AssertionError(f"{words!r} never came: {self.text!r}")
        self._seen = place + len(words)

    def end(self):
        while self._read():
            pass
        code = self.process.wait(30)
        os.close(self._master)
        return code

    def _read(self):
        ready, _, _ = select.select([self._master], [], [], 30)
        try:
            piece = os.read(self._master, 65536) if ready else b""
        except OSError:
            piece = b""
        self.text += piece.decode("utf-8", "replace")
        return piece


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def open_terminal(shell):
    opened = []

    def open_it(*arguments, **environ):
        opened.append(Terminal(shell, *arguments, **environ))
        return opened[-1]

    yield open_it
    for each in opened:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def test_training_shows_one_line_that_is_rewritten(open_terminal, server, model, data):
    terminal = open_terminal("train", str(data), "--base-model", model, "--batch-size", "1")
    assert terminal.end() == 0
    line = r"\r[━─]{24} step \d+/12  loss \d\.\d{4}  [\d,]+ tokens/s  0:0\d left"
    assert re.search(line, terminal.text)
    assert "step 12/12" in terminal.text
    assert "Trained 12 steps" in terminal.text
    assert terminal.text.count("\n") < 12


def test_ctrl_c_in_the_terminal_saves(open_terminal, server, model, data):
    server.hold("optim_step")
    arguments = ("--base-model", model, "--output", "out", "--batch-size", "1")
    terminal = open_terminal("train", str(data), *arguments)
    server.wait_for("optim_step", timeout_s=30)
    terminal.type("\x03")
    terminal.wait_for("Stopping:")
    server.release("optim_step")
    assert terminal.end() == 130
    assert "Go on with: tinkex train --resume out" in terminal.text


def test_training_says_how_long_it_waits_and_for_what(open_terminal, server, model, data):
    server.hold("optim_step")
    arguments = ("--base-model", model, "--output", "out", "--batch-size", "1")
    terminal = open_terminal("train", str(data), *arguments)
    terminal.wait_for("step 1/12 waits 0:0")
    terminal.wait_for(": the server computes it")
    server.release("optim_step")
    terminal.wait_for("step 12/12")
    assert terminal.end() == 0


@pytest.mark.parametrize(("answer", "code", "count"), [("y\n", 0, 0), ("n\n", 1, 1)])
def test_deleting_prompts(open_terminal, shell, server, model, answer, code, count):
    path = shell("checkpoint", "--base-model", model).stdout.strip()
    terminal = open_terminal("checkpoint", "delete", path)
    terminal.wait_for("Delete this checkpoint for good? [y/N]")
    terminal.type(answer)
    assert terminal.end() == code
    assert len(server.service.world.checkpoints) == count


def test_download_shows_progress(open_terminal, shell, server, model):
    path = shell("checkpoint", "--base-model", model).stdout.strip()
    terminal = open_terminal("checkpoint", "download", path, "-o", "adapter")
    assert terminal.end() == 0
    assert re.search(r"\r━{24} adapter_config.json  \d+ B of \d+ B", terminal.text)


@pytest.mark.parametrize(
    ("environ", "has_color"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours_where_they_are_wanted(open_terminal, environ, has_color):
    terminal = open_terminal("doctor", **environ)
    terminal.end()
    assert ("\x1b[32mok" in terminal.text) == has_color


def test_chat(open_terminal, server, model, tmp_path):
    terminal = open_terminal(
        "chat", "--base-model", model, "--system", "Be brief.", "--max-tokens", "4"
    )
    terminal.wait_for("you> ")
    assert "Talking to" in terminal.text
    terminal.type("Hello\n")
    server.wait_for("asample", timeout_s=30)
    terminal.wait_for("(cut at --max-tokens)")
    terminal.wait_for("you> ")
    terminal.type(f"/save {tmp_path / 'talk.jsonl'}\n")
    terminal.wait_for("Saved to")
    terminal.wait_for("you> ")
    terminal.type("\x04")
    assert terminal.end() == 0
    assert '"content": "Hello"' in (tmp_path / "talk.jsonl").read_text()
    prompt = server.calls("asample")[0].decoded["prompt"]["chunks"][0]["tokens"]
    assert b"Be brief." in bytes(token for token in prompt if token < 256)


def test_ctrl_c_in_a_chat_breaks_off_one_answer(open_terminal, server, model):
    server.service.dynamic_flags = {"sample_cancel_enabled": True}
    server.hold("asample")
    terminal = open_terminal("chat", "--base-model", model)
    terminal.wait_for("you> ")
    terminal.type("Hello\n")
    server.wait_for("retrieve_future", timeout_s=30)
    terminal.wait_for("… ")
    os.kill(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("(broken off)")
    terminal.wait_for("you> ")
    server.release("asample")
    terminal.type("/quit\n")
    assert terminal.end() == 0


def test_status_line_of_a_held_answer_is_cleared(open_terminal, server, model):
    server.hold("asample")
    terminal = open_terminal("chat", "--base-model", model)
    terminal.wait_for("you> ")
    terminal.type("Hello\n")
    terminal.wait_for("… 0 s")
    server.release("asample")
    terminal.wait_for("\r     \r")
    terminal.wait_for("you> ")
    terminal.type("\x04")
    assert terminal.end() == 0
