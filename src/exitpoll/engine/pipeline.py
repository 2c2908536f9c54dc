"""The text-classification pipeline of transformers with early exit: the same inputs, options and outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exitpoll.data.batching import Text
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from exitpoll.decide.numerics import make_finite, sigmoid, softmax
from exitpoll.decide.policy import Policy
from exitpoll.engine.arguments import iterate_texts, to_integer, to_text
from exitpoll.engine.engine import Engine, Prediction
from exitpoll.errors import InputError

Scored = dict[str, Any]  # a label with its score
Result = Scored | list[Scored]  # of one text; a list where top_k was named

TASKS = ("text-classification", "sentiment-analysis")  # two names of the one task
KEYS = {"text", "text_pair"}  # of an input that is a dict
BATCH_SIZE = 32
READ_AHEAD = 1024  # texts of a dataset that are predicted together, so that batches can be kept full
FUNCTIONS: dict[str, Callable[[NDArray], NDArray]] = {
    "sigmoid": lambda logits: sigmoid(make_finite(logits)),
    "softmax": softmax,
    "none": lambda logits: logits,
}
DEFAULT_FUNCTIONS = {SINGLE_LABEL: "softmax", MULTI_LABEL: "sigmoid", REGRESSION: "none"}
WITHOUT_EFFECT = ("num_workers", "padding", "truncation")  # the engine pads, and truncates as in training
OPTIONS = ("top_k", "function_to_apply", "batch_size", *WITHOUT_EFFECT)


def pipeline(
    model: str | Path | Engine,
    runtime: str | None = None,
    *,
    task: str = "text-classification",
    policy: Policy | None = None,
    threads: int | None = None,
    device: object = None,
    **options: object,
) -> ExitPipeline:
    """Load a model as `transformers.pipeline("text-classification", …)` does; texts exit early by its policy.

    Args:
        model: A model folder, an export, the name of a trained model on the hub, or an engine.
        runtime: "torch", "onnx" or "onnx-int8"; the one that the folder was written for by default.
        task: "text-classification" or "sentiment-analysis", which are the same.
        policy: When to exit; by default policy.json of the folder, without which no text exits early.
        threads: How many threads to use.
        device: The device for torch: a name, a `torch.device`, or as in transformers the number of a GPU, or -1 for the
            CPU; a GPU where there is one by default.
        options: Defaults for the calls: top_k, function_to_apply, batch_size. As in transformers, a text has a list of
            labels if top_k is given.

    Returns:
        The pipeline.
    """
    if model in TASKS and not Path(str(model)).exists():
        raise InputError(f"'{model}' is the task; name the model first: pipeline(model)")
    if task not in TASKS:
        raise InputError(f"task {task!r:.60} is unknown; choose one of: {', '.join(TASKS)}")
    defaults = _read_options(options, Options())
    if not isinstance(model, Engine):
        return ExitPipeline(
            Engine.load(model, runtime, policy=policy, threads=threads, device=_device(device)), defaults
        )
    if (runtime, policy, threads, device) != (None, None, None, None):
        raise InputError("an engine has its runtime, policy, threads and device already; leave these out")
    return ExitPipeline(model, defaults)


def _device(given: object) -> str:
    """Return the name of a device."""
    if given is None:
        return "auto"
    if isinstance(given, int) and not isinstance(given, bool):
        return "cpu" if given < 0 else f"cuda:{given}"
    return str(given)


@dataclass(frozen=True)
class Options:
    """How texts are answered."""

    top_k: int | None = 1  # None for all labels
    in_lists: bool = False  # whether a text has a list of labels: where top_k was named
    function: str | None = None  # in FUNCTIONS; by the problem type if None
    batch_size: int | None = None


def _read_options(given: Mapping[str, object], defaults: Options) -> Options:
    """Check options as users name them, and add them to the defaults."""
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise InputError(f"the pipeline has no option {', '.join(unknown)}; it has: {', '.join(OPTIONS)}")
    if given.get("truncation", True) in (False, "do_not_truncate"):
        raise InputError("truncation cannot be turned off: texts are cut to the length that the model was trained on")
    changes: dict[str, Any] = {}
    if "top_k" in given:
        top_k: Any = given["top_k"]
        changes |= {"top_k": None if top_k is None else to_integer("top_k", top_k), "in_lists": True}
    if given.get("function_to_apply") is not None:
        changes["function"] = _function_named(given["function_to_apply"])
    if given.get("batch_size") is not None:
        size: Any = given["batch_size"]
        changes["batch_size"] = to_integer("batch_size", size)
    return replace(defaults, **changes)


def _function_named(given: object) -> str | None:
    """Check the name of a function; "default" is the one that goes with the problem type."""
    name = str(getattr(given, "value", given)).lower()  # transformers has an enumeration too
    if name not in (*FUNCTIONS, "default"):
        raise InputError(f"function_to_apply {given!r:.60} is unknown; choose one of: {', '.join(FUNCTIONS)}, default")
    return None if name == "default" else name


class ExitPipeline:
    """An engine that is called as a text-classification pipeline of transformers."""

    task = TASKS[0]

    def __init__(self, engine: Engine, options: Options) -> None:
        """Combine an engine and defaults for the calls; `pipeline` does so for a folder.

        Args:
            engine: The model with its policy.
            options: How texts are answered, where a call names nothing else.
        """
        self.engine, self.options = engine, options

    def __repr__(self) -> str:
        """Describe the engine."""
        return f"ExitPipeline({self.engine!r})"

    def __call__(self, inputs: object, **options: object) -> Any:
        """Classify texts, with the structure of the results that transformers has.

        Args:
            inputs: A text; a dict with `text` and, for a pair, `text_pair`; a list of these, or another container that
                an engine takes; a generator; a dataset that is read by its row numbers, such as a KeyDataset.
            options: For this call: `top_k` labels, all if None; `function_to_apply` to the logits, "sigmoid", "softmax"
                or "none", by default as the problem type asks for; `batch_size`, by default 32, but for a generator 1.

        Returns:
            Dicts with `label` and `score`: a list of one for a text, one for a dict, a list for a list, a generator for
            a generator, an iterable for a dataset. Where `top_k` is named, every text has a list of them. The first is
            the engine's answer, also where a vote chose another than the last head's most probable class.
        """
        chosen = _read_options(options, self.options)
        if isinstance(inputs, str | Mapping):
            [result] = self._answers([inputs], chosen)
            return [result] if isinstance(inputs, str) and "top_k" not in options else result
        if isinstance(inputs, bytes | bytearray):
            raise InputError("give a text as str, not bytes: decode it first")
        if not isinstance(inputs, Iterable) and hasattr(inputs, "__getitem__") and isinstance(inputs, Sized):
            return _DatasetResults(self, inputs, chosen)
        if isinstance(inputs, Iterable) and not isinstance(inputs, Sized):  # a generator, or a dataset that is one
            return self._stream(iterate_texts(inputs), chosen, chosen.batch_size or 1)
        return self._answers(list(iterate_texts(inputs)), chosen)

    def _stream(self, inputs: Iterator[object], options: Options, block_size: int) -> Iterator[Result]:
        """Answer texts in blocks, reading no further than the next block."""
        done = 0
        while block := list(islice(inputs, block_size)):
            yield from self._answers(block, options, done)
            done += len(block)

    def _answers(self, inputs: list[object], options: Options, done: int = 0) -> list[Result]:
        """Answer texts; `done` texts were answered before."""
        texts = [_to_text(f"text {number}", given) for number, given in enumerate(inputs, start=done)]
        for number, text in enumerate(texts, start=done):
            self.engine.model.check_pairs(f"text {number}", pairs=isinstance(text, tuple))
        predictions = self.engine(texts, options.batch_size or BATCH_SIZE)
        return [self._result(prediction, options) for prediction in predictions]

    def _result(self, prediction: Prediction, options: Options) -> Result:
        """Turn a prediction into labels with their scores."""
        names, problem_type = self.engine.model.label_names, self.engine.runtime.problem_type
        assert prediction.logits is not None
        scores = FUNCTIONS[options.function or DEFAULT_FUNCTIONS[problem_type]](prediction.logits)  # (classes,)
        order = np.argsort(-scores, kind="stable").tolist()
        if problem_type == SINGLE_LABEL:
            answer = list(names).index(str(prediction.label))
            order = [answer, *(number for number in order if number != answer)]
        scored = [{"label": names[number], "score": float(scores[number])} for number in order[: options.top_k]]
        return scored if options.in_lists else scored[0]


@dataclass(frozen=True)
class _DatasetResults:
    """The results for a dataset, made as they are iterated over; it has a length for progress bars."""

    pipeline: ExitPipeline
    dataset: Any
    options: Options

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[Result]:
        """Answer the texts in their order."""
        rows = (self.dataset[number] for number in range(len(self)))
        block_size = max(self.options.batch_size or BATCH_SIZE, READ_AHEAD)
        return self.pipeline._stream(rows, self.options, block_size)


def _to_text(place: str, given: object) -> Text:
    """Check a text, a pair, or a dict of them."""
    if not isinstance(given, Mapping):
        return to_text(place, given)
    if "text" not in given or not set(given) <= KEYS:
        listed = ", ".join(map(str, given)) or "no keys"
        raise InputError(f"{place} is a dict with {listed:.60}; give text and, for a pair, text_pair")
    pair = given.get("text_pair")
    return to_text(place, given["text"] if pair is None else (given["text"], pair))
