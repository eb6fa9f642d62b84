"""What the environment says about the process rather than about one client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tinkex.config.environment import home_folder, variables
from tinkex.setting_parsers import TRUE

__all__ = ["ProcessSettings", "process_settings"]


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What the environment says about this process rather than about one client."""

    is_debug: bool
    has_color: bool
    hub_cache: Path
    is_hub_offline: bool
    crash_at: str = ""
    otel_endpoint: str | None = None


def process_settings(environ: Mapping[str, str] | None = None) -> ProcessSettings:
    """Tracebacks (TINKEX_DEBUG), colours (NO_COLOR, TERM=dumb), the Hugging Face cache (HF_*),
    where a server under test is to die (TINKEX_TEST_CRASH), and where one sends its traces
    (OTEL_EXPORTER_OTLP_ENDPOINT)."""
    given = variables(environ)
    get = given.get
    home = home_folder(given, is_real=environ is None) or Path()
    caches = get("XDG_CACHE_HOME") or home / ".cache"
    hub_home = get("HF_HOME") or Path(caches) / "huggingface"
    hub_cache = get("HF_HUB_CACHE") or get("HUGGINGFACE_HUB_CACHE") or Path(hub_home) / "hub"
    return ProcessSettings(
        is_debug=get("TINKEX_DEBUG", "").lower() in TRUE,
        has_color=not get("NO_COLOR") and get("TERM") != "dumb",
        hub_cache=Path(hub_cache).expanduser(),
        is_hub_offline=(get("HF_HUB_OFFLINE") or get("TRANSFORMERS_OFFLINE") or "").lower() in TRUE,
        crash_at=get("TINKEX_TEST_CRASH", ""),
        otel_endpoint=get("OTEL_EXPORTER_OTLP_ENDPOINT") or None,
    )
