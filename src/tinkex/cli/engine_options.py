"""Options of the commands that run an engine: `tinkex serve` and `tinkex worker`."""

from __future__ import annotations

import click

from tinkex.server.settings import DTYPES

__all__ = ["device_option", "dtype_option", "loss_option"]

device_option = click.option(
    "--device",
    envvar="TINKEX_DEVICE",
    default="cpu",
    show_default=True,
    help="PyTorch device of the engine; `null` computes nothing.",
)
dtype_option = click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    envvar="TINKEX_DTYPE",
    default="float32",
    show_default=True,
    help="The type of the base weights.",
)
loss_option = click.option(
    "--loss",
    "losses",
    multiple=True,
    envvar="TINKEX_LOSS",
    metavar="NAME",
    help="A loss of an installed package, whose code then runs in the engine; may be given "
    "several times.",
)
