"""The status line, and other things that are shown to people."""

import io

import pytest

from tinkex.cli import output
from tinkex.cli.output import confirm, counted, printable_lines, size_text, write_atomically
from tinkex.cli.progress import BAR_WIDTH, StatusLine, duration_text


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def test_line_is_rewritten_and_cleared(monkeypatch):
    monkeypatch.setattr("tinkex.cli.progress.REFRESH_S", 0)
    terminal = Terminal()
    with StatusLine(terminal) as status:
        status.show("long text")
        status.show("short")
    assert terminal.getvalue() == "\rlong text\rshort    \r     \r"


def test_nothing_is_shown_where_there_is_no_terminal():
    stream = io.StringIO()
    with StatusLine(stream) as status:
        status.show("text", is_urgent=True)
    assert stream.getvalue() == ""


def test_frequent_updates_are_skipped_unless_urgent():
    terminal = Terminal()
    status = StatusLine(terminal)
    status.show("a")
    status.show("b")
    status.show("c", is_urgent=True)
    assert terminal.getvalue() == "\ra\rc"


def test_line_is_cut_to_the_terminal_and_cannot_steer_it():
    terminal = Terminal()
    StatusLine(terminal).show("x\x1b[2J" + "y" * 200)
    assert terminal.getvalue().startswith("\rx\\x1b[2Jyyy")
    assert len(terminal.getvalue()) == 80


def test_remarks_stay_above_the_line(capsys):
    terminal = Terminal()
    status = StatusLine(terminal)
    status.show("working")
    status.say("done")
    assert terminal.getvalue().endswith("\r")
    assert capsys.readouterr().err == "done\n"


@pytest.mark.parametrize(
    ("done", "filled"), [(0, 0), (5, BAR_WIDTH // 2), (10, BAR_WIDTH), (99, BAR_WIDTH)]
)
def test_bar(done, filled):
    assert StatusLine(Terminal()).bar(done, 10) == "━" * filled + "─" * (BAR_WIDTH - filled)


def test_bar_of_a_narrow_terminal_is_ascii():
    terminal = Terminal()
    terminal.encoding = "ascii"
    assert StatusLine(terminal).bar(0, 0) == "-" * BAR_WIDTH
    assert set(StatusLine(terminal).bar(1, 1)) == {"#"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3723, "1:02:03")]
)
def test_durations(seconds, text):
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, None),
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (2e9, "2.0 GB"),
        (3e13, "30.0 TB"),
    ],
)
def test_sizes(size, text):
    assert size_text(size) == text


def test_counts():
    assert (counted(1, "step"), counted(1200, "step")) == ("1 step", "1,200 steps")


def test_long_texts_keep_their_lines_but_steer_nothing():
    assert printable_lines("a\tb\n\x1b[1mc\r") == "a\tb\n\\x1b[1mc\\r"


def test_confirm_does_not_ask_after_agreement(monkeypatch):
    monkeypatch.setattr(output, "is_interactive", lambda: pytest.fail("was asked"))
    confirm("Sure?", is_agreed=True)


def test_failed_write_leaves_the_old_file_and_no_litter(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")
    monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_atomically(tmp_path / "file", "new")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]
