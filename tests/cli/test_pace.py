"""The quickstart is fitted to the machine: the same on all but slow ones, and never longer than it says."""

from __future__ import annotations

import pytest
import torch

from exitpoll import Texts
from exitpoll.cli import pace, quickstart
from exitpoll.cli.pace import LONGEST, Pace, Work, choose_texts, describe, measure
from exitpoll.cli.quickstart import Choices, prepare, steps

WORK = Work(epochs=3, others=500)
HELD_OUT = 960


def test_time_grows_with_texts_and_steps():
    assert WORK.minutes(64, HELD_OUT, 6.0) == pytest.approx((3 * 2 + 6 * 10 + 500) * 6 / 60)
    assert WORK.minutes(6400, 0, 0.1) < WORK.minutes(6400, 0, 0.2) < WORK.minutes(12800, 0, 0.2)
    assert WORK.minutes(6400, 0, 0.1) < WORK.minutes(6400, 100, 0.1)


@pytest.mark.parametrize("seconds", [0.001, 0.1, 0.2, 0.4, 0.7])
def test_all_texts_are_used_where_time_allows(seconds):
    assert WORK.minutes(6000, HELD_OUT, seconds) <= LONGEST
    assert choose_texts(WORK, 6000, HELD_OUT, seconds) == 6000


def test_slow_machines_train_on_fewer_texts():
    chosen = [choose_texts(WORK, 6000, HELD_OUT, seconds) for seconds in (0.7, 0.9, 1.2, 100.0)]
    assert chosen == [6000, 3000, 1500, 1500]
    assert choose_texts(WORK, 1000, HELD_OUT, 100.0) == 1000


def test_large_data_are_cut():
    assert choose_texts(WORK, 500_000, HELD_OUT, 0.2) == 6000


@pytest.mark.parametrize(
    ("minutes", "words"), [(0.4, "about a minute"), (5.6, "about 6 minutes"), (150, "about 2.5 hours")]
)
def test_times_in_words(minutes, words):
    assert describe(minutes) == words


def test_steps_are_timed(encoder_folder):
    threads = torch.get_num_threads()
    for texts in (Texts(["good film"] * 40), Texts(["good"], ["film"])):
        timed = measure(str(encoder_folder), texts)
        assert 0 < timed.seconds_a_step < 60
        assert timed.threads in (1, threads)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(("seconds", "threads"), [({3: 0.5, 1: 1.0}, 3), ({3: 5.0, 1: 1.0}, 1)])
def test_a_busy_machine_is_used_with_one_thread(monkeypatch, seconds, threads):
    monkeypatch.setattr(pace, "_training_step", lambda encoder, texts: None)
    monkeypatch.setattr(pace, "_time", lambda step: seconds[torch.get_num_threads()])
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert measure("any", Texts(["a"])) == Pace(seconds[threads], threads)
    finally:
        torch.set_num_threads(before)


def test_the_choice_is_said_and_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, "measure", lambda encoder, texts: Pace(2.0, 1))
    choices = Choices("embedded", "embedded", fast=False)
    started = prepare(tmp_path / "out", choices)
    assert started.limit in (1500, 3000)
    assert f"it trains on {started.limit:,} of 6,000 texts" in started.lines[1]
    assert "--fast" in started.lines[2]
    words = next(steps(tmp_path / "out", started)).words
    assert words[words.index("--limit") + 1] == str(started.limit)
    monkeypatch.setattr(quickstart, "measure", lambda encoder, texts: Pace(0.01, 2))  # the machine is free now
    again = prepare(tmp_path / "out", choices)
    assert again.limit == started.limit
    assert again.lines[0].startswith("this takes about a minute here")
    (tmp_path / "out" / "model").mkdir()
    assert prepare(tmp_path / "out", choices).lines == ()


def test_a_usual_machine_trains_on_all_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(quickstart, "measure", lambda encoder, texts: Pace(0.5, 2))
    started = prepare(tmp_path / "out", Choices("embedded", "embedded", fast=False))
    assert started.limit is None
    assert "--limit" not in next(steps(tmp_path / "out", started)).words
    assert len(started.lines) == 2
