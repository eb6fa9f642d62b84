"""Finding a command, running it, and telling how it ended."""

import importlib
import json
import sys

import click
import pytest

from tinkex import cli
from tinkex.cli.main import COMMANDS, main, root
from tinkex.errors import NotFoundError, ServerError

KEY = "tml-Q7x9dKpW3mNbV5cZ8sL2a1b2"


@pytest.fixture
def command(monkeypatch):
    """Puts a command of one's own into the root group."""

    def add(fn, *decorators):
        for decorate in decorators:
            fn = decorate(fn)
        monkeypatch.setitem(root.commands, "mine", click.command("mine")(fn))

    return add


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_lists_every_command_with_its_summary(run, flag):
    ran = run(flag)
    assert ran.code == 0
    assert ran.err == ""
    assert ran.out.startswith("Usage: tinkex ")
    for name, lazy in COMMANDS.items():
        assert f"  {name}" in ran.out
        assert lazy.summary in ran.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_the_summary_it_promises(run, name):
    ran = run(name, "--help")
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: tinkex {name}")
    module, _, attribute = COMMANDS[name].target.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert command.short_help == COMMANDS[name].summary


@pytest.mark.parametrize("arguments", [[], ["config"]])
def test_nothing_to_do_shows_the_help_as_a_usage_error(run, arguments):
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert "Commands:" in ran.err
    assert "Error" not in ran.err


@pytest.mark.parametrize(
    ("arguments", "message", "suggestion"),
    [
        (["verison"], "No such command 'verison'", "Did you mean 'version'?"),
        (["config", "shwo"], "No such command 'shwo'", "Did you mean 'show'?"),
        (["version", "--jsn"], "No such option '--jsn'", "Did you mean '--json'?"),
        (["version", "extra"], "unexpected extra argument", "Try 'tinkex version --help'."),
        (["config", "show", "--timeout", "soon"], "'soon' is not a valid float", "Try 'tinkex"),
    ],
)
def test_wrong_command_lines_exit_2_with_advice(run, arguments, message, suggestion):
    ran = run(*arguments)
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert suggestion in ran.err
    assert "Traceback" not in ran.err


def test_wrong_command_line_under_json_is_json(run):
    ran = run("version", "--jsn", "--json")
    assert ran.out == ""
    error = json.loads(ran.err)["error"]
    assert error["code"] == "usage"
    assert set(error) == {"code", "message", "hint", "request_id"}


def test_json_after_a_double_dash_is_an_argument(run):
    assert run("version", "--", "--json").err.startswith("Error: ")


def test_error_of_a_command_is_printed_in_words_with_its_code(run, command):
    def fail():
        raise NotFoundError("No such run.", status=404, request_id="r-1", hint="List the runs.")

    command(fail)
    ran = run("mine")
    assert ran.code == 4
    assert ran.out == ""
    assert ran.err == (
        "Error: No such run.\n  List the runs.\n  [code: not-found · request: r-1]\n"
    )
    assert isinstance(ran.error, NotFoundError)


def test_error_of_a_command_under_json(run, command):
    def fail(is_json):
        raise ServerError("It broke.", request_id="r-2", hint="Mend it.")

    command(fail, click.option("--json", "is_json", is_flag=True))
    ran = run("mine", "--json")
    assert ran.code == 6
    assert json.loads(ran.err) == {
        "error": {
            "code": "server-error",
            "message": "It broke.",
            "hint": "Mend it.",
            "request_id": "r-2",
        }
    }


def test_traceback_only_on_request(run, command, monkeypatch):
    def fail():
        raise ZeroDivisionError(f"oops {KEY}")

    command(fail)
    ran = run("mine")
    assert ran.code == 1
    assert "Traceback" not in ran.err
    assert "TINKEX_DEBUG=1" in ran.err
    monkeypatch.setenv("TINKEX_DEBUG", "1")
    debugged = run("mine")
    assert "Traceback" in debugged.err
    assert "ZeroDivisionError" in debugged.err
    assert KEY not in ran.err + debugged.err


@pytest.mark.parametrize("kind", [KeyboardInterrupt, click.Abort])
def test_ctrl_c_is_130_and_one_word(run, command, kind):
    def interrupted():
        raise kind

    command(interrupted)
    ran = run("mine")
    assert (ran.code, ran.err.strip()) == (130, "Interrupted.")


@pytest.mark.parametrize(
    ("ending", "code"), [(SystemExit(3), 3), (SystemExit(), 0), (SystemExit("no"), 1)]
)
def test_run_never_ends_the_process(run, command, ending, code):
    def end():
        raise ending

    command(end)
    assert run("mine").code == code


def test_exit_code_set_through_click_is_kept(run, command):
    def end():
        click.get_current_context().exit(5)

    command(end)
    assert run("mine").code == 5


def test_what_a_command_returns_is_no_exit_code_unless_a_number(run, command):
    command(lambda: "text")
    assert run("mine").code == 0


@pytest.mark.parametrize(
    ("variables", "color"), [({}, None), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_no_color_is_honoured(run, command, monkeypatch, variables, color):
    seen = []
    command(lambda: seen.append(click.get_current_context().color))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert run("mine").code == 0
    assert seen == [color]


@pytest.mark.parametrize(("arguments", "code"), [(["version"], 0), (["nonsense"], 2)])
def test_main_ends_the_process_with_the_outcome(capsys, arguments, code):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == code


def test_main_takes_the_arguments_of_the_process(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["tinkex", "version"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("tinkex ")


@pytest.mark.parametrize("name", COMMANDS)
def test_package_offers_main_and_run_by_their_names(name):
    importlib.import_module(COMMANDS[name].target.partition(":")[0])
    assert cli.main is main
    assert cli.run(["version"]).is_ok


def test_completion_lists_commands_without_running_anything():
    context = click.Context(root)
    assert [item.value for item in root.shell_complete(context, "ver")] == ["version"]
