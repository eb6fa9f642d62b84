"""Loaded by every Python process of a test that puts this folder on PYTHONPATH.

`TINKEX_TEST_LOUD` makes everything be logged; `TINKEX_TEST_AUDIT` names a file that gets a line for
every time data might have become code: who unpickled, unmarshalled, compiled or executed.
`TINKEX_TEST_BATCHES` names a file that gets a line for every batch and slice of the engine.
"""

import os
import sys

if os.environ.get("TINKEX_TEST_LOUD"):
    import atexit
    import logging

    logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(name)s %(message)s")
    atexit.register(logging.debug, "everything was logged to the end")

if os.environ.get("TINKEX_TEST_BATCHES"):
    import logging

    batches = logging.FileHandler(os.environ["TINKEX_TEST_BATCHES"])
    for name in ("driver", "batch_runner"):
        logger = logging.getLogger(f"tinkex.scheduler.{name}")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(batches)

_WATCHED = {"pickle.find_class", "marshal.loads", "marshal.load", "compile", "exec"}


def _watch(path: str) -> None:
    file = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115, PTH123  until the process ends
    seen: set[tuple[str, str]] = set()

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event not in _WATCHED:
            return
        frame = sys._getframe(0).f_back  # None for what the interpreter does by itself
        who = f"{frame.f_globals.get('__name__')}:{frame.f_code.co_name}" if frame else "?"
        what = f"{args[0]}.{args[1]}" if event == "pickle.find_class" else ""
        if (event, who + what) not in seen:
            seen.add((event, who + what))
            program = " ".join(sys.orig_argv[1:4])
            file.write(f"{event}\t{who}\t{what}\t{program}\n")

    sys.addaudithook(hook)


if os.environ.get("TINKEX_TEST_AUDIT"):
    _watch(os.environ["TINKEX_TEST_AUDIT"])
