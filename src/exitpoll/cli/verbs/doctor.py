"""exitpoll doctor: check the health of a model folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.console import print_as_json, quieten_transformers, say, show, show_result
from exitpoll.cli.groups import IN_MODEL
from exitpoll.cli.options import AsJson


def doctor(
    model: Path,
    /,
    *,
    weights: Annotated[bool, Parameter(negative="--no-weights"), IN_MODEL] = True,
    as_json: AsJson = False,
) -> None:
    """Check a model folder: files, hashes, versions, policy, guarantee, exports, leftovers.

    Nothing is changed. The exit code is 0 if the folder is healthy, 1 if it can be used but something deserves
    attention, and 2 if something is missing, changed or unreadable.

    Example: exitpoll doctor trec-bert

    Args:
        model: The model folder, or an export.
        weights: Load the weights, which takes seconds, to check their fingerprint.
        as_json: Print the findings as JSON.
    """
    from exitpoll.cli.doctor import HEALTH, examine, findings_list, health_of, result_of

    print_as_json(as_json)
    quieten_transformers()
    findings = examine(model, load_weights=weights)
    health = health_of(findings)
    show(findings_list(findings))
    say(f"{model} is {HEALTH[health]}")
    show_result(result_of(model, findings))
    if health:
        sys.exit(int(health))
