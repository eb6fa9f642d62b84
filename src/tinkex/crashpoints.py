"""Named moments at which a test can have this process die as `kill -9` would.

`TINKEX_TEST_CRASH="result.kept=optim_step:3"` ends the server at the third optimizer step whose
result was kept and not yet sent to any client. Several are separated by commas; each reads

    POINT[=MARK][:COUNT][@ENGINE][!]

MARK narrows the point to one kind of work, COUNT (1) is the passing that kills. Points beginning
with `engine.` lie in the engine's process: ENGINE (1) says in which of the engines a server has
started, and `!` takes the server along. The starter of a process arms it; a process that is not
armed only finds an empty table here.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from dataclasses import dataclass

from tinkex.errors import ConfigError

_logger = logging.getLogger(__name__)

POINTS = {
    "store.commit.before": "a group of writes was made, not committed",
    "store.commit.after": "it is on disk, no caller has the result",
    "start.before": "the data folder is open, nothing was taken up",
    "start.swept": "what an earlier crash left half done is gone",
    "submit.before": "a request was accepted, not logged",
    "submit.kept": "it is in the log, not scheduled",
    "submit.scheduled": "it is scheduled, its number was not answered",
    "execute.before": "a batch is about to go to the engine",
    "execute.after": "the engine has answered, nothing was kept",
    "result.kept": "results are on disk, no client was notified",
    "result.published": "waiting clients were notified",
    "checkpoint.whole": "a checkpoint's folder is whole, its row is not there",
    "checkpoint.replaced": "a checkpoint's row took another's place, whose folder is still there",
    "checkpoint.copied": "a copy's folder is whole, its row is not there",
    "checkpoint.deleted": "a deleted checkpoint's row is gone, its folder is not",
    "checkpoint.expired": "rows of checkpoints past their end are gone, their folders are not",
    "sampler.whole": "an ephemeral sampler, answered before, is now on disk",
    "snapshot.whole": "a recovery snapshot's folder is whole, no row speaks of it",
    "snapshot.kept": "recovery begins at the new snapshot, the old one is still there",
    "snapshot.done": "the old snapshot is gone",
    "load.done": "the engine has loaded other weights into an adapter, nothing was kept",
    "unload.kept": "a model was unloaded, its client not notified",
    "replay.begun": "an adapter begins to come back",
    "replay.step": "one more operation was replayed",
    "sample.submitted": "the engine has a sampling request",
    "sample.finished": "the engine is done with it, nothing was kept",
    "sample.cancelled": "it is off the board, its end was not kept",
    "session.ended": "a session's end is on disk, what it held was not freed",
    "session.freed": "its samplers' rows are freed, their folders are still there",
    "depot.put.file": "a file of a folder is in the object store, the list of its files is not",
    "depot.put.whole": "a folder is in the object store, no row speaks of it",
    "depot.delete.listed": "a folder's list is gone from the object store, its files are not",
    "engine.start.before": "an engine is about to load its models",
    "engine.start.after": "it has, and has not said so",
    "engine.call.before": "a call arrived",
    "engine.call.after": "it was carried out and not answered",
    "engine.batch.middle": "one request of a batch was applied, not all",
    "engine.folder.begun": "files of a folder are written, not synced",
    "engine.folder.synced": "they are synced, the folder has not its name",
    "engine.folder.renamed": "it has",
}
"""Every point there is, and what is true there."""

_FORM = re.compile(
    r"(?P<point>[a-z.]+)(=(?P<mark>\w+))?(:(?P<count>\d+))?(@(?P<engine>\d+))?(?P<both>!)?"
)


@dataclass(slots=True)
class _Crash:
    text: str
    point: str
    mark: str | None
    left: int
    engine: int
    takes_server: bool

    @property
    def is_of_engine(self) -> bool:
        return self.point.startswith("engine.")


_armed: list[_Crash] = []
_for_engines: list[_Crash] = []
_lock = threading.Lock()


def arm(text: str, *, is_engine: bool = False) -> None:
    """Sets the crashes of this process and of the engines it will start; empty: none.

    Raises:
        ConfigError: there is no such point, or the text has another form.
    """
    crashes = [_parse(each.strip()) for each in text.split(",") if each.strip()]
    _for_engines[:] = [each for each in crashes if each.is_of_engine and not is_engine]
    _armed[:] = [each for each in crashes if each.is_of_engine == is_engine]
    if crashes:
        _logger.warning("This process will kill itself for a test: %s", text)


def for_engine(number: int) -> str:
    """What the engine that is started as the n-th is armed with."""
    return ",".join(each.text for each in _for_engines if each.engine == number)


def passing(point: str, mark: str = "") -> None:
    """Says that the process passes a point; it may not return."""
    if _armed:
        _pass(point, mark)


def _pass(point: str, mark: str) -> None:
    with _lock:
        for crash in _armed:
            if crash.point == point and crash.mark in (None, mark):
                crash.left -= 1
                if crash.left == 0:
                    _die(crash)


def _die(crash: _Crash) -> None:
    os.write(2, f"Killed by TINKEX_TEST_CRASH at {crash.text}\n".encode())
    if crash.takes_server:
        os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _parse(text: str) -> _Crash:
    found = _FORM.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"{text!r} in TINKEX_TEST_CRASH has not the form POINT[=MARK][:COUNT][@ENGINE][!].",
            hint="An example is 'result.kept=optim_step:3'.",
        )
    point = found["point"]
    if point not in POINTS:
        raise ConfigError(
            f"TINKEX_TEST_CRASH names {point!r}, which is not a point.",
            hint=f"There are: {', '.join(POINTS)}.",
        )
    return _Crash(
        text=text,
        point=point,
        mark=found["mark"],
        left=int(found["count"] or 1),
        engine=int(found["engine"] or 1),
        takes_server=found["both"] is not None,
    )
