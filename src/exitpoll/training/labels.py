"""The names of the classes: a classifier without names for them takes those of the data, if their order fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import binomtest
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import pick
from exitpoll.data.splits import Splits
from exitpoll.decide.metrics import REGRESSION, SINGLE_LABEL, predictions
from exitpoll.errors import InputError
from exitpoll.models.config import are_unnamed
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import TokenizedTexts
from exitpoll.training.features import record_logits

SAMPLE = 2000  # training texts on which the order of the classes is checked
SIGNIFICANCE = 0.001  # chance of refusing an order that fits as well as another


@dataclass(frozen=True)
class OrderFit:
    """How well an order of the classes fits gold labels, against the order that was assumed."""

    order: Sequence[int]  # (classes,) the number in the data of every class of the classifier
    right: float  # share of texts that are right in this order
    assumed: float  # share of texts that are right in the assumed order


def better_order(gold: NDArray, answers: NDArray, classes: int) -> OrderFit | None:
    """Find an order of the classes that fits gold labels clearly better than the one they are numbered in.

    The order is found on one half of the texts, and tested on the other.

    Args:
        gold: Class numbers of the labels, (texts,), in random order.
        answers: Class numbers that a classifier gives, (texts,).
        classes: The number of classes.

    Returns:
        The order; None if the assumed one is the best, or the difference may be due to chance.
    """
    half = len(gold) // 2
    counts = np.zeros((classes, classes))
    np.add.at(counts, (answers[:half], gold[:half]), 1)
    _, order = linear_sum_assignment(counts + 1e-6 * np.eye(classes), maximize=True)
    gold, answers = gold[half:], answers[half:]
    renamed = order[answers]
    differing = renamed != answers
    wins, losses = int((renamed == gold)[differing].sum()), int((answers == gold)[differing].sum())
    if wins == 0 or binomtest(wins, wins + losses, alternative="greater").pvalue >= SIGNIFICANCE:
        return None
    return OrderFit(order.tolist(), float((renamed == gold).mean()), float((answers == gold).mean()))


def name_labels(
    model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, splits: Splits, texts: TokenizedTexts
) -> list[str]:
    """Check that model and data number the classes alike; a model without names for them takes those of the data.

    Args:
        model: The model; its configuration gets the names.
        tokenizer: Its tokenizer.
        splits: The data.
        texts: The training texts, tokenized.

    Returns:
        What a reader of the results should know.
    """
    names, ours = list(splits.label_names), list(model.config.id2label.values())
    if splits.problem_type == REGRESSION or not names:
        return []
    unnamed = are_unnamed(model.config.id2label) and names != ours
    if not unnamed and names != ours:
        raise InputError(
            f"the labels of the model are {ours}, those of the data {names}: use one order "
            "(label_names of load_splits sets it)"
        )
    fit = _check_order(model, tokenizer, texts) if model.config.native_head and texts.labels is not None else None
    if fit is not None:
        listed = ", ".join(names[number] for number in fit.order)
        shares = f"right on {fit.right:.0%} of texts, where {', '.join(names)} is right on {fit.assumed:.0%}"
        if unnamed:
            raise InputError(
                f"the classifier does not name its classes, and their order seems to be {listed} ({shares}): "
                "name them with labels",
                options=("labels",),
            )
        return [f"the order of the classes seems to be {listed} ({shares})"]
    if not unnamed:
        return []
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}
    return [f"the model does not name its classes; they are taken to be, in order: {', '.join(names)}"]


def _check_order(model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase, texts: TokenizedTexts) -> OrderFit | None:
    """Compare the classifier's own answers with gold labels, on a sample of the training texts."""
    if model.config.problem_type != SINGLE_LABEL:
        return None
    assert texts.labels is not None
    rows = np.random.default_rng(0).permutation(len(texts))[:SAMPLE]
    sample = TokenizedTexts(pick(texts.columns, rows), texts.labels[rows], truncated=0)
    answers = predictions(record_logits(model, sample, tokenizer)[:, -1], SINGLE_LABEL)
    return better_order(texts.labels[rows], answers, model.config.num_labels)
