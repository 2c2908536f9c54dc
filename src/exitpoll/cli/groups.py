"""The groups in which help lists verbs and options."""

from __future__ import annotations

from cyclopts import Group, Parameter

SECTIONS = {  # of the list of verbs: both in the order of use
    "Get started": ("quickstart", "adopt", "train"),
    "Decide": ("record", "sweep", "calibrate", "evaluate"),
    "Run": ("predict", "serve", "export", "bench", "report", "doctor"),
    "Study": ("search", "reproduce"),
}
VERBS = tuple(verb for verbs in SECTIONS.values() for verb in verbs)

IN_DATA, IN_MODEL, IN_GOAL, IN_METHOD, IN_OPTIMIZER, IN_OUTPUT = (
    Parameter(group=Group(name, sort_key=position))
    for position, name in enumerate(("Data", "Model", "Goal", "Method", "Optimizer", "Output"))
)
