"""A machine on which a reader types the commands of a page, as they are written.

Only names of other places differ: hosts, ports, model folders, buckets. Variables that a block
exports stay set. `tinkex serve` and `tinkex worker` go on in the background, as in a terminal each;
everything else must end well before the next line.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Terminal"]

_FOREIGN = ("TINKER_", "TINKEX_", "AWS_", "PYTEST")
_BACKGROUND = re.compile(r"tinkex (serve|worker) ")


class Terminal:
    """A folder with an environment of its own. `places` replaces names of the page by real ones."""

    def __init__(self, folder: Path, places: Mapping[str, str], **environ: str) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self._places = dict(places)
        own = {name: text for name, text in os.environ.items() if not name.startswith(_FOREIGN)}
        own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
        self.environ = {**own, "HOME": str(folder), **environ}
        self.running: list[subprocess.Popen[bytes]] = []

    def type(self, block: str) -> str:
        """Runs the lines of a block; what they print."""
        for name, place in self._places.items():
            block = block.replace(name, place)
        return "".join(self._run(line) for line in block.replace("\\\n", " ").splitlines())

    def output(self, number: int = -1) -> str:
        """What a program in the background has printed."""
        return (self.folder / f"{range(len(self.running))[number]}.log").read_text()

    def end(self, signum: signal.Signals = signal.SIGINT) -> None:
        """Ends what runs in the background, as Ctrl-C does."""
        for process in self.running:
            if process.poll() is None:
                process.send_signal(signum)
        for process in self.running:
            process.wait(60)

    def kill(self) -> None:
        """Ends it at once."""
        self.end(signal.SIGKILL)

    def _run(self, line: str) -> str:
        if _BACKGROUND.match(line):
            with (self.folder / f"{len(self.running)}.log").open("wb") as log:
                process = subprocess.Popen(
                    shlex.split(line), cwd=self.folder, env=self.environ, stdout=log, stderr=log
                )
            self.running.append(process)
            return ""
        # Each line has a shell of its own, which says at its end what it has exported.
        exported = self.folder / ".exported"
        done = subprocess.run(
            ["bash", "-c", f"{line}\nstatus=$?\nenv -0 > .exported\nexit $status"],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=90,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        if line.startswith("export "):
            found = exported.read_text().split("\0")
            self.environ = dict(each.split("=", 1) for each in found if each)
        return done.stdout
