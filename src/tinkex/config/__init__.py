"""Settings of a client and of the process, and where each came from.

A setting is taken from the first of: the argument, the environment (`TINKEX_<NAME>`, then the
official SDK's name such as `TINKER_API_KEY`), `tinkex.toml` in the working directory, the user's
`~/.config/tinkex/config.toml`, the default. Both TOML files keep settings in a `[client]` table.

An API key that none of these has is what the command in `TINKER_CREDENTIAL_CMD` prints. Without
such a command it comes from `tinkex auth login`: its credentials file has a key for each server,
and a server for those who name neither server nor key. So no key goes to a server it was not
stored for. Last of all comes the official SDK's `~/.tinker/credentials.json`.

Knows nothing of HTTP, clients or the command line. No module but `environment` reads `os.environ`.
"""

from tinkex.config.client import DEFAULT_BASE_URL, Config, credentials_path
from tinkex.config.process import ProcessSettings, process_settings
from tinkex.config.setting import FieldInfo
from tinkex.setting_parsers import normalize_base_url
from tinkex.telemetry.redaction import Secret

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
