"""The app `exitpoll`: every verb is a function in the file of its name in `exitpoll.cli.verbs`.

A verb's file is imported when the verb runs or its help is shown; packages that are slow to import are imported inside
its function.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated, get_args

from cyclopts import App, Group, Parameter, Token, convert

from exitpoll import __version__
from exitpoll.cli.console import console, modes
from exitpoll.cli.groups import IN_OUTPUT, SECTIONS

COMPLETION = "--install-completion"
QUIET = ("--quiet", "-q")
_FORWARDED = Parameter(show=False, allow_leading_hyphen=True)
_QUIET = Parameter(
    name=QUIET, negative="", show_default=False, help="Print results and errors only: no progress, no notes."
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


def summary_of(verb: str) -> str:
    """Read the first line of a verb's docstring, without importing its file.

    Args:
        verb: The verb.

    Returns:
        The line.
    """
    tree = ast.parse(files("exitpoll.cli.verbs").joinpath(f"{verb}.py").read_text(encoding="utf-8"))
    [function] = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == verb)
    return (ast.get_docstring(function) or "").splitlines()[0]


def build_app(*, with_summaries: bool) -> App:
    """Build the app.

    Args:
        with_summaries: Whether the verbs show nothing but their summaries, for the list of all verbs; otherwise a
            verb's help is its docstring.

    Returns:
        The app; its meta app takes the options of all verbs as well.
    """
    built = App(
        name="exitpoll",
        help="Early exits for BERT-like text classifiers, with a guarantee on their cost.\n\n"
        "Example: exitpoll quickstart --fast",
        version=__version__,
        version_flags=("--version", "-V"),
        # Markdown joins the lines of docstrings, and takes longer to import than all else.
        help_format="plaintext" if with_summaries else "markdown",
        version_format="plaintext",
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(converter=convert_integers_strictly, negative_bool=()),
        group_commands=Group("Other", sort_key=len(SECTIONS)),
        console=console,
    )
    for section, (title, verbs) in enumerate(SECTIONS.items()):
        group = Group(title, sort_key=section)
        for position, verb in enumerate(verbs):
            summary = summary_of(verb) if with_summaries else None
            built.command(f"exitpoll.cli.verbs.{verb}:{verb}", group=group, sort_key=position, help=summary)
    summary = "Install completion for bash, zsh, fish or PowerShell." if with_summaries else None
    built.command("exitpoll.cli.completion:install_completion", name=COMPLETION, help=summary)

    built.meta.suppress_keyboard_interrupt = False
    built.meta.help_format = built.help_format

    @built.meta.default
    def launch(*words: Annotated[str, _FORWARDED], quiet: Annotated[bool, _QUIET, IN_OUTPUT] = False) -> None:
        modes.quiet = quiet
        built(words, exit_on_error=False, print_error=False, result_action="return_value")

    return built


app = build_app(with_summaries=False)
