"""The plan of a prediction job in shards: its inputs, the rows of every shard, and what must not change meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path

from exitpoll.data.inputs import find_inputs
from exitpoll.data.places import RemoteFile, state_of, to_place
from exitpoll.data.readers import PARQUET, count_rows, kind_of, read_rows
from exitpoll.data.rows import Row, checked
from exitpoll.engine.blocks import OnError, choose_layout, has_fixed_columns
from exitpoll.engine.jobs import Layout
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.engine.predict import BLOCK
from exitpoll.errors import InputError
from exitpoll.files import read_json, write_json

PLAN, POLICY, DONE = "plan.json", "policy.json", "done"  # in the folder of a job
VERSION = 1
SHARDS_PER_WORKER = 8  # so that workers end at about the same time
FEWEST_ROWS, MOST_ROWS = 1024, 65536  # in a shard: calls are full, and a lost shard costs little


@dataclass(frozen=True)
class Request:
    """What a user asks for; a job can be resumed with the same request."""

    data: str
    kind: str  # of the output: .csv, .tsv, .jsonl, .parquet
    is_joined: bool  # whether the output is one file
    model: ModelChoice
    policy: str | None  # its fingerprint
    text_column: str | None = None
    pair_column: str | None = None
    batch_size: int = 32
    on_error: OnError = "stop"


@dataclass(frozen=True)
class Input:
    """An input file as it was when the job was planned."""

    place: str
    size: int
    state: str  # its time or version
    rows: int | None = None  # None if they were not counted
    problem: str | None = None  # why it cannot be read, or not to its end


@dataclass(frozen=True)
class Shard:
    """Some rows of an input."""

    place: str
    start: int
    stop: int | None  # None for all rows to the end

    def __str__(self) -> str:
        """Name the rows, for messages."""
        return f"'{self.place}' rows {self.start + 1} to {self.stop or 'the end'}"


@dataclass(frozen=True)
class Plan:
    """A job in shards, whose outputs in their order are the output of the job."""

    request: Request
    fingerprint: str  # of the weights
    inputs: Sequence[Input]
    shards: Sequence[Shard]
    layout: Layout

    @property
    def rows(self) -> int | None:
        """The number of rows of all inputs; None if they were not counted."""
        counts = [given.rows for given in self.inputs]
        return None if None in counts else sum(filter(None, counts))

    def save(self, folder: Path) -> None:
        """Write plan.json atomically."""
        write_json(folder / PLAN, {"version": VERSION, **asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> Plan:
        """Read plan.json.

        Args:
            folder: The folder of the job.

        Returns:
            The plan.
        """
        content = read_json(folder / PLAN)
        if content is None or content.pop("version", None) != VERSION:
            raise InputError(f"'{folder}' exists and is not an interrupted job of exitpoll; remove it")
        try:
            request = content["request"]
            return cls(
                Request(**{**request, "model": ModelChoice(**request["model"])}),
                content["fingerprint"],
                [Input(**given) for given in content["inputs"]],
                [Shard(**shard) for shard in content["shards"]],
                Layout(**content["layout"]),
            )
        except (LookupError, TypeError) as error:
            raise InputError(f"'{folder / PLAN}' is broken; remove '{folder}'") from error

    def check_fits(self, folder: Path, request: Request) -> None:
        """Refuse to resume a job with another request, or whose inputs or weights have changed.

        Args:
            folder: The folder of the job, for the message.
            request: What is asked for now.
        """
        remedy = f"remove '{folder}' to start again"
        for name, value in asdict(request).items():
            if name != "data" and asdict(self.request)[name] != value:
                raise InputError(f"'{folder}' was started with another {name}: use the same one, or {remedy}")
        places = [str(place) for place in find_inputs(request.data)]
        if places != [given.place for given in self.inputs]:
            known = {given.place for given in self.inputs}
            other = next(iter(known.symmetric_difference(places)))
            change = "was removed from the inputs" if other in known else "is a new input"
            raise InputError(f"'{other}' {change} since the job was planned: restore the inputs, or {remedy}")
        for given in self.inputs:
            if (given.size, given.state) != state_of(to_place(given.place)):
                raise InputError(f"'{given.place}' has changed since the job was planned: restore it, or {remedy}")
        if request.model.fingerprint != self.fingerprint:
            raise InputError(f"the weights of '{request.model.folder}' have changed: restore them, or {remedy}")


def make_plan(request: Request, workers: int, shard_rows: int | None = None) -> Plan:
    """Plan a job: look at the inputs, count their rows and divide them.

    Args:
        request: What is asked for.
        workers: How many processes will share the job.
        shard_rows: Rows in a shard, at most; chosen by the number of rows and workers if not given.

    Returns:
        The plan.
    """
    inputs = [_look_at(str(place), request.on_error) for place in find_inputs(request.data)]
    if not any(given.rows != 0 or given.problem for given in inputs):
        raise InputError(f"'{request.data}' has no rows")
    rows = shard_rows or _rows_in_shard(inputs, workers)
    shards = [shard for given in inputs for shard in _divide(given, rows)]
    return Plan(request, request.model.fingerprint, inputs, shards, _layout(inputs, request))


def _look_at(place: str, on_error: OnError) -> Input:
    """Describe an input; rows are not counted where that would mean to fetch the whole file."""
    file = to_place(place)
    size, state = state_of(file)
    if isinstance(file, RemoteFile) and kind_of(file) != PARQUET:
        return Input(place, size, state)
    try:
        return Input(place, size, state, count_rows(file))
    except InputError as error:
        if on_error == "stop":
            raise
        return Input(place, size, state, problem=str(error))


def _rows_in_shard(inputs: Sequence[Input], workers: int) -> int:
    """Choose the size of shards."""
    total = sum(given.rows or 0 for given in inputs)
    return min(MOST_ROWS, max(FEWEST_ROWS, math.ceil(total / (SHARDS_PER_WORKER * workers))))


def _divide(given: Input, rows: int) -> Iterator[Shard]:
    """Divide the rows of an input."""
    if given.rows is None:
        yield Shard(given.place, 0, None)
        return
    for start in range(0, given.rows, rows):
        yield Shard(given.place, start, min(start + rows, given.rows))


def _layout(inputs: Sequence[Input], request: Request) -> Layout:
    """Choose the columns by the first rows of the inputs."""
    rows = chain.from_iterable(readable_rows(read_rows(to_place(given.place)), given.place) for given in inputs)
    block = list(islice(checked(rows) if request.on_error == "stop" else rows, BLOCK))
    is_fixed = has_fixed_columns(request.kind)
    return choose_layout(block, request.text_column, request.pair_column, request.on_error, is_fixed=is_fixed)


def readable_rows(rows: Iterator[Row], place: str) -> Iterator[Row]:
    """Read an input as far as possible; where it is damaged, one row with the reason takes the place of the rest.

    Args:
        rows: Its rows.
        place: The input, for that row.

    Yields:
        The rows.
    """
    try:
        yield from rows
    except InputError as error:
        yield Row({}, place, str(error))
