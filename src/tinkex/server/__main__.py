"""A server as a child process: the config comes as JSON on stdin, `{"url", "new_key"}` goes out.

Used by `EmbeddedServer`; people run `tinkex serve`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading

import msgspec

from tinkex import crashpoints
from tinkex.config import process_settings
from tinkex.errors import ConfigError
from tinkex.server.config import ServerConfig
from tinkex.server.process import ServerProcess, Started
from tinkex.server.upkeep import gc_tuning, malloc_tuning
from tinkex.telemetry.redaction import redact_text


def main() -> None:
    """Serves until a signal stops it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    crashpoints.arm(process_settings().crash_at)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServerConfig, dec_hook=_hook)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def announce(started: Started) -> None:
        sys.stdout.write(msgspec.json.encode(started).decode() + "\n")
        sys.stdout.flush()

    gc_tuning.tune_collector()
    malloc_tuning.return_large_blocks()
    try:
        ServerProcess(config).run(on_listening=announce)
    except ConfigError as error:
        sys.stderr.write(redact_text(f"{error.message} {error.hint} [{error.code}]\n"))
        sys.exit(2)


def _end_with_parent() -> None:
    """Ends the server when the pipe from its parent closes."""
    while os.read(0, 4096):  # not through sys.stdin, whose lock would be held at the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _hook(type_: type, value: object) -> object:
    return type_(value)


if __name__ == "__main__":
    main()
