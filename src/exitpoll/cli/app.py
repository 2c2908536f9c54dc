"""The app and what its verbs share; every verb is a function in a file of its own name in `exitpoll.cli.verbs`.

A verb's file is imported when the verb is called or its help is shown, and imports inside its function whatever takes
long to import.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from cyclopts import App, Parameter, Token, convert

from exitpoll import __version__
from exitpoll.errors import MissingExtraError
from exitpoll.training.settings import TrainingSettings


def whole_numbers_stay_whole(hint: Any, tokens: Sequence[Token]) -> Any:
    """Convert what was typed, but do not round 1.5 to the whole number that was asked for.

    Args:
        hint: The type of a parameter.
        tokens: What was typed for it.

    Returns:
        Its value.
    """
    if int in (hint, *get_args(hint)):
        for token in tokens:
            if "." in token.value:
                raise ValueError(f"{token.value} is no whole number")
    return convert(hint, tokens)


app = App(
    name="exitpoll",
    help="Text classifiers that stop reading as soon as they are sure.\n\nExample: exitpoll quickstart --fast",
    version=__version__,
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
    default_parameter=Parameter(converter=whole_numbers_stay_whole),
)

VERBS = (  # in the order of use
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
for verb in VERBS:
    app.command(f"exitpoll.cli.verbs.{verb}:{verb}")

Names = Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")]
Numbers = Annotated[list[int] | None, Parameter(consume_multiple=True, negative="")]
TrainingFlags = Annotated[TrainingSettings | None, Parameter(name="*")]
Split = Literal["train", "calibration", "test", "all"]  # as in opening, whose imports can wait


@dataclass(frozen=True)
class Reading:
    """Which columns of the data to read, and how; found by convention if not named.

    Args:
        task: The known task whose metric to use, where the name of the data does not say it.
        text_column: The column of the text.
        pair_column: The column of the second text of a pair.
        label_column: The column of the label.
    """

    task: str | None = None
    text_column: str | None = None
    pair_column: str | None = None
    label_column: str | None = None


def try_to_draw(draw: Callable[[], None]) -> str:
    """Draw a figure, or say why there is none.

    Args:
        draw: Draws and writes it.

    Returns:
        Nothing, or the reason, to stand behind what was written.
    """
    try:
        draw()
    except MissingExtraError as missing:
        return f"; no figure: {missing}"
    return ""
