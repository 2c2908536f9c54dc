"""exitpoll --install-completion: complete verbs, options and choices in the shell."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from exitpoll.cli.app import app
from exitpoll.cli.console import say
from exitpoll.cli.groups import IN_OUTPUT
from exitpoll.cli.options import OptionalOut
from exitpoll.errors import InputError

Shell = Literal["zsh", "bash", "fish", "powershell"]  # in the order of cyclopts: typing takes equal choices for one


def install_completion(
    *, shell: Annotated[Shell | None, Parameter(show_default=False), IN_OUTPUT] = None, out: OptionalOut = None
) -> None:
    """Install completion for bash, zsh, fish or PowerShell.

    The script is written where the shell looks for it, and for all but fish a line that loads it is added to the
    startup file of the shell (.bashrc, .zshrc or the profile). New shells then complete verbs, options and choices.

    Example: exitpoll --install-completion --shell bash

    Args:
        shell: The shell; the one that runs this command by default.
        out: Write the script to this file instead, and leave the startup file alone.
    """
    from cyclopts.completion import detect_shell
    from cyclopts.completion.detect import ShellDetectionError

    if shell is None:
        try:
            shell = detect_shell()
        except ShellDetectionError as error:
            raise InputError("the shell could not be recognized; name it with --shell") from error
    written = app.install_completion(shell=shell, output=out, add_to_startup=out is None)
    say(f"wrote {written}")
    if out is None:
        say(f"start a new {shell} to complete commands of exitpoll")
