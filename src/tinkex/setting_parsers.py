"""Reading the value of one setting: from an argument, a TOML value or an environment string.

Each reader returns the value in its own type, or raises ValueError with the end of the sentence
"<setting> must be ...". Knows no setting by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from tinkex.errors import ConfigError
from tinkex.telemetry.redaction import Secret, redact

if TYPE_CHECKING:
    from urllib.parse import SplitResult

LOG_LEVELS: Final = ("debug", "info", "warning", "error", "critical")
TRUE: Final = ("1", "true", "yes", "on")
FALSE: Final = ("0", "false", "no", "off")
_NAMES_A_USER: Final = "contains a user name or a password"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def read_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value.strip()


def read_api_key(value: Any) -> str | None:
    """Checks a key; what it returns is a Secret, which the attribute reveals as a text."""
    secret = value if isinstance(value, Secret) else Secret(value)
    text = secret.reveal()
    if not (isinstance(text, str) and text and text.isascii() and text.isprintable()):
        raise ValueError("printable ASCII and not empty")
    if " " in text:
        raise ValueError("one word, without spaces or line breaks")
    return cast("str | None", secret)


def read_url(value: Any) -> str:
    text = read_text(value)
    normalize_base_url(text)
    return text.rstrip("/")


def read_proxy(value: Any) -> str | None:
    """Checks a proxy's address; with a password in it, what it returns is a Secret."""
    text = read_text(value.reveal() if isinstance(value, Secret) else value).rstrip("/")
    parts, problem = _split_url(text)
    if problem not in (None, _NAMES_A_USER):
        raise ValueError("an address such as http://host:port or http://user:password@host:port")
    return cast("str | None", Secret(text)) if "@" in parts.netloc else text


def read_flag(value: Any) -> bool:
    word = str(value).strip().lower() if isinstance(value, bool | str) else ""
    if word not in (*TRUE, *FALSE):
        raise ValueError("true or false")
    return word in TRUE


def read_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError("a number") from None
    except OverflowError:  # a whole number of hundreds of digits
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a finite number")
    return number


def read_seconds(value: Any) -> float:
    number = read_number(value)
    if number <= 0:
        raise ValueError("a number of seconds above 0")
    return number


def read_count_from(least: int) -> Callable[[Any], int]:
    def parse(value: Any) -> int:
        try:
            number = read_number(value)
        except ValueError:
            number = math.nan
        if not number.is_integer() or number < least:
            raise ValueError(f"a whole number, {least} or more")
        return int(number)

    return parse


def read_level(value: Any) -> str | None:
    if not isinstance(value, str) or value.strip().lower() not in LOG_LEVELS:
        raise ValueError(f"one of {', '.join(LOG_LEVELS)}")
    return value.strip().lower()


def read_texts(value: Any) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple | set | frozenset) or not all(
        isinstance(item, str) for item in items
    ):
        raise ValueError("a list of texts (in the environment: separated by commas)")
    ordered = sorted(items) if isinstance(items, set | frozenset) else items
    return tuple(dict.fromkeys(item.strip() for item in ordered if item.strip()))


def read_text_map(value: Any) -> dict[str, str]:
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


def read_headers(value: Any) -> dict[str, str]:
    headers = read_text_map(value)
    if any(ord(mark) < 32 or ord(mark) > 126 for pair in headers.items() for mark in "".join(pair)):
        raise ValueError("a mapping of printable ASCII header names to such values")
    return headers


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
        "contains a query or a fragment": "?" in text or "#" in text,
        _NAMES_A_USER: "@" in parts.netloc,
    }
    return parts, next((problem for problem, is_so in problems.items() if is_so), None)


def _url_to_show(text: str) -> str:
    """The URL without what might be a password or a token in it."""
    scheme, separator, rest = text.partition("://")
    if separator and "@" in rest:
        rest = "…@" + rest.rpartition("@")[2]
    return str(redact(f"{scheme}{separator}{rest.partition('?')[0].partition('#')[0]}"))
