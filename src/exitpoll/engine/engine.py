"""Engine: a model with its policy, which predicts every text at the exit where the policy is sure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

from numpy.typing import NDArray

from exitpoll.data.batching import Text, lengths_of, pick
from exitpoll.data.progress import Progress, shown
from exitpoll.data.splits import Texts
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.numerics import softmax
from exitpoll.decide.policy import Policy
from exitpoll.engine.arguments import iterate_texts, to_integer, to_text
from exitpoll.engine.costs import USUAL, CallCosts, costs_of, kept_costs
from exitpoll.engine.loading import default_runtime, load_model, policy_of
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.scheduler import Scheduler
from exitpoll.engine.walks import Batch, Departure, Walk, walk_for
from exitpoll.errors import InputError

if TYPE_CHECKING:
    from exitpoll.engine.explain import Explanation

Label = str | tuple[str, ...] | float  # a class, all labels that apply, or a value
Probability = float | dict[str, float]  # of the class, NaN for a value; of every label

WINDOW = 4096  # texts that are tokenized and sorted by length at a time
MEASURED = 256  # texts in a job for which it is worth measuring what calls cost
SHOWN_EVERY = 32  # texts after which a progress bar moves

logger = logging.getLogger("exitpoll")


@dataclass(frozen=True, repr=False)
class Prediction:
    """The prediction for one text.

    Attributes:
        label: The class; all labels that apply, for a model of several labels; a value, for regression.
        probability: What the head that answered gives that class, without temperature or vote; that of every label,
            for a model of several labels; NaN, for regression.
        depth: The number of layers that were run.
        is_finite: False if logits were NaN or infinite, so that the prediction means nothing.
        tokens: The number of tokens that were read.
        logits: The logits of the head that answered, (classes,).
        label_names: The labels, by class number.
    """

    label: str | tuple[str, ...] | float
    probability: float | dict[str, float]
    depth: int
    is_finite: bool = True
    tokens: int = field(default=0, compare=False)
    logits: NDArray | None = field(default=None, compare=False)
    label_names: Sequence[str] = field(default=(), compare=False)

    @property
    def probabilities(self) -> dict[str, float]:
        """What the head that answered gives every class, by name; empty for regression."""
        if isinstance(self.probability, dict):
            return dict(self.probability)
        if self.logits is None or not isinstance(self.label, str):
            return {}
        return dict(zip(self.label_names, softmax(self.logits).tolist(), strict=True))

    def __repr__(self) -> str:
        """Show the fields that matter, probabilities with six digits."""
        if isinstance(self.probability, dict):
            shown: object = {name: round(probability, 6) for name, probability in self.probability.items()}
        else:
            shown = round(self.probability, 6)
        broken = "" if self.is_finite else ", is_finite=False"
        return f"Prediction(label={self.label!r}, probability={shown}, depth={self.depth}{broken})"


class Engine:
    """A model with its policy; it keeps nothing between calls, so threads may share it.

    An engine that was loaded from a folder can be pickled: it is then loaded again from there, with the same policy.
    Processes that are forked cannot use the engine of their parent, unless it has one thread.
    """

    def __init__(self, model: LoadedModel, policy: Policy | None = None) -> None:
        """Combine a model and a policy; `Engine.load` does so for a folder.

        Args:
            model: What `load_model` returns.
            policy: When to exit; by default never before the last exit.
        """
        if not isinstance(model, LoadedModel):
            raise InputError(f"model {model!r:.60} must be what load_model returns; Engine.load takes a folder")
        if policy is not None and not isinstance(policy, Policy):
            raise InputError(f"policy {policy!r:.60} must be a Policy; Policy.load reads one from a file")
        self.model, self.runtime = model, model.runtime
        self.policy = policy or Policy(threshold=None, problem_type=self.runtime.problem_type)
        if self.policy.problem_type != self.runtime.problem_type:
            raise InputError(f"the policy is for {self.policy.problem_type}, the model for {self.runtime.problem_type}")
        if self.policy.certificate is not None:  # the fingerprint of weights takes time to compute
            self.policy.source.check_same(model.source)
        self.policy.check_exits(self.runtime.exit_layers)

    def __repr__(self) -> str:
        """Describe the model and the policy."""
        policy = "never exits early" if self.policy.threshold is None else self.policy.name
        return f"Engine({self.model.description}, policy: {policy})"

    def __reduce__(self) -> tuple[type[Engine], tuple[LoadedModel, Policy]]:
        """Pickle by the folder of the model."""
        return Engine, (self.model, self.policy)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        runtime: str | None = None,
        *,
        policy: Policy | None = None,
        threads: int | None = None,
        device: str = "auto",
        verify: bool = True,
    ) -> Engine:
        """Load a model folder with its policy.

        Args:
            folder: What `exitpoll train` or `exitpoll export` wrote, or the name of a trained model on the hub.
            runtime: "torch", "onnx" or "onnx-int8"; by default the one that the folder was written for, or that `adopt`
                found to be fastest. A trained folder is also searched for an export of that name.
            policy: When to exit; by default policy.json of the folder. Without one no text exits early, which is
                logged as a warning of the logger "exitpoll".
            threads: How many threads this engine uses; by default as many as torch uses in this process, or for an
                export as many as there are cores.
            device: The device for torch: "cpu", "cuda", …; "auto" is a GPU of CUDA where there is one, else the CPU.
            verify: Whether to check the hashes of an export's files, which is done while they are loaded.

        Returns:
            The engine.
        """
        if policy is not None and not isinstance(policy, Policy):
            raise InputError(f"policy {policy!r:.60} must be a Policy; Policy.load reads one from a file")
        if runtime is None and isinstance(folder, str | Path):
            runtime = default_runtime(folder)
        loaded = load_model(folder, runtime, threads=threads, device=device, verify=verify)
        if policy is None:
            policy = policy_of(folder, runtime)
            if policy is None:
                logger.warning("'%s' has no policy.json, so no text will exit early: calibrate the model", folder)
        return cls(loaded, policy)

    def __call__(self, texts: Iterable[Text], batch_size: int = 32, *, progress: bool = False) -> list[Prediction]:
        """Predict some texts.

        Args:
            texts: Texts, or pairs of texts (tuples or lists of two): a list, a generator, a NumPy array, a column of
                pandas; or a table, such as a DataFrame, whose text column is found by its name.
            batch_size: The bound on memory: a call has at most as many tokens, with padding, as so many of the longest
                texts. How many texts share a call depends on what calls cost; 1 is one text at a time.
            progress: Whether to show a progress bar on stderr.

        Returns:
            Predictions in the order of the texts.
        """
        if isinstance(texts, list) and len(texts) == 1 and not progress:  # as services call it: no time is to be lost
            self._check_call(batch_size)
            return [self._predict_alone(texts[0])]
        stream = self.stream(texts, batch_size)
        if progress:
            stream = _shown(stream, len(texts) if isinstance(texts, Sized) else None)
        predictions = dict(stream)
        return [predictions[number] for number in range(len(predictions))]

    def stream(
        self, texts: Iterable[Text], batch_size: int = 32, *, refill: bool = True
    ) -> Iterator[tuple[int, Prediction]]:
        """Predict any number of texts in constant memory, in the order in which they exit.

        Args:
            texts: Texts, or pairs of texts, as for a call.
            batch_size: The bound on memory, as for a call.
            refill: Whether texts may wait at an exit for others, to keep batches full.

        Yields:
            The number of a text, from 0, and its prediction.
        """
        batch_size = self._check_call(batch_size)
        numbered = iterate_texts(texts)
        first = list(islice(numbered, WINDOW))
        if len(first) == 1:
            yield 0, self._predict_alone(first[0])
            return
        scheduler = self._scheduler(self._costs_for(len(first)), refill=refill and batch_size > 1)
        windows = chain([first] if first else [], iter(lambda: list(islice(numbered, WINDOW)), []))
        for departure in scheduler.run(self._calls(windows, scheduler, batch_size)):
            yield from predictions_of(self.model, departure)

    def explain(self, text: Text) -> Explanation:
        """Explain the prediction for a text: what every exit on the way said, and why the text left where it did.

        Args:
            text: A text, or a pair of texts.

        Returns:
            The explanation: print it, show it in a notebook, or take it as a dict. It ends at the exit and with the
            answer that a call with this text gives.
        """
        from exitpoll.engine.explain import explain

        return explain(self, text)

    def _check_call(self, batch_size: int) -> int:
        """Check what can be checked before any text is read, and return the batch size."""
        self.model.check_process()
        return to_integer("batch_size", batch_size)

    def _predict_alone(self, given: object) -> Prediction:
        """Predict a text that is the only one."""
        text = to_text("text 0", given)
        self.model.check_pairs("text 0", pairs=isinstance(text, tuple))
        tokens = self.model.tokenize(Texts.of([text]))
        [(_, prediction)] = predictions_of(self.model, self.walk.run_alone(tokens))
        return prediction

    @cached_property
    def costs(self) -> CallCosts:
        """What calls cost in the runtime of the engine, measured when this is first asked for."""
        return costs_of(self.model)

    def _costs_for(self, texts: int) -> CallCosts:
        """Return what calls cost for a job: a small one is not worth measuring, but what was measured before counts."""
        return self.costs if texts >= MEASURED else self._kept_costs or USUAL

    @cached_property
    def _kept_costs(self) -> CallCosts | None:
        """What calls cost as it was measured before."""
        return kept_costs(self.model)

    @cached_property
    def walk(self) -> Walk:
        """The way from exit to exit."""
        return walk_for(self.runtime, self.policy)

    def _scheduler(self, costs: CallCosts, *, refill: bool) -> Scheduler:
        """Prepare a job."""
        return Scheduler(self.runtime, self.walk, costs, refill=refill)

    def _calls(self, windows: Iterable[list[object]], scheduler: Scheduler, batch_size: int) -> Iterator[Batch]:
        """Tokenize a window of texts at a time, and start those of similar length together, longest first."""
        done = 0
        for given in windows:
            window = [to_text(f"text {number}", text) for number, text in enumerate(given, start=done)]
            for number, text in enumerate(window, start=done):
                self.model.check_pairs(f"text {number}", pairs=isinstance(text, tuple))
            tokens = self.model.tokenize(Texts.of(window))
            lengths = lengths_of(tokens)
            for rows in scheduler.calls(lengths, batch_size):
                yield Batch(rows + done, pick(tokens, rows))
            done += len(window)


def predictions_of(model: LoadedModel, departure: Departure) -> Iterator[tuple[int, Prediction]]:
    """Turn the answers of texts that leave together into predictions.

    Args:
        model: The model.
        departure: The texts.

    Yields:
        The number of a text and its prediction.
    """
    depths = [model.runtime.exit_layers[number] for number in departure.exit_numbers]
    numbers, tokens = departure.numbers.tolist(), departure.lengths.tolist()
    answers, shares, finite = departure.answer, departure.probability, departure.is_finite.tolist()
    columns = (numbers, answers, shares, depths, finite, tokens, departure.logits)
    for number, answer, probability, depth, is_finite, length, logits in zip(*columns, strict=True):
        label, share = name_answer(model, answer, probability)
        yield number, Prediction(label, share, depth, is_finite, length, logits, model.label_names)


def name_answer(model: LoadedModel, answer: NDArray, probability: NDArray) -> tuple[Label, Probability]:
    """Return label and probability of a prediction, with names for class numbers.

    Args:
        model: The model that answered.
        answer: A class number, (), or a value, (), or 0 and 1 for every label, (labels,).
        probability: Of the answer, in its shape.

    Returns:
        Both in the form that predictions have.
    """
    if model.runtime.problem_type == REGRESSION:
        return float(answer), float("nan")
    if model.runtime.problem_type == MULTI_LABEL:
        chosen = tuple(name for name, applies in zip(model.label_names, answer, strict=True) if applies)
        return chosen, dict(zip(model.label_names, map(float, probability), strict=True))
    return model.label_names[int(answer)], float(probability)


def _shown(stream: Iterator[tuple[int, Prediction]], total: int | None) -> Iterator[tuple[int, Prediction]]:
    """Show a progress bar while predictions are made."""
    depths = 0
    with shown(True) as on_progress:
        for done, (number, prediction) in enumerate(stream, start=1):
            depths += prediction.depth
            if done % SHOWN_EVERY == 0 or done == total:
                on_progress(Progress("predicting", done, total, mean_depth=depths / done))
            yield number, prediction
