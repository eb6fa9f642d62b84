"""Config: every setting of a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, cast

from tinkex.config.environment import credentials_file, home_folder, variables
from tinkex.config.setting import FieldInfo, Setting
from tinkex.config.sources import KEY_HINT, Sources, unknown_setting
from tinkex.errors import ConfigError
from tinkex.setting_parsers import (
    LOG_LEVELS,
    normalize_base_url,
    read_api_key,
    read_count_from,
    read_flag,
    read_headers,
    read_level,
    read_proxy,
    read_seconds,
    read_text,
    read_text_map,
    read_texts,
    read_url,
)
from tinkex.telemetry.redaction import Secret, redact

__all__ = ["DEFAULT_BASE_URL", "Config", "credentials_path"]

DEFAULT_BASE_URL: Final = "https://tinker.thinkingmachines.dev/services/tinker-prod"


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

    api_key = Setting[str | None]("str", None, read_api_key, "The key sent with every request.")
    base_url = Setting("str", DEFAULT_BASE_URL, read_url, "The server.")
    project_id = Setting[str | None](
        "str", None, read_text, "The project to which sessions belong."
    )
    tags = Setting[tuple[str, ...]]("list[str]", (), read_texts, "Tags given to each session.")
    user_metadata = Setting[dict[str, str]](
        "dict[str, str]", {}, read_text_map, "Your own notes, kept with each session."
    )
    default_headers = Setting[dict[str, str]](
        "dict[str, str]", {}, read_headers, "Headers added to every request."
    )
    timeout_s = Setting("float", 60.0, read_seconds, "How long one request may take.")
    connect_timeout_s = Setting("float", 5.0, read_seconds, "How long connecting may take.")
    poll_timeout_s = Setting("float", 45.0, read_seconds, "How long the server may hold one poll.")
    heartbeat_interval_s = Setting("float", 10.0, read_seconds, "Time between two heartbeats.")
    retry_budget_s = Setting(
        "float", 300.0, read_seconds, "How long a training request is retried before it fails."
    )
    retry_base_s = Setting("float", 0.5, read_seconds, "First wait before a retry; it doubles.")
    retry_max_s = Setting("float", 10.0, read_seconds, "Longest wait of our own before a retry.")
    retry_samples = Setting(
        "bool",
        False,
        read_flag,
        "Whether samples are retried as the official client retries them, unless a call says how. "
        "True where `tinkex.compat` is installed.",
    )
    max_samples_in_flight = Setting("int", 2000, read_count_from(1), "Samples in flight at once.")
    telemetry_to_server = Setting(
        "bool", False, read_flag, "Whether events are sent to the server."
    )
    proxy = Setting[str | None](
        "str", None, read_proxy, "An HTTP proxy to go through: http://[user:password@]host:port."
    )
    log_level = Setting[str | None]("str", None, read_level, f"One of {', '.join(LOG_LEVELS)}.")
    credentials_file = Setting[str | None](
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
        retry_samples: bool | None = None,
        max_samples_in_flight: int | None = None,
        telemetry_to_server: bool | None = None,
        proxy: str | None = None,
        log_level: str | None = None,
        credentials_file: str | None = None,
        environ: Mapping[str, str] | None = None,
        files: Sequence[str | Path] | None = None,
    ) -> None:
        sources = Sources(_SETTINGS, dict(locals()), environ, files)
        # A traceback that prints local variables must find no secret in this frame.
        del api_key, base_url, default_headers, user_metadata, environ
        values, origins = sources.resolve()
        sources.add_access_headers(values, origins)
        sources.add_command_key(values, origins)
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
            raise unknown_setting(name, "setting", _SETTINGS)
        return self._origins[name]

    def replace(self, **changes: Any) -> Config:
        """Another Config with these settings changed; nothing is read from anywhere again."""
        for name in changes:
            if name not in _SETTINGS:
                raise unknown_setting(name, "setting", _SETTINGS)
        other = object.__new__(Config)
        changed = Sources(_SETTINGS, changes, {}, ()).resolve()
        values, origins = dict(self._values), dict(self._origins)
        for name in changes:
            values[name], origins[name] = changed[0][name], changed[1][name]
        object.__setattr__(other, "_values", values)
        object.__setattr__(other, "_origins", origins)
        return other

    def require_api_key(self) -> str:
        """The API key, for a request that is about to be sent.

        Raises:
            ConfigError: there is none; the hint says where to put it.
        """
        secret = self._values["api_key"]
        if secret is None:
            raise ConfigError("No API key was given.", hint=KEY_HINT, code="missing-api-key")
        return cast("Secret", secret).reveal()

    @property
    def has_api_key(self) -> bool:
        """Whether there is a key, or a command that prints one; runs no command."""
        return self._values["api_key"] is not None

    @property
    def normalized_base_url(self) -> str:
        """The base URL in the one spelling under which limits and pools are shared."""
        return normalize_base_url(self.base_url)

    @property
    def tenant_key(self) -> tuple[str, str]:
        """Identifies a tenant: the normalised URL and the SHA-256 of the key (or "")."""
        secret: Secret | None = self._values["api_key"]
        return self.normalized_base_url, secret.sha256 if secret else ""

    def as_dict(self) -> dict[str, Any]:
        """All settings as plain values, secrets masked; for showing, not for rebuilding."""
        secret: Secret | None = self._values["api_key"]
        shown = {name: getattr(self, name) for name in _SETTINGS if name != "api_key"}
        shown["tags"] = list(self.tags)
        return {"api_key": None if secret is None else str(secret), **redact(shown)}

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


_SETTINGS: Final[dict[str, Setting[Any]]] = {
    name: each for name, each in vars(Config).items() if isinstance(each, Setting)
}


def credentials_path(config: Config, environ: Mapping[str, str] | None = None) -> Path:
    """Where the keys of `tinkex auth login` are, or would be.

    Raises:
        ConfigError: there is no home to keep them in.
    """
    given = variables(environ)
    home = home_folder(given, is_real=environ is None)
    path = credentials_file(config.credentials_file, given, home)
    if path is None:
        raise ConfigError(
            "There is no folder for the credentials file: this user has no home.",
            hint="Set TINKEX_CREDENTIALS_FILE to a file of your own.",
        )
    return path


def _hashable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value
