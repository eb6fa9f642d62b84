"""The command line: one file per command, loaded when it is called.

`main(argv)` is what the `tinkex` script runs; `run(argv)` does the same and returns a
`CommandOutcome` where `main` would end the process.
"""

from tinkex.cli.main import CommandOutcome, main, run

__all__ = ["CommandOutcome", "main", "run"]
