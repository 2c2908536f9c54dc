"""The app `exitpoll`: every verb is a function in the file of its name in `exitpoll.cli.verbs`.

A verb's file is imported when the verb runs or its help is shown; packages that are slow to import are imported inside
its function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from cyclopts import App, Parameter, Token, convert

from exitpoll import __version__

VERBS = (  # in the order of use, which is that of the help
    "quickstart",
    "train",
    "record",
    "sweep",
    "calibrate",
    "evaluate",
    "predict",
    "export",
    "bench",
    "report",
    "search",
    "reproduce",
)


def convert_integers_strictly(hint: object, tokens: Sequence[Token]) -> object:
    """Convert what was typed, but refuse 1.5 for an integer, which cyclopts would round.

    Args:
        hint: The type of a parameter.
        tokens: What was typed for it.

    Returns:
        Its value.
    """
    if int in (hint, *get_args(hint)):
        for token in tokens:
            if "." in token.value:
                raise ValueError(f"{token.value} is not an integer")
    return convert(hint, tokens)


app = App(
    name="exitpoll",
    help="Early exits for BERT-like text classifiers, with a guarantee on their cost.\n\n"
    "Example: exitpoll quickstart --fast",
    version=__version__,
    help_format="markdown",  # joins the lines of docstrings
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(converter=convert_integers_strictly),
)
for position, verb in enumerate(VERBS):
    app.command(f"exitpoll.cli.verbs.{verb}:{verb}", sort_key=position)
