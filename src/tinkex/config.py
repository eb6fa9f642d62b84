"""Config: every setting of a client, where it came from, and the only look at the environment.

A setting is taken from the first of: the argument, the environment (`TINKEX_<NAME>`, then the
official SDK's name such as `TINKER_API_KEY`), `tinkex.toml` in the working directory, the user's
`~/.config/tinkex/config.toml`, the default. Both TOML files keep settings in a `[client]` table.

An API key that none of these has comes from `tinkex auth login`: its credentials file has a key for
each server, and a server for those who name neither server nor key. So no key goes to a server it
was not stored for. Last of all comes the official SDK's `~/.tinker/credentials.json`.

Knows nothing of HTTP, clients or the command line. No other module reads `os.environ`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, Self, TypeVar, cast, overload

from tinkex import credentials
from tinkex.errors import ConfigError
from tinkex.setting_parsers import (
    LOG_LEVELS,
    TRUE,
    normalize_base_url,
    read_api_key,
    read_count_from,
    read_flag,
    read_headers,
    read_level,
    read_seconds,
    read_text,
    read_text_map,
    read_texts,
    read_url,
)
from tinkex.telemetry.redaction import Secret, redact

if TYPE_CHECKING:
    pass

T = TypeVar("T")

DEFAULT_BASE_URL: Final = "https://tinker.thinkingmachines.dev/services/tinker-prod"
_OFFICIAL_ENV: Final = {
    "api_key": "TINKER_API_KEY",
    "base_url": "TINKER_BASE_URL",
    "project_id": "TINKER_PROJECT_ID",
    "tags": "TINKER_TAGS",
    "log_level": "TINKER_LOG",
}
_KEY_HINT: Final = (
    "Run 'tinkex auth login', set TINKER_API_KEY or pass api_key=; keys of the hosted service "
    "start with 'tml-' (or 'eyJ' for a token), and 'tinkex serve' prints the key of its own server."
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


class Config:
    """Every setting of a client; frozen, comparable, and never showing its API key.

    ```python
    config = Config(base_url="http://127.0.0.1:8000")
    config.timeout_s                 # 60.0
    config.origin("base_url")        # 'argument'
    config.replace(timeout_s=5)      # another Config, this one stays as it is
    ```

    An argument that is None counts as not given. `environ` and `files` stand in for the process
    environment and the two TOML files, for tests and for programs with their own.

    Raises:
        ConfigError: a setting cannot be used; the message names the setting and its origin.
    """

    __slots__ = ("_origins", "_values")
    _values: dict[str, Any]
    _origins: dict[str, str]

    api_key = _Setting[str | None]("str", None, read_api_key, "The key sent with every request.")
    base_url = _Setting("str", DEFAULT_BASE_URL, read_url, "The server.")
    project_id = _Setting[str | None](
        "str", None, read_text, "The project to which sessions belong."
    )
    tags = _Setting[tuple[str, ...]]("list[str]", (), read_texts, "Tags given to each session.")
    user_metadata = _Setting[dict[str, str]](
        "dict[str, str]", {}, read_text_map, "Your own notes, kept with each session."
    )
    default_headers = _Setting[dict[str, str]](
        "dict[str, str]", {}, read_headers, "Headers added to every request."
    )
    timeout_s = _Setting("float", 60.0, read_seconds, "How long one request may take.")
    connect_timeout_s = _Setting("float", 5.0, read_seconds, "How long connecting may take.")
    poll_timeout_s = _Setting("float", 45.0, read_seconds, "How long the server may hold one poll.")
    heartbeat_interval_s = _Setting("float", 10.0, read_seconds, "Time between signs of life.")
    retry_budget_s = _Setting(
        "float", 300.0, read_seconds, "How long a training request is retried before it fails."
    )
    retry_base_s = _Setting("float", 0.5, read_seconds, "First wait before a retry; it doubles.")
    retry_max_s = _Setting("float", 10.0, read_seconds, "Longest wait of our own before a retry.")
    max_samples_in_flight = _Setting(
        "int", 2000, read_count_from(1), "Samples on their way at once."
    )
    telemetry_to_server = _Setting(
        "bool", False, read_flag, "Whether events go to the server at all."
    )
    proxy = _Setting[str | None]("str", None, read_url, "An HTTP proxy to go through.")
    log_level = _Setting[str | None]("str", None, read_level, f"One of {', '.join(LOG_LEVELS)}.")
    credentials_file = _Setting[str | None](
        "str", None, read_text, "Where `tinkex auth login` keeps keys, if not with `config.toml`."
    )

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
        retry_budget_s: float | None = None,
        retry_base_s: float | None = None,
        retry_max_s: float | None = None,
        max_samples_in_flight: int | None = None,
        telemetry_to_server: bool | None = None,
        proxy: str | None = None,
        log_level: str | None = None,
        credentials_file: str | None = None,
        environ: Mapping[str, str] | None = None,
        files: Sequence[str | Path] | None = None,
    ) -> None:
        sources = _Sources(dict(locals()), environ, files)
        # A traceback that prints local variables must find no secret in this frame.
        del api_key, base_url, default_headers, user_metadata, environ
        values, origins = sources.resolve()
        sources.add_stored_key(values, origins)
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


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What the environment says about this process rather than about one client."""

    is_debug: bool
    has_color: bool
    hub_cache: Path
    is_hub_offline: bool
    crash_at: str = ""


def process_settings(environ: Mapping[str, str] | None = None) -> ProcessSettings:
    """Tracebacks (TINKEX_DEBUG), colours (NO_COLOR, TERM=dumb), the Hugging Face cache (HF_*), and
    where a server under test is to die (TINKEX_TEST_CRASH)."""
    variables = os.environ if environ is None else environ
    get = variables.get
    home = _home(variables, is_real=environ is None) or Path()
    caches = get("XDG_CACHE_HOME") or home / ".cache"
    hub_home = get("HF_HOME") or Path(caches) / "huggingface"
    hub_cache = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE") or Path(hub_home) / "hub"
    return ProcessSettings(
        is_debug=get("TINKEX_DEBUG", "").lower() in TRUE,
        has_color=not get("NO_COLOR") and get("TERM") != "dumb",
        hub_cache=Path(hub_cache).expanduser(),
        is_hub_offline=(get("HF_HUB_OFFLINE") or get("TRANSFORMERS_OFFLINE") or "").lower() in TRUE,
        crash_at=get("TINKEX_TEST_CRASH", ""),
    )


def credentials_path(config: Config, environ: Mapping[str, str] | None = None) -> Path:
    """Where the keys of `tinkex auth login` are, or would be.

    Raises:
        ConfigError: there is no home to keep them in.
    """
    variables = os.environ if environ is None else environ
    home = _home(variables, is_real=environ is None)
    path = _credentials_path(config.credentials_file, variables, home)
    if path is None:
        raise ConfigError(
            "There is no folder for the credentials file: this user has no home.",
            hint="Set TINKEX_CREDENTIALS_FILE to a file of your own.",
        )
    return path


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

    def add_stored_key(self, values: dict[str, Any], origins: dict[str, str]) -> None:
        """The key of a login, if none is given; with it the server, if none is named either."""
        if origins["api_key"] != "default":
            return
        path = _credentials_path(values["credentials_file"], self._environ, self._home)
        store = None if path is None else credentials.read(path)
        is_named = origins["base_url"] != "default"
        if store is not None:
            url = normalize_base_url(values["base_url"]) if is_named else store.default
            if url is not None and url in store.keys:
                found, origin = _Found(store.keys[url].reveal()), f"file {path}"
                values["api_key"] = _parsed(_SETTINGS["api_key"], found, origin)
                origins["api_key"] = origin
                if not is_named:
                    values["base_url"], origins["base_url"] = url, origin
                return
        self._add_official_key(values, origins)

    def _add_official_key(self, values: dict[str, Any], origins: dict[str, str]) -> None:
        if self._home is None:
            return
        path = self._home / ".tinker" / "credentials.json"
        if stored := _stored_key(path):
            origins["api_key"] = f"file {path}"
            values["api_key"] = _parsed(_SETTINGS["api_key"], _Found(stored), f"file {path}")

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

    def _read_files(self, files: Sequence[str | Path] | None) -> list[tuple[Path, dict[str, Any]]]:
        if files is not None:
            return [(Path(path), _client_table(Path(path))) for path in files]
        paths = [Path("tinkex.toml").absolute()]
        if folder := _config_folder(self._environ, self._home):
            paths.append(folder / "config.toml")
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


def _config_folder(environ: Mapping[str, str], home: Path | None) -> Path | None:
    if config_home := environ.get("XDG_CONFIG_HOME"):
        return Path(config_home) / "tinkex"
    return home / ".config" / "tinkex" if home else None


def _credentials_path(
    named: str | None, environ: Mapping[str, str], home: Path | None
) -> Path | None:
    if named is not None:
        return Path(named).expanduser()
    folder = _config_folder(environ, home)
    return folder / "credentials.json" if folder else None


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
    "credentials_path",
    "normalize_base_url",
    "process_settings",
]
