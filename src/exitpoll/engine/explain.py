"""Explain a prediction: what every exit on the way said, and why the text left where it did."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from exitpoll.data.batching import Text
from exitpoll.data.splits import Texts
from exitpoll.decide.decisions import probability_of
from exitpoll.decide.incremental import Stepper
from exitpoll.decide.metrics import predictions
from exitpoll.decide.steps import Memory
from exitpoll.decide.strategies import strategy_named
from exitpoll.engine.arguments import to_text
from exitpoll.engine.engine import Engine, Label, Prediction, Probability, name_answer
from exitpoll.engine.exit_graph import asked_by

DIGITS = (4, 7, 12)  # significant ones: more where a score and its threshold would look alike
LONGEST = 60  # characters of a text or label that a table shows


@dataclass(frozen=True)
class AskedExit:
    """What one exit said.

    Attributes:
        depth: The layers that were run to get there.
        label: What its head answers, in the form of a prediction's label.
        probability: What its head gives that answer, in the form of a prediction's probability.
        answer: What the strategy answers, from this exit and those before it.
        score: The strategy's score, in the units of the threshold; None if the policy never exits early.
        threshold: What the score must reach for the text to leave here; None if the policy never exits early.
    """

    depth: int
    label: Label
    probability: Probability
    answer: Label
    score: float | None
    threshold: float | None


@dataclass(frozen=True)
class Explanation:
    """Why a text left at an exit, as `Engine.explain` returns it; print it, or show it in a notebook.

    Attributes:
        text: The text, or the pair of texts.
        prediction: What the engine predicts.
        exits: The exits that were asked, in their order; the text left at the last of these.
        reason: Why it left there: "score 0.97 ≥ 0.94", "last exit", or "max depth 4".
        policy: Strategy and settings in words.
        sign: How a score must relate to its threshold for the text to leave: "≥", or "≤" as for entropy.
        layers: How many layers the model runs at most.
    """

    text: Text
    prediction: Prediction
    exits: tuple[AskedExit, ...]
    reason: str
    policy: str
    sign: str
    layers: int

    def to_dict(self) -> dict[str, object]:
        """Return the explanation as plain values that JSON can hold; None for what is NaN or infinite."""
        return {
            "text": list(self.text) if isinstance(self.text, tuple) else self.text,
            "label": _plain(self.prediction.label),
            "probability": _plain(self.prediction.probability),
            "depth": self.prediction.depth,
            "layers": self.layers,
            "is_finite": self.prediction.is_finite,
            "policy": self.policy,
            "reason": self.reason,
            "exits": [{name: _plain(value) for name, value in vars(asked).items()} for asked in self.exits],
        }

    def __str__(self) -> str:
        """Draw a table for the terminal."""
        rows = list(self._cells())
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.rjust, row, widths)) for row in rows]
        return "\n".join([self._title, *lines, self._result])

    def _repr_html_(self) -> str:
        """Draw a table for notebooks."""
        header, *rows = self._cells()
        head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return (
            f"<table><caption>{escape(self._title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
            f'<tfoot><tr><td colspan="{len(header)}">{escape(self._result)}</td></tr></tfoot></table>'
        )

    @property
    def _title(self) -> str:
        """The text, with what terminals would obey escaped, and the policy."""
        parts = self.text if isinstance(self.text, tuple) else (self.text,)
        return f"{' | '.join(_visible(part) for part in parts)} (policy: {self.policy})"

    @property
    def _result(self) -> str:
        """Answer, depth and reason in one line."""
        broken = "" if self.prediction.is_finite else "; its logits are not finite, so that the answer means nothing"
        depth = f"after {self.prediction.depth} of {self.layers} layers"
        return f"answer: {_named(self.prediction.label)}, {depth}: {self.reason}{broken}"

    def _cells(self) -> Iterator[list[str]]:
        """Yield header and rows; columns that would say nothing are left out."""
        columns = [("layers", [str(asked.depth) for asked in self.exits])]
        columns.append(("head", [_named(asked.label) for asked in self.exits]))
        columns.append(("probability", [_share(asked.label, asked.probability) for asked in self.exits]))
        if any(asked.answer != asked.label for asked in self.exits):
            columns.append(("strategy", [_named(asked.answer) for asked in self.exits]))
        columns.append(("score", [_number(asked.score) for asked in self.exits]))
        columns.append(("leaves at", [f"{self.sign} {_number(asked.threshold)}" for asked in self.exits]))
        if self.exits[0].threshold is None:
            columns = columns[:-2]
        filled = [(name, cells) for name, cells in columns if any(cells)]
        yield [name for name, _ in filled]
        yield from (list(row) for row in zip(*(cells for _, cells in filled), strict=True))


def explain(engine: Engine, text: Text) -> Explanation:
    """Predict a text, and note what the exits on its way say.

    Args:
        engine: The model with its policy.
        text: A text, or a pair of texts.

    Returns:
        The explanation; it ends at the exit and with the answer that the engine gives.
    """
    given = to_text("the text", text)
    [prediction] = engine([given])
    policy, runtime = engine.policy, engine.runtime
    falls = strategy_named(policy.strategy).sign_for(policy.problem_type) < 0
    exits = tuple(_ask_exits(engine, given, prediction.depth))
    sign = "≤" if falls else "≥"
    reason = _reason(engine, exits[-1], sign)
    return Explanation(given, prediction, exits, reason, _described(engine), sign, runtime.exit_layers[-1])


def _described(engine: Engine) -> str:
    """Return the policy in words."""
    return "never exits early" if engine.policy.threshold is None else engine.policy.name


def _ask_exits(engine: Engine, text: Text, depth: int) -> Iterator[AskedExit]:
    """Run a text to a depth, and ask the exits that the policy asks on the way."""
    policy, runtime = engine.policy, engine.runtime
    asked = [number for number in asked_by(policy, runtime.exit_layers) if runtime.exit_layers[number] <= depth]
    thresholds, sign = _thresholds(engine), strategy_named(policy.strategy).sign_for(policy.problem_type)
    stepper = Stepper(policy, len(policy.asked(runtime.exit_layers)))
    memory: Memory = {}
    state, done = runtime.embed(engine.model.tokenize(Texts.of([text]))), 0
    for place, number in enumerate(asked):
        layer = runtime.exit_layers[number]
        state, done = runtime.advance(state, range(done + 1, layer + 1)), layer
        logits = runtime.logits_at(state, number)  # (1, classes)
        heads = predictions(logits, policy.problem_type)
        probability = probability_of(logits, heads, policy.problem_type)
        label, share = name_answer(engine.model, heads[0], probability[0])
        if policy.threshold is None:
            yield AskedExit(layer, label, share, label, None, None)
            continue
        step = stepper.step(logits, memory, place)
        memory = step.memory
        answer, _ = name_answer(engine.model, step.answer[0], probability[0])
        yield AskedExit(layer, label, share, answer, sign * float(step.score[0]), thresholds[place])


def _thresholds(engine: Engine) -> list[float]:
    """Return the thresholds of the exits that are asked, in natural units."""
    policy = engine.policy
    levels = policy.levels(len(policy.asked(engine.runtime.exit_layers)))
    return (levels * strategy_named(policy.strategy).sign_for(policy.problem_type)).tolist()


def _reason(engine: Engine, left_at: AskedExit, sign: str) -> str:
    """Return why a text left at an exit: its score, unless the exit is final and the score is not enough."""
    policy, layers = engine.policy, engine.policy.asked(engine.runtime.exit_layers)
    is_final = bool(policy.ends(layers)[layers.index(left_at.depth)])
    score, threshold = left_at.score, left_at.threshold
    if score is not None and threshold is not None:
        reached = score <= threshold if sign == "≤" else score >= threshold
        if reached or not is_final:
            return f"score {_compared(score, sign, threshold)}"
    return "last exit" if left_at.depth == layers[-1] else f"max depth {policy.max_depth}"


def _compared(score: float, sign: str, threshold: float) -> str:
    """Write two numbers with as many digits as it takes to tell them apart."""
    pairs = [(f"{score:.{digits}g}", f"{threshold:.{digits}g}") for digits in DIGITS]
    first, second = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return f"{first} {sign} {second}"


# ---- cells ----------------------------------------------------------------------------------------------------------


def _visible(text: str) -> str:
    """Quote a text, in which control characters are escaped; a long one is cut."""
    return repr(text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…")


def _named(label: Label) -> str:
    """Write a label, all labels that apply, or a value."""
    if isinstance(label, float):
        return _number(label)
    names: Sequence[str] = (label,) if isinstance(label, str) else label
    return ", ".join(_visible(name)[1:-1] for name in names) or "none"


def _share(label: Label, probability: Probability) -> str:
    """Write the probability of an answer: of every label that applies, of the likeliest if none does, of no value."""
    if not isinstance(probability, dict):
        return _number(None if math.isnan(probability) else probability)
    chosen = [probability[name] for name in label] if isinstance(label, tuple) else []
    return ", ".join(map(_number, chosen)) or f"at most {_number(max(probability.values()))}"


def _number(value: float | None) -> str:
    """Write a number with four digits; nothing for None."""
    return "" if value is None else f"{value:.{DIGITS[0]}g}"


def _plain(value: object) -> object:
    """Turn a value into what JSON can hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
