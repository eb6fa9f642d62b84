"""Where the settings of a client come from: arguments, environment, TOML files, stored keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tinkex import credentials
from tinkex.config.credential_command import COMMAND_VARIABLE, CommandKey
from tinkex.config.environment import config_folder, credentials_file, home_folder, variables
from tinkex.config.process_defaults import default_of
from tinkex.config.setting import Setting
from tinkex.errors import ConfigError
from tinkex.setting_parsers import normalize_base_url
from tinkex.telemetry.redaction import redact

__all__ = ["KEY_HINT", "Sources", "unknown_setting"]

_ACCESS_HEADERS: Final = {
    "CF-Access-Client-Id": "CLOUDFLARE_ACCESS_CLIENT_ID",
    "CF-Access-Client-Secret": "CLOUDFLARE_ACCESS_CLIENT_SECRET",
}

KEY_HINT: Final = (
    "Run 'tinkex auth login', set TINKER_API_KEY or pass api_key=; keys of the hosted service "
    "start with 'tml-' (or 'eyJ' for a token), and 'tinkex serve' prints the key of its own server."
)


class Sources:
    """Where settings are looked for, in order; shows nothing of what it holds."""

    def __init__(
        self,
        settings: Mapping[str, Setting[Any]],
        given: Mapping[str, Any],
        environ: Mapping[str, str] | None,
        files: Sequence[str | Path] | None,
    ) -> None:
        self._settings = settings
        self._given = given
        self._environ = variables(environ)
        self._home = home_folder(self._environ, is_real=environ is None)
        self._files = self._read_files(files)

    def resolve(self) -> tuple[dict[str, Any], dict[str, str]]:
        """The value and the origin of every setting."""
        values: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for name, setting in self._settings.items():
            values[name], origins[name] = default_of(setting)
            for origin, found in self._candidates(setting):
                values[name], origins[name] = _parsed(setting, found, origin), origin
                break
        return values, origins

    def add_access_headers(self, values: dict[str, Any], origins: dict[str, str]) -> None:
        """The headers that let requests through Cloudflare Access; those that are given win."""
        given = {name.lower() for name in values["default_headers"]}
        for header, variable in _ACCESS_HEADERS.items():
            if header.lower() in given or not self._environ.get(variable):
                continue
            origin = f"environment {variable}"
            found = _Found({header: self._environ[variable]})
            added = _parsed(self._settings["default_headers"], found, origin)
            values["default_headers"] = {**values["default_headers"], **added}
            if origins["default_headers"] == "default":
                origins["default_headers"] = origin

    def add_command_key(self, values: dict[str, Any], origins: dict[str, str]) -> None:
        """The key that a command prints, if none is given. The command is not run yet."""
        command = self._environ.get(COMMAND_VARIABLE, "").strip()
        if origins["api_key"] == "default" and command:
            values["api_key"] = CommandKey(command)
            origins["api_key"] = f"environment {COMMAND_VARIABLE}"

    def add_stored_key(self, values: dict[str, Any], origins: dict[str, str]) -> None:
        """The key of a login, if none is given; with it the server, if none is named either."""
        if origins["api_key"] != "default":
            return
        path = credentials_file(values["credentials_file"], self._environ, self._home)
        store = None if path is None else credentials.read(path)
        is_named = origins["base_url"] != "default"
        if store is not None:
            url = normalize_base_url(values["base_url"]) if is_named else store.default
            if url is not None and url in store.keys:
                found, origin = _Found(store.keys[url].reveal()), f"file {path}"
                values["api_key"] = _parsed(self._settings["api_key"], found, origin)
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
            values["api_key"] = _parsed(self._settings["api_key"], _Found(stored), f"file {path}")

    def _candidates(self, setting: Setting[Any]) -> Iterator[tuple[str, _Found]]:
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
            return [(Path(path), _client_table(Path(path), self._settings)) for path in files]
        paths = [Path("tinkex.toml").absolute()]
        if folder := config_folder(self._environ, self._home):
            paths.append(folder / "config.toml")
        return [(path, _client_table(path, self._settings)) for path in paths if path.is_file()]

    def __repr__(self) -> str:
        return "<where settings come from>"


class _Found:
    """A value on its way to being checked; it may be a secret, so it shows nothing."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<a value>"


def _parsed(setting: Setting[Any], found: _Found, origin: str) -> Any:
    try:
        return setting.parse(found.value)
    except ConfigError as error:
        message, hint = f"{error.message[:-1]} (from {origin}).", error.hint
    except (ValueError, TypeError) as error:
        is_secret = setting.name in ("api_key", "default_headers")
        shown = "" if is_secret else f"={_short(redact(found.value))}"
        message = f"{setting.name}{shown} (from {origin}) must be {error}."
        hint = KEY_HINT if setting.name == "api_key" else setting.doc
    # Raised out here so that the error drags no frame along in which the value is a local.
    raise ConfigError(message, hint=hint)


def _client_table(path: Path, settings: Collection[str]) -> dict[str, Any]:
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
        if name not in settings:
            raise unknown_setting(name, f"setting in [client] of {path}", settings)
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


def unknown_setting(name: str, kind: str, known: Collection[str]) -> ConfigError:
    """The error about a name that is no setting, with the nearest one that is."""
    from difflib import get_close_matches

    close = get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known are: {', '.join(known)}."
    return ConfigError(f"{name!r} is not a {kind}.", hint=hint)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
