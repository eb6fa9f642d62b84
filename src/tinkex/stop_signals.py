"""Which signals end a program's work in good order.

SIGTERM always does. SIGINT does unless it was ignored when the program started: `nohup ... &` in a
script, or cron, has it ignored so that a Ctrl-C meant for another program does not end this one.
"""

from __future__ import annotations

import signal

__all__ = ["stop_signals"]


def stop_signals() -> list[signal.Signals]:
    """The signals to take while there is work to end."""
    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    return [signal.SIGTERM] if is_ignored else [signal.SIGINT, signal.SIGTERM]
