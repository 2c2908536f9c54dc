"""Frames between the front and its model processes: length, kind and content; numbers by struct, arrays by NumPy."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from exitpoll.engine.arrivals import Step
from exitpoll.engine.engine import Prediction, name_answer
from exitpoll.engine.runtime import LoadedModel
from exitpoll.server.model_thread import Result

HEADER = struct.Struct("<IB")  # bytes of the content, kind
NUMBER = struct.Struct("<Q")
TEXT = struct.Struct("<QIidddBB")  # number, policy, max depth, due, deadline, submitted, flags, columns
COLUMN = struct.Struct("<BI")  # bytes of its name, tokens
RESULT = struct.Struct("<QIBddHII")  # number, index, flags, queue and model seconds, depth, tokens, bytes of its error
ARRAY = struct.Struct("<cBI")  # dtype, dimensions, bytes
SIZE = struct.Struct("<I")
CALL = struct.Struct("<IIIId")  # texts, tokens, with padding, depth, seconds
POOL = struct.Struct("<II")  # layers run, texts
EXPLAIN, ALONE, TRACED = 1, 2, 4  # flags of a text
ANSWERED, EXPIRED, FINITE, SEEN, PASSED = 1, 2, 4, 8, 16  # flags of a result
NONE = -1  # for a depth that is not limited


class Kind(IntEnum):
    """What a frame holds."""

    MODEL = 1  # to a process: what it loads
    POLICY = 2  # to a process: a policy with its number
    FORGET = 3  # to a process: the number of a policy
    TEXT = 4  # to a process
    CANCEL = 5  # to a process: the number of a text
    READY = 6  # to the front: the fingerprint of the model that was loaded
    CALL = 7  # to the front: what a call held, and how long it took
    RESULT = 8  # to the front


@dataclass(frozen=True)
class SentText:
    """A text on its way to a model process."""

    number: int
    policy: int
    tokens: Mapping[str, Sequence[int]]
    max_depth: int | None
    due: float  # on the clock that all processes of a machine share
    deadline: float | None
    submitted: float
    explain: bool
    alone: bool  # whether it must not share a call
    is_traced: bool = False


def frame(kind: Kind, content: bytes = b"") -> bytes:
    """Return a frame."""
    return HEADER.pack(len(content), kind) + content


def take_frames(received: bytearray) -> Iterator[tuple[Kind, bytes]]:
    """Take the frames that are complete off the front of what was received.

    Args:
        received: Bytes, of which an incomplete frame is left.

    Yields:
        Kind and content.
    """
    start = 0
    while len(received) - start >= HEADER.size:
        length, kind = HEADER.unpack_from(received, start)
        end = start + HEADER.size + length
        if len(received) < end:
            break
        yield Kind(kind), bytes(received[start + HEADER.size : end])
        start = end
    del received[:start]


# ---- texts ----------------------------------------------------------------------------------------------------------


def pack_text(text: SentText) -> bytes:
    """Return the frame of a text."""
    flags = EXPLAIN * text.explain | ALONE * text.alone | TRACED * text.is_traced
    depth = NONE if text.max_depth is None else text.max_depth
    deadline = float("nan") if text.deadline is None else text.deadline
    times = text.due, deadline, text.submitted
    parts = [TEXT.pack(text.number, text.policy, depth, *times, flags, len(text.tokens))]
    for name, ids in text.tokens.items():
        written = name.encode()
        parts += [COLUMN.pack(len(written), len(ids)), written, np.asarray(ids, dtype="<i4").tobytes()]
    return frame(Kind.TEXT, b"".join(parts))


def read_text(content: bytes) -> SentText:
    """Read what `pack_text` wrote."""
    number, policy, depth, due, deadline, submitted, flags, columns = TEXT.unpack_from(content)
    place, tokens = TEXT.size, {}
    for _ in range(columns):
        length, count = COLUMN.unpack_from(content, place)
        place += COLUMN.size
        name = content[place : place + length].decode()
        tokens[name] = np.frombuffer(content, dtype="<i4", count=count, offset=place + length).tolist()
        place += length + 4 * count
    max_depth = None if depth == NONE else depth
    limit = None if np.isnan(deadline) else deadline
    explain, alone, is_traced = (bool(flags & flag) for flag in (EXPLAIN, ALONE, TRACED))
    return SentText(number, policy, tokens, max_depth, due, limit, submitted, explain, alone, is_traced)


# ---- results --------------------------------------------------------------------------------------------------------


def pack_result(number: int, result: Result) -> bytes:
    """Return the frame of what became of a text."""
    prediction, error = result.prediction, (result.error or "").encode()
    flags = EXPIRED * result.expired
    depth = tokens = 0
    arrays: list[NDArray] = []
    if prediction is not None:
        flags |= ANSWERED | FINITE * prediction.is_finite
        depth, tokens = prediction.depth, prediction.tokens
        arrays = [_answer(prediction), _probability(prediction), np.asarray(prediction.logits)]
    if result.seen is not None:
        flags |= SEEN
        arrays.append(result.seen)
    if result.passed:
        flags |= PASSED
        arrays.append(np.array(result.passed, dtype=np.float64))
    times = result.queue_seconds, result.model_seconds
    head = RESULT.pack(number, result.index, flags, *times, depth, tokens, len(error))
    return frame(Kind.RESULT, b"".join([head, error, *map(_pack_array, arrays)]))


def read_result(content: bytes, model: LoadedModel) -> tuple[int, Result]:
    """Read what `pack_result` wrote.

    Args:
        content: Of the frame.
        model: Names the classes.

    Returns:
        The number of the text, and what became of it.
    """
    number, index, flags, queue, ran, depth, tokens, length = RESULT.unpack_from(content)
    place = RESULT.size + length
    error = content[RESULT.size : place].decode() or None
    arrays = _read_arrays(content, place)
    prediction = None
    if flags & ANSWERED:
        answer, probability, logits = arrays[:3]
        label, share = name_answer(model, answer, probability)
        prediction = Prediction(label, share, depth, bool(flags & FINITE), tokens, logits, model.label_names)
    passed = tuple((int(layer), seconds) for layer, seconds in arrays.pop().tolist()) if flags & PASSED else ()
    seen = arrays[-1] if flags & SEEN else None
    return number, Result(index, prediction, queue, ran, seen, error, bool(flags & EXPIRED), passed)


def _answer(prediction: Prediction) -> NDArray:
    """Return a value, the number of a class, or 0 and 1 for every label."""
    label, names = prediction.label, prediction.label_names
    if isinstance(label, tuple):
        return np.array([name in label for name in names], dtype=np.float64)
    return np.array(label if isinstance(label, float) else names.index(label), dtype=np.float64)


def _probability(prediction: Prediction) -> NDArray:
    """Return the probability of a class, or of every label."""
    share = prediction.probability
    return np.array(list(share.values()) if isinstance(share, dict) else share, dtype=np.float64)


def _pack_array(array: NDArray) -> bytes:
    """Write an array."""
    content = array.tobytes()
    shape = b"".join(map(SIZE.pack, array.shape))
    return ARRAY.pack(array.dtype.char.encode(), array.ndim, len(content)) + shape + content


def _read_arrays(content: bytes, place: int) -> list[NDArray]:
    """Read all arrays from a place on."""
    arrays = []
    while place < len(content):
        kind, dimensions, length = ARRAY.unpack_from(content, place)
        place += ARRAY.size
        shape = [SIZE.unpack_from(content, place + SIZE.size * number)[0] for number in range(dimensions)]
        place += SIZE.size * dimensions
        arrays.append(np.frombuffer(content[place : place + length], dtype=kind.decode()).reshape(shape))
        place += length
    return arrays


# ---- calls ----------------------------------------------------------------------------------------------------------


def pack_call(step: Step, seconds: float, waiting: Mapping[int, int]) -> bytes:
    """Return the frame of what a call held, and of the texts that wait half-way after it, by depth."""
    head = CALL.pack(len(step.numbers), step.tokens, step.padded, step.depth, seconds)
    return frame(Kind.CALL, head + b"".join(POOL.pack(*row) for row in waiting.items()))


def read_call(content: bytes) -> tuple[Step, float, dict[int, int]]:
    """Read what `pack_call` wrote; the texts are counted, and not named."""
    texts, tokens, padded, depth, seconds = CALL.unpack_from(content)
    waiting = dict(POOL.iter_unpack(content[CALL.size :]))
    return Step(numbers=range(texts), tokens=tokens, padded=padded, depth=depth), seconds, waiting
