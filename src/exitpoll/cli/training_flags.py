"""TrainingSettings as command-line flags, for every verb that trains."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter, default_name_transform

from exitpoll.training.settings import TrainingSettings

_FLAGS = {"neighbors": "neighbours"}  # settings whose flag is spelled otherwise


def flag_of(setting: str) -> str:
    """Return the name of a setting's flag, without the leading dashes."""
    return default_name_transform(_FLAGS.get(setting, setting))


TrainingFlags = Annotated[TrainingSettings | None, Parameter(name="*", name_transform=flag_of)]
