"""What training writes down, against values worked out by hand."""

from __future__ import annotations

import json

import pytest
import torch

from exitpoll.training.journal import Journal
from tests.models.test_losses import LABELS, LOGITS


def journal(path, stage="all", **options):
    options = {"diversity_weight": 0.2, "problem_type": "single_label_classification"} | options
    return Journal(path / "training.jsonl", stage=stage, **options)


def lines(path):
    return [json.loads(line) for line in (path / "training.jsonl").read_text().splitlines()]


def write(entry, step):
    entry.write(step=step, epoch=step / 10, learning_rate=1e-5, scores={"exit_scores": [0.5]})


def test_a_line_by_hand(tmp_path):
    entry = journal(tmp_path)
    entry.add_batch(LOGITS, LABELS, 2.0)
    entry.add_batch(LOGITS, LABELS, 4.0)
    write(entry, 7)
    [line] = lines(tmp_path)
    assert (line["stage"], line["step"], line["train_loss"]) == ("all", 7, 3.0)
    assert line["exit_scores"] == [0.5]
    # Head 2 has only head 1 before it; head 3 is nearest to head 1 in text 1 and to head 2 in text 2.
    assert line["closest"] == [[0, 0, 0], [4, 0, 0], [2, 2, 0]]
    # What the nearest earlier head gives the right class: 1/2 and 1/2 for head 2, 1/2 and 1/4 for head 3.
    assert line["alpha"] == pytest.approx([0.2 * 0.5, 0.2 * 0.375])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"neighbors": 1}, [[0, 0, 0], [2, 0, 0], [0, 2, 0]]),
        # By the batch, head 3 is as near to head 1 as to head 2; the earlier counts.
        ({"closest": "batch"}, [[0, 0, 0], [2, 0, 0], [2, 0, 0]]),
    ],
)
def test_nearest_is_what_the_loss_takes_it_to_be(tmp_path, options, expected):
    entry = journal(tmp_path, **options)
    entry.add_batch(LOGITS, LABELS, 1.0)
    write(entry, 1)
    assert lines(tmp_path)[0]["closest"] == expected


def test_a_new_line_starts_from_nothing(tmp_path):
    entry = journal(tmp_path)
    entry.add_batch(LOGITS, LABELS, 2.0)
    write(entry, 1)
    entry.add_batch(LOGITS[:1], LABELS[:1], 5.0)
    write(entry, 2)
    assert lines(tmp_path)[1]["train_loss"] == 5.0
    assert lines(tmp_path)[1]["closest"] == [[0, 0, 0], [1, 0, 0], [1, 0, 0]]


def test_regression_has_no_closest_head(tmp_path):
    entry = journal(tmp_path, problem_type="regression")
    entry.add_batch(torch.zeros(2, 3, 1), torch.zeros(2), 1.0)
    write(entry, 1)
    assert (lines(tmp_path)[0]["closest"], lines(tmp_path)[0]["alpha"]) == (None, None)


def test_multi_label_has_a_closest_head_but_no_single_right_class(tmp_path):
    entry = journal(tmp_path, problem_type="multi_label_classification")
    entry.add_batch(torch.zeros(2, 3, 4), torch.zeros(2, 4), 1.0)
    write(entry, 1)
    assert lines(tmp_path)[0]["closest"] is not None
    assert lines(tmp_path)[0]["alpha"] is None


def test_rewind_drops_what_comes_after_a_checkpoint_and_half_a_line(tmp_path):
    first, second = journal(tmp_path, "last"), journal(tmp_path, "heads")
    for entry, step in ((first, 10), (first, 20), (second, 5), (second, 10)):
        write(entry, step)
    with second.path.open("a") as file:
        file.write('[1]\n{"stage": "heads", "st')
    second.rewind(5)
    assert [(line["stage"], line["step"]) for line in lines(tmp_path)] == [("last", 10), ("last", 20), ("heads", 5)]


def test_rewinding_nothing_is_fine(tmp_path):
    journal(tmp_path).rewind(3)
    assert not (tmp_path / "training.jsonl").exists()
