"""List the public API by static analysis and compare it with docs/public-api.txt.

python scripts/public_api.py          # exit code 1 and a diff if the public API differs from the file
python scripts/public_api.py --write  # update the file

The public API is every name in `exitpoll.__all__`: functions with their signatures, classes with their fields,
properties and public methods. Nothing is imported, so neither torch nor transformers need to be installed.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).resolve().parent.parent
LISTING = ROOT / "docs" / "public-api.txt"
LONGEST = 100
KINDS = griffe.ParameterKind
# Special methods that a user calls by using an instance: engine(texts), len(trace), ...
SPECIAL = {"__init__", "__call__", "__len__", "__iter__", "__getitem__", "__contains__", "__enter__", "__exit__"}


def main() -> int:
    """Write the listing, or compare it with the committed one."""
    parser = argparse.ArgumentParser(description="Compare the public API with docs/public-api.txt.")
    parser.add_argument("--write", action="store_true", help="update the file instead")
    arguments = parser.parse_args()
    listing = "".join(line + "\n" for line in public_api())
    if arguments.write:
        LISTING.write_text(listing, encoding="utf-8")
        print(f"wrote {LISTING.relative_to(ROOT)}")
        return 0
    committed = LISTING.read_text(encoding="utf-8") if LISTING.exists() else ""
    if listing == committed:
        print(f"the public API is as in {LISTING.relative_to(ROOT)}")
        return 0
    names = f"{LISTING.relative_to(ROOT)}", "the source"
    sys.stdout.writelines(difflib.unified_diff(committed.splitlines(True), listing.splitlines(True), *names))
    print("the public API has changed: if that is intended, run python scripts/public_api.py --write")
    return 1


def public_api() -> Iterator[str]:
    """Yield the lines of the listing, one block for each public name."""
    package = griffe.load("exitpoll", search_paths=[ROOT / "src"], resolve_aliases=True, allow_inspection=False)
    yield "# The public API of exitpoll, written by scripts/public_api.py; make check compares it with the source."
    for name in sorted(map(str, package.exports or []), key=str.casefold):
        member = defined(package, name)
        yield ""
        if isinstance(member, griffe.Class):
            yield from class_lines(name, member)
        elif isinstance(member, griffe.Function):
            yield from signature(name, member)
        elif isinstance(member, griffe.Attribute):
            yield attribute(name, member)


def defined(package: griffe.Object | griffe.Alias, name: str) -> griffe.Object:
    """Find the definition of a public name, wherever it is imported from."""
    try:
        return target(package[name])
    except (KeyError, griffe.AliasResolutionError):
        sys.exit(f"exitpoll.__all__ has '{name}', which src/exitpoll does not define")


def target(member: griffe.Object | griffe.Alias) -> griffe.Object:
    """Follow an import or an inherited member to its definition."""
    return member.final_target if isinstance(member, griffe.Alias) else member


def class_lines(name: str, cls: griffe.Class) -> Iterator[str]:
    """Yield a class with its bases, fields, properties and public methods, inherited ones of exitpoll included."""
    is_dataclass = "dataclass" in cls.labels
    if is_dataclass:
        yield f"@{next(str(decorator.value) for decorator in cls.decorators if 'dataclass' in str(decorator.value))}"
    bases = ", ".join(map(str, cls.bases))
    yield f"class {name}({bases}):" if bases else f"class {name}:"
    public = {key: target(member) for key, member in cls.all_members.items() if is_public(key, is_dataclass)}
    attributes = {key: member for key, member in public.items() if isinstance(member, griffe.Attribute)}
    functions = {key: member for key, member in public.items() if isinstance(member, griffe.Function)}
    fields = {key: member for key, member in attributes.items() if "property" not in member.labels}
    for key, member in fields.items():  # in the order of the source: that of a dataclass's parameters
        if is_dataclass or "class-attribute" in member.labels:
            yield "    " + attribute(key, member)
    for key in sorted(attributes.keys() - fields.keys()):
        yield f"    property {key}: {attributes[key].annotation}"
    for key, function in sorted(functions.items()):
        yield from (f"    {line}" for line in signature(key, function))


def is_public(name: str, is_dataclass: bool) -> bool:
    """Whether a member is part of the public API; the constructor of a dataclass follows from its fields."""
    if name == "__init__":
        return not is_dataclass
    return name in SPECIAL or not name.startswith("_")


def attribute(name: str, member: griffe.Attribute) -> str:
    """Return an attribute with its type and, for a field, its default."""
    line = name if member.annotation is None else f"{name}: {member.annotation}"
    has_default = member.value is not None and "class-attribute" in member.labels
    return f"{line} = {member.value}" if has_default else line


def signature(name: str, function: griffe.Function) -> Iterator[str]:
    """Yield a function with its parameters and what it returns; a long one takes a line for each parameter."""
    kind = next((f"{label} " for label in ("classmethod", "staticmethod") if label in function.labels), "")
    returns = "" if function.returns is None else f" -> {function.returns}"
    line = f"{kind}def {name}({', '.join(parameters(function))}){returns}"
    if len(line) <= LONGEST:
        yield line
        return
    yield f"{kind}def {name}("
    yield from (f"    {parameter}," for parameter in parameters(function))
    yield f"){returns}"


def parameters(function: griffe.Function) -> Iterator[str]:
    """Yield the parameters as they are written in a signature, `/` and `*` included."""
    listed = list(function.parameters)
    for number, parameter in enumerate(listed):
        before = listed[number - 1].kind if number else None
        if before is KINDS.positional_only and parameter.kind is not KINDS.positional_only:
            yield "/"
        if parameter.kind is KINDS.keyword_only and before not in (KINDS.keyword_only, KINDS.var_positional):
            yield "*"
        stars = {KINDS.var_positional: "*", KINDS.var_keyword: "**"}.get(parameter.kind or KINDS.positional_only, "")
        line = stars + parameter.name + ("" if parameter.annotation is None else f": {parameter.annotation}")
        has_default = parameter.default is not None and not stars
        yield f"{line} = {parameter.default}" if has_default else line


if __name__ == "__main__":
    sys.exit(main())
