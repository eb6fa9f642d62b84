"""Config: every setting of a client, where it came from, and the only look at the environment.

A setting is taken from the first of: the argument, the environment (`TINKEX_<NAME>`, then the
official SDK's name such as `TINKER_API_KEY`), `tinkex.toml` in the working directory, the user's
`~/.config/tinkex/config.toml`, the default. The API key may last of all come from the official
SDK's `~/.tinker/credentials.json`. Both TOML files keep settings in a `[client]` table.

Knows nothing of HTTP, clients or the command line. No other module reads `os.environ`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeVar, cast, overload

from tinkex.errors import ConfigError
from tinkex.telemetry.redaction import Secret, redact

if TYPE_CHECKING:
    from urllib.parse import SplitResult

T = TypeVar("T")

DEFAULT_BASE_URL: Final = "https://tinker.thinkingmachines.dev/services/tinker-prod"
LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
_OFFICIAL_ENV: Final = {
    "api_key": "TINKER_API_KEY",
    "base_url": "TINKER_BASE_URL",
    "project_id": "TINKER_PROJECT_ID",
    "tags": "TINKER_TAGS",
    "log_level": "TINKER_LOG",
}
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")
_KEY_HINT: Final = (
    "Set TINKER_API_KEY or pass api_key=; keys of the hosted service start with 'tml-' (or 'eyJ' "
    "for a token), and 'tinkex serve' prints the key of its own server."
)


@dataclass(frozen=True, slots=True)
class FieldInfo:
    """One setting, described for documentation and for `tinkex config show`."""

    name: str
    type: str
    default: object
    env: tuple[str, ...]
    doc: str


class _Setting(Generic[T]):
    """A read-only attribute of Config: its default, how its value is read, and what it means."""

    def __init__(self, type: str, default: T, parse: Callable[[Any], T], doc: str) -> None:
        self.type = type
        self.default = default
        self.parse = parse
        self.doc = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        official = (_OFFICIAL_ENV[name],) if name in _OFFICIAL_ENV else ()
        self.env: tuple[str, ...] = (f"TINKEX_{name.upper()}", *official)

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...
    @overload
    def __get__(self, config: Config, owner: type) -> T: ...
    def __get__(self, config: Config | None, owner: type) -> Self | T:
        if config is None:
            return self
        value: Any = config._values[self.name]
        if isinstance(value, Secret):
            value = value.reveal()
        return cast("T", dict(value) if isinstance(value, dict) else value)


# What follows reads one value each, from an argument, a TOML value or an environment string, and
# raises ValueError with the end of the sentence "<setting> must be ...".


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def _api_key(value: Any) -> str | None:
    """Checks a key; what it returns is a Secret, which the attribute reveals as a text."""
    secret = value if isinstance(value, Secret) else Secret(value)
    text = secret.reveal()
    if not (isinstance(text, str) and text and text.isascii() and text.isprintable()):
        raise ValueError("printable ASCII and not empty")
    if " " in text:
        raise ValueError("one word, without spaces or line breaks")
    return cast("str | None", secret)


def _url(value: Any) -> str:
    text = _text(value)
    normalize_base_url(text)
    return text.rstrip("/")


def _flag(value: Any) -> bool:
    word = str(value).strip().lower() if isinstance(value, bool | str) else ""
    if word not in (*_TRUE, *_FALSE):
        raise ValueError("true or false")
    return word in _TRUE


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("a number") from None
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def _seconds(value: Any) -> float:
    number = _number(value)
    if number <= 0:
        raise ValueError("a number of seconds above 0")
    return number


def _count_from(least: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = _number(value)
        except ValueError:
            number = math.nan
        if not number.is_integer() or number < least:
            raise ValueError(f"a whole number, {least} or more")
        return int(number)

    return parse


def _level(value: Any) -> str | None:
    if not isinstance(value, str) or value.strip().lower() not in LOG_LEVELS:
        raise ValueError(f"one of {', '.join(LOG_LEVELS)}")
    return value.strip().lower()


def _texts(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple | set | frozenset) or not all(
        isinstance(item, str) for item in items
    ):
        raise ValueError("a list of texts (in the environment: separated by commas)")
    ordered = sorted(items) if isinstance(items, set | frozenset) else items
    return tuple(dict.fromkeys(item.strip() for item in ordered if item.strip()))


def _text_map(value: Any) -> dict[str, str]:
    if isinstance(value, str):
        import json

        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, Mapping) or not all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        raise ValueError("a mapping of texts to texts (in the environment: a JSON object)")
    return dict(value)


def _headers(value: Any) -> dict[str, str]:
    headers = _text_map(value)
    if any(ord(mark) < 32 or ord(mark) > 126 for pair in headers.items() for mark in "".join(pair)):
        raise ValueError("a mapping of printable ASCII header names to such values")
    return headers


class Config:
    """Every setting of a client; frozen, comparable, and never showing its API key.

    ```python
    config = Config(base_url="http://127.0.0.1:8000")
    config.timeout_s                 # 60.0
    config.origin("base_url")        # 'argument'
    config.replace(max_retries=0)    # another Config, this one stays as it is
    ```

    An argument that is None counts as not given. `environ` and `files` stand in for the process
    environment and the two TOML files, for tests and for programs with their own.

    Raises:
        ConfigError: a setting cannot be used; the message names the setting and its origin.
    """

    __slots__ = ("_origins", "_values")
    _values: dict[str, Any]
    _origins: dict[str, str]

    api_key = _Setting[str | None]("str", None, _api_key, "The key sent with every request.")
    base_url = _Setting("str", DEFAULT_BASE_URL, _url, "The server.")
    project_id = _Setting[str | None]("str", None, _text, "The project to which sessions belong.")
    tags = _Setting[tuple[str, ...]]("list[str]", (), _texts, "Tags given to each session.")
    user_metadata = _Setting[dict[str, str]](
        "dict[str, str]", {}, _text_map, "Your own notes, kept with each session."
    )
    default_headers = _Setting[dict[str, str]](
        "dict[str, str]", {}, _headers, "Headers added to every request."
    )
    timeout_s = _Setting("float", 60.0, _seconds, "How long one request may take.")
    connect_timeout_s = _Setting("float", 5.0, _seconds, "How long connecting may take.")
    poll_timeout_s = _Setting("float", 45.0, _seconds, "How long the server may hold one poll.")
    heartbeat_interval_s = _Setting("float", 10.0, _seconds, "Time between signs of life.")
    max_retries = _Setting(
        "int", 10, _count_from(0), "Retries of a training request or a poll; sampling has none."
    )
    retry_budget_s = _Setting(
        "float", 300.0, _seconds, "How long a training request is retried before it fails."
    )
    retry_base_s = _Setting("float", 0.5, _seconds, "First wait before a retry; it doubles.")
    retry_max_s = _Setting("float", 10.0, _seconds, "Longest wait of our own before a retry.")
    max_retry_after_s = _Setting("float", 60.0, _seconds, "Longest wait a server may ask for.")
    max_connections = _Setting("int", 100, _count_from(1), "Connections open at once.")
    max_samples_in_flight = _Setting("int", 2000, _count_from(1), "Samples on their way at once.")
    telemetry_to_server = _Setting("bool", False, _flag, "Whether events go to the server at all.")
    log_level = _Setting[str | None]("str", None, _level, f"One of {', '.join(LOG_LEVELS)}.")

    def __init__(
        self,
        *,
        api_key: str | Secret | None = None,
        base_url: str | None = None,
        project_id: str | None = None,
        tags: Sequence[str] | None = None,
        user_metadata: Mapping[str, str] | None = None,
        default_headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        connect_timeout_s: float | None = None,
        poll_timeout_s: float | None = None,
        heartbeat_interval_s: float | None = None,
        max_retries: int | None = None,
        retry_budget_s: float | None = None,
        retry_base_s: float | None = None,
        retry_max_s: float | None = None,
        max_retry_after_s: float | None = None,
        max_connections: int | None = None,
        max_samples_in_flight: int | None = None,
        telemetry_to_server: bool | None = None,
        log_level: str | None = None,
        environ: Mapping[str, str] | None = None,
        files: Sequence[str | Path] | None = None,
    ) -> None:
        sources = _Sources(dict(locals()), environ, files)
        # A traceback that prints local variables must find no secret in this frame.
        del api_key, base_url, default_headers, user_metadata, environ
        values, origins = sources.resolve()
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "_origins", origins)

    @classmethod
    def fields(cls) -> tuple[FieldInfo, ...]:
        """Every setting with its type, default, environment names and meaning."""
        return tuple(
            FieldInfo(each.name, each.type, each.default, each.env, each.doc)
            for each in _SETTINGS.values()
        )

    def origin(self, name: str) -> str:
        """Where a setting came from: "argument", "environment <NAME>", "file <path>", "default".

        Raises:
            ConfigError: there is no such setting.
        """
        if name not in _SETTINGS:
            raise _unknown(name, "setting")
        return self._origins[name]

    def replace(self, **changes: Any) -> Config:
        """Another Config with these settings changed; nothing is read from anywhere again."""
        for name in changes:
            if name not in _SETTINGS:
                raise _unknown(name, "setting")
        other = object.__new__(Config)
        changed = _Sources(changes, {}, ()).resolve()
        values, origins = dict(self._values), dict(self._origins)
        for name in changes:
            values[name], origins[name] = changed[0][name], changed[1][name]
        object.__setattr__(other, "_values", values)
        object.__setattr__(other, "_origins", origins)
        return other

    def require_api_key(self) -> str:
        """The API key, for whoever is about to send a request.

        Raises:
            ConfigError: there is none; the hint says where to put it.
        """
        secret = self._values["api_key"]
        if secret is None:
            raise ConfigError("No API key was given.", hint=_KEY_HINT, code="missing-api-key")
        return cast("Secret", secret).reveal()

    @property
    def normalized_base_url(self) -> str:
        """The base URL in the one spelling under which limits and pools are shared."""
        return normalize_base_url(self.base_url)

    @property
    def tenant_key(self) -> tuple[str, str]:
        """What tells tenants apart: the normalised URL and the SHA-256 of the key (or "")."""
        secret: Secret | None = self._values["api_key"]
        return self.normalized_base_url, secret.sha256 if secret else ""

    def as_dict(self) -> dict[str, Any]:
        """All settings as plain values, secrets masked; for showing, not for rebuilding."""
        shown = {name: getattr(self, name) for name in _SETTINGS}
        shown["tags"] = list(self.tags)
        return cast("dict[str, Any]", redact(shown))

    def __repr__(self) -> str:
        if not hasattr(self, "_origins"):  # seen by debuggers while it is being made
            return "Config(…)"
        settings = self.as_dict()
        given = [name for name in _SETTINGS if self._origins[name] != "default"]
        return f"Config({', '.join(f'{name}={settings[name]!r}' for name in given)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and other._values == self._values

    def __hash__(self) -> int:
        return hash(tuple(_hashable(value) for value in self._values.values()))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Config is frozen; make another with config.replace({name}=...).")

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, str]]:
        return self._values, self._origins

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, str]]) -> None:
        object.__setattr__(self, "_values", state[0])
        object.__setattr__(self, "_origins", state[1])


_SETTINGS: Final[dict[str, _Setting[Any]]] = {
    name: each for name, each in vars(Config).items() if isinstance(each, _Setting)
}


def normalize_base_url(url: str) -> str:
    """One spelling for all spellings of the same server.

    Scheme and host in lower case, no default port, no trailing slash; the path prefix is kept.

    >>> normalize_base_url("HTTPS://API.Example.com:443/tinker//")
    'https://api.example.com/tinker'

    Raises:
        ConfigError: no http(s) URL, or one with a user name, a query or a fragment.
    """
    parts, problem = _split_url(url.strip())
    if problem:
        raise ConfigError(
            f"base_url={_url_to_show(url)!r} {problem}.",
            hint="Write it as https://host[:port][/path]; credentials go into api_key.",
        )
    host = (parts.hostname or "").rstrip(".")
    host = f"[{host}]" if ":" in host else host
    is_default_port = parts.port in (None, _DEFAULT_PORTS[parts.scheme])
    port = "" if is_default_port else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What the environment says about this process rather than about one client."""

    is_debug: bool
    has_color: bool
    hub_cache: Path
    is_hub_offline: bool


def process_settings(environ: Mapping[str, str] | None = None) -> ProcessSettings:
    """Tracebacks (TINKEX_DEBUG), colours (NO_COLOR, TERM=dumb), the Hugging Face cache (HF_*)."""
    variables = os.environ if environ is None else environ
    get = variables.get
    home = _home(variables, is_real=environ is None) or Path()
    caches = get("XDG_CACHE_HOME") or home / ".cache"
    hub_home = get("HF_HOME") or Path(caches) / "huggingface"
    hub_cache = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE") or Path(hub_home) / "hub"
    return ProcessSettings(
        is_debug=get("TINKEX_DEBUG", "").lower() in _TRUE,
        has_color=not get("NO_COLOR") and get("TERM") != "dumb",
        hub_cache=Path(hub_cache).expanduser(),
        is_hub_offline=(get("HF_HUB_OFFLINE") or get("TRANSFORMERS_OFFLINE") or "").lower()
        in _TRUE,
    )


class _Sources:
    """Where settings are looked for, in order; shows nothing of what it holds."""

    def __init__(
        self,
        given: Mapping[str, Any],
        environ: Mapping[str, str] | None,
        files: Sequence[str | Path] | None,
    ) -> None:
        self._given = given
        self._environ = os.environ if environ is None else environ
        self._home = _home(self._environ, is_real=environ is None)
        self._files = self._read_files(files)

    def resolve(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The value and the origin of every setting."""
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for name, setting in _SETTINGS.items():
            values[name], origins[name] = setting.default, "default"
            for origin, found in self._candidates(setting):
                values[name], origins[name] = _parsed(setting, found, origin), origin
                break
        return values, origins

    def _candidates(self, setting: _Setting[Any]) -> Iterator[tuple[str, _Found]]:
        name = setting.name
        if self._given.get(name) is not None:
            yield "argument", _Found(self._given[name])
        for variable in setting.env:
            if self._environ.get(variable):
                yield f"environment {variable}", _Found(self._environ[variable])
        for path, table in self._files:
            if name in table:
                yield f"file {path}", _Found(table[name])
        if name == "api_key" and self._home:
            path = self._home / ".tinker" / "credentials.json"
            if stored := _stored_key(path):
                yield f"file {path}", _Found(stored)

    def _read_files(self, files: Sequence[str | Path] | None) -> list[tuple[Path, dict[str, Any]]]:
        if files is not None:
            return [(Path(path), _client_table(Path(path))) for path in files]
        paths = [Path("tinkex.toml").absolute()]
        if config_home := self._environ.get("XDG_CONFIG_HOME"):
            paths.append(Path(config_home) / "tinkex" / "config.toml")
        elif self._home:
            paths.append(self._home / ".config" / "tinkex" / "config.toml")
        return [(path, _client_table(path)) for path in paths if path.is_file()]

    def __repr__(self) -> str:
        return "<where settings come from>"


class _Found:
    """A value on its way to being checked; it may be a secret, so it shows nothing."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<a value>"


def _parsed(setting: _Setting[Any], found: _Found, origin: str) -> Any:
    try:
        return setting.parse(found.value)
    except ConfigError as error:
        message, hint = f"{error.message[:-1]} (from {origin}).", error.hint
    except (ValueError, TypeError) as error:
        is_secret = setting.name in ("api_key", "default_headers")
        shown = "" if is_secret else f"={_short(redact(found.value))}"
        message = f"{setting.name}{shown} (from {origin}) must be {error}."
        hint = _KEY_HINT if setting.name == "api_key" else setting.doc
    # Raised out here so that the error drags no frame along in which the value is a local.
    raise ConfigError(message, hint=hint)


def _client_table(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = redact(str(error))
        raise ConfigError(
            f"The settings file {path} cannot be read: {reason}.", hint="Correct or remove it."
        ) from None
    table = document.get("client", {})
    if not isinstance(table, dict):
        raise ConfigError(f"'client' in {path} is no table.", hint="Begin it with [client].")
    for name in table:
        if name not in _SETTINGS:
            raise _unknown(name, f"setting in [client] of {path}")
    return table


def _stored_key(path: Path) -> str | None:
    """The default key of the official SDK's store, if there is such a store and we can read it."""
    import json

    try:
        store = json.loads(path.read_text(encoding="utf-8"))
        key = store["keys"][store["default"]]["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return key if isinstance(key, str) and key else None


def _home(environ: Mapping[str, str], *, is_real: bool) -> Path | None:
    if named := environ.get("HOME") or environ.get("USERPROFILE"):
        return Path(named)
    if not is_real:
        return None
    try:
        return Path.home()
    except RuntimeError:
        return None


def _split_url(text: str) -> tuple[SplitResult, str | None]:
    """The parts of a URL, and what is wrong with it, if anything."""
    from urllib.parse import SplitResult, urlsplit

    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  reading it is what checks it
    except ValueError:
        return SplitResult("", "", "", "", ""), "is not a URL"
    problems = {
        "does not begin with http:// or https://": parts.scheme not in _DEFAULT_PORTS,
        "names no host": not (parts.hostname or "").rstrip("."),
        "contains spaces or control characters": " " in text or not text.isprintable(),
        "contains a user name or a password": "@" in parts.netloc,
        "contains a query or a fragment": "?" in text or "#" in text,
    }
    return parts, next((problem for problem, is_so in problems.items() if is_so), None)


def _url_to_show(text: str) -> str:
    """The URL without what might be a password or a token in it."""
    scheme, separator, rest = text.partition("://")
    if separator and "@" in rest:
        rest = "…@" + rest.rpartition("@")[2]
    return str(redact(f"{scheme}{separator}{rest.partition('?')[0].partition('#')[0]}"))


def _unknown(name: str, kind: str) -> ConfigError:
    from difflib import get_close_matches

    close = get_close_matches(name, _SETTINGS, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(_SETTINGS)}."
    return ConfigError(f"{name!r} is not a {kind}.", hint=hint)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _hashable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


__all__ = [
    "DEFAULT_BASE_URL",
    "Config",
    "FieldInfo",
    "ProcessSettings",
    "Secret",
    "normalize_base_url",
    "process_settings",
]
