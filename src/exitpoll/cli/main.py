"""The entry point `exitpoll`. Everything else is imported once Ctrl-C is handled."""

from __future__ import annotations

import sys

from exitpoll.cli.interrupts import Interrupts


def main() -> None:
    """Run the command line; an error is one line on stderr and exit code 2."""
    words = sys.argv[1:]
    interrupts = Interrupts(words)
    from exitpoll.cli.run import run

    run(words, interrupts)
