"""The pages that are made from the code: settings, command line, errors, losses, routes, API lists.

`python docs/_generate.py` writes them; `--check` writes nothing and fails if one is out of date.
Pages of the guides carry whole examples between markers; those are filled in here, too.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = ROOT / "src" / "tinkex"
SITE = ROOT / "mkdocs.yml"
NOTICE = "<!-- Made by docs/_generate.py: change the code, then run it again. -->\n"
HELP_WIDTH = 88


# Settings -----------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting of a client and of a server."""
    from tinkex.config import DEFAULT_BASE_URL, Config
    from tinkex.server.settings import settings
    from tinkex.wire.limits import Limits

    client = [
        (f"`{each.name}`", each.type, default_of(each), each.doc, codes(each.env))
        for each in Config.fields()
    ]
    server = [
        (f"`{each.flag}`", shown(each.default), each.about, f"`{each.variable}`")
        for each in settings()
    ]
    limits = [
        (f"`{name}`", shown(value), docs_of_fields(Limits)[name])
        for name, value in fields_of(Limits).items()
    ]
    return "\n".join(
        [
            "# Settings\n",
            NOTICE,
            "## Of a client\n",
            "A setting is taken from the first of: the argument (`ServiceClient(...)` or",
            "`Config(...)`), the environment, `tinkex.toml` in the working directory, the user's",
            "`~/.config/tinkex/config.toml`, the default. `tinkex config show --origin` prints",
            "what is in force and where it came from.\n",
            "An API key that none of these has is what the command in `TINKER_CREDENTIAL_CMD`",
            "prints, for keys that are in a vault. It runs once in a process, when a key is first",
            "needed, without a shell unless it has a shell's marks in it (such as `|` or `$`); its",
            "exit code must be 0, and an error never shows what it printed.\n",
            "`CLOUDFLARE_ACCESS_CLIENT_ID` and `CLOUDFLARE_ACCESS_CLIENT_SECRET` are sent as the",
            "headers `CF-Access-Client-Id` and `CF-Access-Client-Secret`, for a server behind",
            "Cloudflare Access. A header of that name in `default_headers` comes before them.\n",
            "Without such a command an API key is that of `tinkex auth login`, from",
            "`credentials.json` beside `config.toml` (in `$XDG_CONFIG_HOME/tinkex` or",
            "`~/.config/tinkex`) or from `credentials_file`. The file has one key for each server:",
            "where `base_url` is set, its key is used and no other; where neither key nor server",
            "is set, both are those of the last login. A file that other users could read or",
            "change is refused. Last of all the key may come from the official SDK's",
            "`~/.tinker/credentials.json`.\n",
            table(("setting", "type", "default", "meaning", "environment"), client),
            f"The server is `{DEFAULT_BASE_URL}` (the hosted service) unless you name another.\n",
            "Both files keep their settings in a `[client]` table:\n",
            '```toml\n[client]\nbase_url = "http://127.0.0.1:8000"\ntimeout_s = 30\n```\n',
            "## Of the process\n",
            table(("variable", "meaning"), PROCESS_VARIABLES),
            "## Of a server\n",
            "Every option of `tinkex serve` is also a variable. Here are the numbers; the rest is",
            "on the page of the [command line](cli.md#tinkex-serve).\n",
            table(("option", "default", "meaning", "variable"), server),
            "`TINKEX_BOOTSTRAP_KEY` makes a key known at start, for servers set up by a script.\n",
            "## Limits of a request\n",
            "What is above a limit is refused with `limit-exceeded` before any work is done, and",
            "the message names the limit. `get_server_capabilities` of a Tinkex server lists them.",
            "Those with an option above can be changed.\n",
            table(("limit", "default", "meaning"), limits),
        ]
    )


def default_of(setting: Any) -> str:
    """A client setting's default; the address of the hosted service is too long for a table."""
    return "hosted" if setting.name == "base_url" else shown(setting.default)


PROCESS_VARIABLES = [
    ("`TINKEX_DEBUG`", "`1` prints tracebacks of failed commands, and whole ones of errors."),
    ("`NO_COLOR`, `TERM=dumb`", "No colours in the terminal."),
    ("`HF_HOME`, `HF_HUB_CACHE`, `XDG_CACHE_HOME`", "Where the Hugging Face cache lies."),
    ("`HF_HUB_OFFLINE`, `TRANSFORMERS_OFFLINE`", "`1` keeps tokenizers from being downloaded."),
    (
        "`OTEL_EXPORTER_OTLP_ENDPOINT`",
        "Where `tinkex serve` sends traces; `--otel-endpoint` comes before it.",
    ),
]


def fields_of(struct: Any) -> dict[str, Any]:
    """Names and defaults of a msgspec struct."""
    import msgspec

    return {each.name: each.default for each in msgspec.structs.fields(struct)}


def docs_of_fields(struct: Any) -> dict[str, str]:
    """The texts written below the fields of a class."""
    import inspect
    import textwrap

    body = ast.parse(textwrap.dedent(inspect.getsource(struct))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for one, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(after, ast.Expr):
            assert isinstance(one.target, ast.Name)
            found[one.target.id] = literal(after.value)
    return found


# Command line -------------------------------------------------------------------------------------


def cli_page() -> str:
    """The help of every command."""
    from tinkex.cli import failure
    from tinkex.cli.main import root

    parts = [
        "# Command line\n",
        NOTICE,
        "Results go to stdout, everything else to stderr; `--json` prints JSON. Errors with",
        '`--json` are `{"error": {"code", "message", "hint", "request_id"}}` on stderr.\n',
    ]
    exit_codes = (failure.__doc__ or "").split("\n\n", 1)[1].strip()
    parts += ["## Exit codes\n", exit_codes + "\n"]
    for path, text in helps(root):
        parts.append(f"{'##' if path.count(' ') <= 1 else '###'} {path}\n")
        parts.append(f"```text\n{text}\n```\n")
    return "\n".join(parts)


def helps(root: Any) -> Iterator[tuple[str, str]]:
    """Every command's path and the text of its `--help`."""
    import click

    def walk(command: click.Command, name: str, parent: Any) -> Iterator[tuple[str, str]]:
        context = click.Context(
            command,
            info_name=name,
            parent=parent,
            terminal_width=HELP_WIDTH,
            **command.context_settings,
        )
        yield context.command_path, command.get_help(context)
        if isinstance(command, click.Group):
            for each in command.list_commands(context):
                child = command.get_command(context, each)
                assert child is not None
                yield from walk(child, each, context)

    return walk(root, "tinkex", None)


# Errors -------------------------------------------------------------------------------------------


@dataclass
class Code:
    """A stable code: the errors that carry it, and where they are raised."""

    name: str
    classes: set[str] = field(default_factory=set)
    messages: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    about: list[str] = field(default_factory=list)


SPECIAL_CODES = {
    "no-such-route": "The server answered 404: there is no such path. Check `base_url`.",
    "wrong-method": "The server answered 405: the path exists, the method does not.",
    "request-failed-user": "The request was accepted and then refused; the message names the part "
    "to change, and is one of those on this page.",
    "request-failed-server": "The server failed while working on an accepted request. Send it "
    "anew; if it stays, read the server's log.",
    "request-failed-unknown": "An accepted request failed and the server did not say why.",
    "unknown-adapter": "The engine holds no such adapter. The server loads it again by itself.",
    "unknown-sampler": "The engine holds no such sampler. The server loads it again by itself.",
    "engine-failure": "The engine could not compute a good request. The server restarts it and "
    "replays the log; send the request anew if the error reaches you.",
    "disk-full": "The disk of the server is full. No partial file was left. Deleting checkpoints "
    "works on a full disk; the server goes on by itself once there is space, and so do clients "
    "that retry.",
    "disk-read-only": "The disk of the server cannot be written to. As with `disk-full`, the "
    "server goes on once it can.",
    "disk-failed": "The disk of the server failed to read or write. Try again; the operator should "
    "look at the disk.",
    "depot-failed": "The object store that keeps the server's folders does not answer or refuses. "
    "No partial folder was left. Try again; the operator should look at the store and the server's "
    "credentials for it.",
    "files-damaged": "A file of a checkpoint, a sampler or a run's recovery state is not as it was "
    "saved: its hash differs, or it is cut, exchanged or lost. It is not used; load another "
    "checkpoint.",
    "store-damaged": "The database file is damaged. The operator has to bring it back from a copy.",
    "usage": "The command line was wrong (exit code 2); try the command with `--help`.",
    "interrupted": "Ctrl-C (exit code 130).",
    "internal": "A mistake in Tinkex. `TINKEX_DEBUG=1` shows the traceback to report.",
    "error": "Something went wrong that has no code of its own.",
}
"""Codes that are put together at run time, and what to do about them."""


def errors_page() -> str:
    """One entry for each code."""
    found = error_codes()
    parts = [
        "# Error codes\n",
        NOTICE,
        "Every error carries a stable `code`, a `hint` that says what to do, `retryable`, and the",
        "`request_id` where there is one. `except tinkex.TinkexError` catches all of them; the",
        "classes are on the page of the [SDK](sdk.md). What stands in braces are values at hand.\n",
        "What the server refuses comes as the class of its HTTP status, with the code below: 401",
        "`AuthenticationError`, 404 `NotFoundError`, 410 `GoneError`, 422",
        "`UnprocessableEntityError`, 429 `RateLimitError`, 5xx `InternalServerError`. What fails",
        "after it was accepted comes as `RequestFailedError`, whose code is",
        "`request-failed-user` or `request-failed-server` and whose message is the one below.\n",
    ]
    for name in sorted(found):
        parts += entry(found[name])
    return "\n".join(parts)


def entry(code: Code) -> list[str]:
    """The section of one code."""
    lines = [f"## {code.name}\n"]
    if code.name in SPECIAL_CODES:
        lines.append(SPECIAL_CODES[code.name] + "\n")
    lines += [about + "\n" for about in dict.fromkeys(code.about)]
    lines += [f"> {message}\n" for message in list(dict.fromkeys(code.messages))[:4]]
    hints = [hint for hint in dict.fromkeys(code.hints) if hint]
    if hints:
        lines.append("What to do: " + " ".join(hints[:3]) + "\n")
    seen = sorted({AS_SEEN.get(each, f"`{each}`") for each in code.classes})
    seen = [each for each in seen if not any(other.startswith(f"{each} ") for other in seen)]
    if code.name in AT_START:
        seen = ["the last words of `tinkex serve` or `tinkex models pull`"]
    if seen:
        lines.append(f"You see it as {' or '.join(seen)}.\n")
    return lines


AT_START = {
    *("bad-model-file", "bad-model-folder", "bad-wheel", "fetch-failed", "needs-transformers"),
    *("no-model", "no-such-model", "unsupported-model", "port-in-use", "data-dir-in-use"),
    *("bad-bootstrap-key", "bad-signing-secret", "no-signing-secret", "database-not-private"),
    *("bad-engine-pings", "bad-loss-plugin", "bad-lease", "database-in-use"),
    *("data-dir-not-shared", "standby-needs-postgresql"),
}
"""Codes of a server that does not start."""


AS_SEEN = {
    "BadParameter": "status 400 of the OpenAI endpoint",
    "BadRange": "`BadRequestError` (400)",
    "Busy": "`RateLimitError` (429)",
    "ClientError": "`BadRequestError` (400)",
    "EngineFailure": "`RequestFailedError` of category `server`",
    "EngineUserError": "`RequestFailedError` of category `user`",
    "Gone": "`GoneError` (410)",
    "HeadTooLarge": "`APIStatusError` (431)",
    "LeaseLost": "`InternalServerError` (503)",
    "LeaseNotRenewed": "`InternalServerError` (503)",
    "LimitExceeded": "`UnprocessableEntityError` (422)",
    "MalformedRequest": "`BadRequestError` (400)",
    "ModelNotFound": "status 404 of the OpenAI endpoint",
    "NoTokenizer": "status 400 of the OpenAI endpoint",
    "NoWorkerError": "`RequestFailedError` of category `server`",
    "NotFound": "`NotFoundError` (404)",
    "NotReady": "`InternalServerError` (503)",
    "NotSupported": "`NotFoundError` (404)",
    "OverCapacity": "`InternalServerError` (503)",
    "RangeNotSatisfiable": "`APIStatusError` (416)",
    "RequestError": "`RequestFailedError`",
    "SampleFailed": "status 400 of the OpenAI endpoint",
    "SequenceError": "`UnprocessableEntityError` (422)",
    "ServerError": "`InternalServerError` (500)",
    "ServerEndingError": "`RequestFailedError` of category `server`",
    "Standby": "`InternalServerError` (503)",
    "StoreError": "`InternalServerError` (500)",
    "TooLarge": "`APIStatusError` (413)",
    "Unsampled": "status 500 of the OpenAI endpoint",
    "Unauthenticated": "`AuthenticationError` (401)",
    "Unprocessable": "`UnprocessableEntityError` (422)",
}
"""What the client makes of an error that is raised inside a server."""


def error_codes() -> dict[str, Code]:
    """Every code in the source, found by reading it."""
    found: dict[str, Code] = {name: Code(name) for name in SPECIAL_CODES}

    def of(name: str) -> Code:
        return found.setdefault(name, Code(name))

    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and (declared := class_code(node)):
                name, hint = declared
                of(name).classes.add(node.name)
                of(name).about.append(escape(first_sentence(ast.get_docstring(node) or "")))
                of(name).hints.append(escape(hint))
            if isinstance(node, ast.Call) and (raised := call_code(node)):
                name, kind, message, hint = raised
                of(name).classes |= {kind} if kind[:1].isupper() else set()
                of(name).messages += [escape(message)] if message else []
                of(name).hints.append(escape(hint))
    return found


def first_sentence(text: str) -> str:
    """What a docstring says first."""
    return re.split(r"(?<=\.)\s", " ".join(text.split("\n\n")[0].split()))[0]


def class_code(node: ast.ClassDef) -> tuple[str, str] | None:
    """The code and the advice that a class of errors declares."""
    values = {}
    for each in node.body:
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            values[each.targets[0].id] = each.value
    code = values.get("code")
    if not (isinstance(code, ast.Constant) and isinstance(code.value, str)):
        return None
    hint = values.get("default_hint")
    return code.value, literal(hint) if hint is not None else ""


def call_code(node: ast.Call) -> tuple[str, str, str, str] | None:
    """The code, class, message and advice of an error made in place."""
    keywords = {each.arg: each.value for each in node.keywords}
    code = keywords.get("code")
    if not (isinstance(code, ast.Constant) and isinstance(code.value, str) and code.value):
        return None
    kind = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    said = node.args[0] if node.args else keywords.get("message")
    hint = keywords.get("hint")
    return code.value, kind, literal(said) if said else "", literal(hint) if hint else ""


def literal(node: ast.AST | None) -> str:
    """A text in the source as a reader sees it, with `{name}` for what is put in at run time."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return " ".join(node.value.split())
    if isinstance(node, ast.JoinedStr):
        return " ".join("".join(_part(each) for each in node.values).split())
    return ""


def _part(node: ast.expr) -> str:
    """A piece of an f-string; what is put in at run time by its name, if that is simple."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    value = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(value, ast.Name | ast.Attribute):
        return "{" + (value.id if isinstance(value, ast.Name) else value.attr) + "}"
    return "{…}"


# Losses, routes, public names ---------------------------------------------------------------------


def losses_page() -> str:
    """The losses a Tinkex server computes, from their declarations."""
    from tinkex.losses import BUILT_IN

    rows = [
        (
            f"[`{loss.name}`](#{loss.name})",
            f"`{loss.formula}`",
            yes(loss.needs_old_logprobs),
            yes(loss.needs_advantages),
            yes(loss.takes_top_k),
        )
        for loss in BUILT_IN.values()
    ]
    head = ("loss", "per target", "sampler's logprobs", "advantages", "`[N, K]` targets")
    return "\n".join(
        [
            "# Losses\n",
            NOTICE,
            "Losses and gradients are sums over targets, never means. `lp` is the logprob of the",
            "target now, `q` the one recorded by the sampler, `A` the advantage, `w` the weight,",
            "`r = exp(lp - q)`, and `sg` stops the gradient. Every loss needs `target_tokens`:",
            "position i of the input predicts row i. Every loss reports `loss:sum`. A metric",
            "`:mean` is the mean over datums of each one's mean over its targets, and so does not",
            "depend on how a batch is cut into chunks.\n",
            table(head, rows),
            "A server may have more: `get_server_capabilities` lists them. How to write one is on",
            "the page [your own losses](../how-to/custom-losses.md).\n",
            *(part for loss in BUILT_IN.values() for part in loss_section(loss)),
            *custom_loss_section(),
            "## Declaring a loss\n",
            *directives("tinkex.losses", DECLARATIONS),
        ]
    )


DECLARATIONS = ("Loss", "LossInput", "LossOption", "LossMetric", "LossBatch")


def custom_loss_section() -> list[str]:
    """What an uploaded loss may use, and how much."""
    from tinkex.engine.custom_loss import bounds
    from tinkex.engine.custom_loss.operations import FUNCTIONS, METHODS

    def listed(prefix: str) -> str:
        names = (name.removeprefix(prefix) for name in FUNCTIONS if name.startswith(prefix))
        return ", ".join(f"`{name}`" for name in sorted(names) if "." not in name)

    rows = [
        ("functions of `torch`", listed("torch.")),
        ("of `torch.nn.functional`", listed("torch.nn.functional.")),
        ("of `torch.special`", listed("torch.special.")),
        ("of `torch.linalg`", listed("torch.linalg.")),
        ("methods of tensors", ", ".join(f"`{name}`" for name in sorted(METHODS))),
        ("Python's operators", listed("operator.")),
        ("of `math`", listed("math.")),
    ]
    limits = [
        ("nodes of the graph", f"{bounds.MAX_NODES:,}"),
        ("inputs, metrics", f"{bounds.MAX_INPUTS}, {bounds.MAX_METRICS}"),
        ("values of one operation's result", f"{bounds.MAX_RESULT_VALUES:,}"),
        ("values of all results of one datum", f"{bounds.MAX_DATUM_VALUES:,}"),
        ("values computed for one request", f"{bounds.MAX_REQUEST_VALUES:,}"),
        ("operations of one request (nodes times datums)", f"{bounds.MAX_CALLS:,}"),
    ]
    return [
        "## custom\n",
        "A loss that a client uploaded with `create_custom_loss`; how it is written is on the page",
        "[custom losses](../how-to/custom-losses.md#losses-of-one-example). It may use:\n",
        table(("what", "names"), rows),
        "A server computes at most:\n",
        table(("what", "limit"), limits),
    ]


def loss_section(loss: Any) -> list[str]:
    """What one loss takes and reports."""
    from tinkex.losses.declaration import range_text

    parts = [f"## {loss.name}\n", f"{loss.about} Per target: `{loss.formula}`.\n"]
    inputs = [
        (
            f"`{each.name}`",
            each.about,
            "required" if each.is_required else "optional",
            each.dtype,
            f"one per {each.per}",
            range_text(each.low, each.high),
        )
        for each in loss.inputs
    ]
    parts.append(table(("input", "meaning", "", "dtype", "shape", "range"), inputs))
    options = [
        (
            f"`{each.name}`",
            each.about,
            f"{each.default:g}",
            range_text(each.low, each.high)
            + (f", at most `{each.at_most}`" if each.at_most else ""),
        )
        for each in loss.options
    ]
    if options:
        parts.append(table(("loss_fn_config", "meaning", "default", "range"), options))
    metrics = [(f"`{each.name}`", each.about) for each in loss.metrics]
    if metrics:
        parts.append(table(("metric", "meaning"), metrics))
    return [*parts, loss.notes + "\n"] if loss.notes else parts


def metrics_page() -> str:
    """Every metric of a server, from the declarations."""
    from tinkex.server.monitoring.metric_list import METRICS

    rows = [
        (
            f"`{each.name}`",
            each.kind,
            ", ".join(f"`{label}`" for label in each.labels),
            each.about,
        )
        for each in METRICS.values()
    ]
    return "\n".join(
        [
            "# Metrics\n",
            NOTICE,
            "What a server with `--metrics-port` or `--metrics-token-file` answers to Prometheus;",
            "[Monitoring](../how-to/monitoring.md) says how. A histogram has the series",
            "`NAME_bucket`, `NAME_sum` and `NAME_count`. No label holds a key, an owner, an id or",
            "anything that a client sent.\n",
            table(("metric", "type", "labels", "meaning"), rows),
        ]
    )


def regularizers_page() -> str:
    """The public names of regularizers."""
    from tinkex import regularizers

    return "\n".join(
        [
            "# Regularizers\n",
            NOTICE,
            "How they are used is on the page [Regularizers](../how-to/regularizers.md).\n",
            *directives("tinkex.regularizers", regularizers.__all__),
        ]
    )


def yes(is_so: bool) -> str:
    """A flag in a table."""
    return "yes" if is_so else ""


def routes_page() -> str:
    """Every route of a server and whether it needs a key."""
    rows = [
        (", ".join(methods), f"`{path}`", access, escape(about))
        for path, methods, access, about in routes()
    ]
    return "\n".join(
        [
            "# Routes of a server\n",
            NOTICE,
            "Every route needs a key in `X-API-Key`, or as `Authorization: Bearer`, except those",
            "that say so; those for operators need the operator token in `X-Operator-Token`",
            "instead. What they carry is described in the",
            "[notes on the wire protocol](wire.md), and for `/v1` and `/oai/api/v1` on the page",
            "about [OpenAI's clients](../how-to/openai.md). Where there is a GET, HEAD is answered",
            "with the same headers and no body.\n",
            table(("method", "path", "access", "what it gives"), rows),
        ]
    )


def routes() -> list[tuple[str, list[str], str, str]]:
    """Path, methods, access and meaning of every route of the application."""
    from starlette.routing import Mount, Route

    from tinkex.server.app import build_app
    from tinkex.server.gate.auth import (
        OPERATOR_PREFIX,
        PAGE_PREFIX,
        PUBLIC_PATHS,
        SIGNED_PREFIX,
    )

    found = []

    def walk(routes: Any, prefix: str) -> None:
        for route in routes:
            if isinstance(route, Mount):
                walk(route.routes, prefix + route.path)
            elif isinstance(route, Route):
                path = prefix + route.path
                access = "key"
                if path in PUBLIC_PATHS or path == "/":
                    access = "**no key**"
                elif path.startswith(PAGE_PREFIX):
                    access = "**file of the page**"
                elif path.startswith(SIGNED_PREFIX):
                    access = "**signed link**"
                elif path.startswith(OPERATOR_PREFIX):
                    access = "**operator token**"
                about = (route.endpoint.__doc__ or "").split("\n")[0]
                methods = sorted((route.methods or set()) - {"HEAD"})
                found.append((path, methods, access, about))

    walk(build_app(None).routes, "")  # type: ignore[arg-type]
    return sorted(found)


def sdk_page() -> str:
    """The public names of the SDK, described by their docstrings."""
    import tinkex

    types_ = set(tinkex._TYPES)
    names = [each for each in tinkex.__all__ if each not in types_ and each in tinkex._HOMES]
    clients = [each for each in names if each.endswith("Client")]
    failures = [each for each in names if each in tinkex._ERRORS]
    others = [each for each in names if each not in (*clients, *failures)]
    order = ("ServiceClient", "TrainingClient", "SamplingClient", "RestClient", "AdminClient")
    return "\n".join(
        [
            "# SDK\n",
            NOTICE,
            "Public is what can be imported from `tinkex`, `tinkex.types`, `tinkex.errors`,",
            "`tinkex.telemetry`, [`tinkex.losses`](losses.md) and",
            "[`tinkex.regularizers`](regularizers.md). Everything else may change.\n",
            "## Clients\n",
            *directives("tinkex", sorted(clients, key=order.index)),
            "## Futures, settings and the rest\n",
            *directives("tinkex", others),
            "## Errors\n",
            *directives("tinkex.errors", public_errors()),
        ]
    )


def public_errors() -> list[str]:
    """The error classes in the order of the tree: those of one module together."""
    from tinkex import errors

    files = [SOURCE / "errors" / f"{each}.py" for each in ("base", "api", "operations", "server")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    names = re.findall(r"^class (\w+)", text, re.M)
    return [name for name in names if name in errors.__all__]


def types_page() -> str:
    """The public types."""
    import tinkex.types

    names = sorted(name for name in tinkex.types.__all__ if not name.startswith("_"))
    return "\n".join(["# Types\n", NOTICE, *directives("tinkex.types", names)])


def telemetry_page() -> str:
    """The public names of telemetry."""
    from tinkex import telemetry

    names = [name for name in telemetry.__all__ if name != "events"]
    return "\n".join(
        [
            "# Telemetry\n",
            NOTICE,
            "How it is used is on the page [Telemetry](../how-to/telemetry.md).\n",
            *directives("tinkex.telemetry", names),
        ]
    )


def directives(module: str, names: Any) -> list[str]:
    """What mkdocstrings makes an entry of, for each name; structs are shown with their fields."""
    import importlib

    import msgspec

    found = []
    for name in names:
        value = getattr(importlib.import_module(module), name)
        is_struct = isinstance(value, type) and issubclass(value, msgspec.Struct)
        options = STRUCT_OPTIONS if is_struct else CLIENT_OPTIONS if name in CLIENTS else ""
        found.append(f"::: {module}.{name}\n{options}")
    return found


CLIENTS = {"ServiceClient", "TrainingClient", "SamplingClient", "RestClient"}
"""Classes whose methods are in part those of private base classes, one for each subject."""

CLIENT_OPTIONS = """    options:
      inherited_members: true
      show_bases: false
"""


STRUCT_OPTIONS = """    options:
      show_bases: false
      show_if_no_docstring: true
      show_labels: false
"""


# Whole examples in pages --------------------------------------------------------------------------

MARKER = re.compile(r"(<!-- example: (\S+) -->\n)```python\n.*?^```\n", re.M | re.S)


def with_examples(page: str) -> str:
    """The page with the files it names put in."""

    def block(match: re.Match[str]) -> str:
        code = (ROOT / "examples" / match[2]).read_text(encoding="utf-8")
        return f"{match[1]}```python\n{code}```\n"

    return MARKER.sub(block, page)


# Writing ------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """A default as it stands in a table."""
    if value is None or value in ((), {}):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, float):
        return f"{value:,.10g}"
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def codes(names: Any) -> str:
    """Names in code type."""
    return ", ".join(f"`{name}`" for name in names)


def escape(text: str) -> str:
    """A text of the source as Markdown."""
    return text.replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/settings.md": settings_page,
    "reference/cli.md": cli_page,
    "reference/errors.md": errors_page,
    "reference/losses.md": losses_page,
    "reference/metrics.md": metrics_page,
    "reference/regularizers.md": regularizers_page,
    "reference/routes.md": routes_page,
    "reference/sdk.md": sdk_page,
    "reference/types.md": types_page,
    "reference/telemetry.md": telemetry_page,
}


def made() -> dict[Path, str]:
    """Every page that depends on code, as it should be."""
    pages = {DOCS / name: make().rstrip() + "\n" for name, make in PAGES.items()}
    pages[SITE] = site_settings()
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if MARKER.search(text):
            pages[path] = with_examples(text)
    return pages


def site_settings() -> str:
    """The site's settings with the repository's address of pyproject.toml, unless it is not set."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return with_repository(SITE.read_text(encoding="utf-8"), project["urls"]["Repository"])


def with_repository(settings: str, url: str) -> str:
    """The settings with this address as `repo_url`; without one if it is the placeholder."""
    lines = [line for line in settings.splitlines() if not line.startswith("repo_url:")]
    if not (urlsplit(url).hostname or "").endswith(".invalid"):
        lines.insert(lines.index("docs_dir: docs"), f"repo_url: {url}")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the pages, or says which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    is_check = parser.parse_args().check
    stale = [
        (path, text)
        for path, text in made().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        if is_check:
            sys.stderr.write(
                f"{path.relative_to(ROOT)} is out of date: run python docs/_generate.py\n"
            )
        else:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 1 if is_check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
