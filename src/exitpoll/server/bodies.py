"""Bodies of requests: JSON of any content, and the fields that a dialect knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar, cast

from exitpoll.server.refusals import RefusalError, invalid

T = TypeVar("T")
NAMES = {
    str: "a string",
    int: "an integer",
    bool: "true or false",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def read_object(body: bytes) -> dict[str, Any]:
    """Read a JSON object.

    Args:
        body: The body of a request.

    Returns:
        Its fields.
    """
    try:
        content = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise RefusalError(400, "Validation", "the body is nested too deeply") from error
    except ValueError as error:  # also bytes that are not UTF-8, and integers of thousands of digits
        raise RefusalError(400, "Validation", f"the body is not JSON: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise invalid("the body must be a JSON object")
    return content


def _refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


class Fields:
    """The fields of a request, taken one by one."""

    def __init__(self, content: Mapping[str, Any], place: str = "") -> None:
        """Begin with all fields.

        Args:
            content: The fields.
            place: Where they stand, for messages, as in "parameters.".
        """
        self.rest, self.place = dict(content), place

    def take(self, name: str, kind: type[T], default: T | None = None) -> T | None:
        """Take a field, and check its type; null is as good as missing.

        Args:
            name: Its name.
            kind: Its type.
            default: What stands for a missing one.

        Returns:
            Its value.
        """
        value = self.rest.pop(name, None)
        if value is None:
            return default
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # 3.0 is an integer in JSON schemas
        is_number = kind is float and isinstance(value, int)
        if not (isinstance(value, kind) or is_number) or (isinstance(value, bool) and kind is not bool):
            raise invalid(f"{self.place}{name} must be {NAMES[kind]}, not {value!r:.60}")
        if isinstance(value, str) and not is_unicode(value):
            raise invalid(f"{self.place}{name} {value!r:.60} is not Unicode text")
        return cast(T, value)

    def any(self, name: str) -> Any:
        """Take a field of any type."""
        return self.rest.pop(name, None)

    def end(self) -> None:
        """Refuse fields that were not taken."""
        if self.rest:
            names = ", ".join(f"{self.place}{name}"[:60] for name in sorted(self.rest)[:5])
            raise invalid(f"unknown fields: {names}")


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8, which halves of surrogate pairs cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def take_count(fields: Fields, name: str, at_least: int = 1) -> int | None:
    """Take an integer that is not too small."""
    value = fields.take(name, int)
    if value is not None and not at_least <= value < 1 << 31:
        raise invalid(f"{name} must be at least {at_least}, not {value!r:.20}")
    return value
