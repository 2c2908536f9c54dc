"""A search keeps its trials, resumes after interruption, prunes bad trials and returns the best settings."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from threading import Event

import pytest
from optuna import Study

from exitpoll import InputError, TrainingSettings
from exitpoll.data.progress import Progress
from exitpoll.errors import DivergedError
from exitpoll.study import search as searching
from exitpoll.study.paper import GRID, NO_DIVERSITY_ROW, RANGES, ROWS, ROWS_BY_NAME, VARIANTS
from exitpoll.study.plan import Plan, range_of
from exitpoll.study.run import Outcome, Run
from exitpoll.study.search import read_best, search
from tests.tiny import write_toy_folder

VOTES, PABEE = ROWS_BY_NAME["ours, votes"], ROWS_BY_NAME["PABEE"]
SMALL = {"batch_size": (16, 32), "learning_rate": (1e-5, 5e-5)}
RUN = Run("trec", "encoder", TrainingSettings())


@pytest.fixture
def world(monkeypatch):
    """Replace runs by known scores: larger learning rates are better, and seeds differ."""
    done = []

    def execute(run, cache, on_progress):
        done.append(run)
        score = run.settings.learning_rate * 1e4 + 0.01 * run.settings.seed
        for step in (1, 2, 4):
            on_progress(Progress("all", step, 4, exit_scores=[score]))
        return Outcome(run, cache / run.name)

    monkeypatch.setattr(searching, "execute", execute)
    monkeypatch.setattr(searching, "score_of", lambda outcome, row, speedups: outcome.run.settings.learning_rate * 1e4)
    return done


def test_a_second_search_in_the_same_folder_is_told_who_searches(world, tmp_path):
    def search_again(progress):
        with pytest.raises(InputError, match="is being written by search, process"):
            search(RUN, PABEE, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,))

    search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,), on_progress=search_again)
    assert not list(tmp_path.glob("*.lock"))


def test_the_whole_grid_is_tried_and_the_best_returned(world, tmp_path):
    seen = []
    result = search(
        RUN,
        VOTES,
        (1.3, 2.3),
        tmp_path,
        grid=SMALL,
        seeds=(0, 1),
        on_progress=lambda progress: seen.append((progress.done, progress.total)),
    )
    assert len(world) == 8  # four points with two seeds
    assert seen == [(number, 4) for number in range(4)]
    assert result.settings["learning_rate"] == 5e-5
    assert result.trials == 4
    again = search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0, 1))
    assert len(world) == 8  # nothing left to do
    assert again == result


def test_it_resumes_after_interruption(world, tmp_path):
    def interrupt(progress):
        if progress.done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,), on_progress=interrupt)
    assert len(world) == 3
    assert search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,)).trials == 4
    points = [(run.settings.batch_size, run.settings.learning_rate) for run in world]
    assert len(points) == len(set(points)) == 4  # every point once, also the one at which it was interrupted


def test_another_search_has_a_study_of_its_own(world, tmp_path):
    search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,))
    search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0, 1))
    assert len(world) == 4 + 8
    search(replace(RUN, limit=100), VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,))
    assert len(world) == 4 + 8 + 4


def test_a_larger_budget_tries_other_points(world, tmp_path):
    search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=GRID, seeds=(0,), budget=2)
    search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=GRID, seeds=(0,), budget=6)
    assert len({run.name for run in world}) == 6


def test_after_a_budget_the_rest_of_the_grid_is_tried(world, tmp_path):
    for budget in (3, 6, None):  # of four points; some are tried twice
        search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,), budget=budget)
    assert len({run.name for run in world}) == 4


def test_a_training_that_diverges_ends_only_its_trial(world, tmp_path, monkeypatch):
    sound = searching.execute

    def diverge(run, cache, on_progress):
        if run.settings.learning_rate == 5e-5:
            raise DivergedError("the loss is nan")
        return sound(run, cache, on_progress=on_progress)

    monkeypatch.setattr(searching, "execute", diverge)
    result = search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,))
    assert (result.trials, result.pruned) == (4, 2)
    assert result.settings["learning_rate"] == 1e-5
    assert search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,)) == result
    assert len(world) == 2


def test_other_errors_end_the_search(world, tmp_path, monkeypatch):
    def refuse(run, cache, on_progress):
        raise InputError("no such data")

    monkeypatch.setattr(searching, "execute", refuse)
    with pytest.raises(InputError, match="no such data"):
        search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,))


def test_settings_that_are_never_in_the_range_are_no_result(world, tmp_path, monkeypatch):
    monkeypatch.setattr(searching, "score_of", lambda *_: float("-inf"))
    with pytest.raises(InputError, match="no trial of the search has a threshold in the range of speed-ups"):
        search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,))
    assert not list(tmp_path.glob("best-*"))


def test_bad_trials_are_pruned(world, tmp_path):
    grid = {"learning_rate": (5e-5, 4e-5, 3e-5, 2e-5, 1e-5, 1e-6, 1e-7, 1e-8)}
    result = search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=grid, seeds=(0, 1, 2))
    assert result.pruned > 0
    assert result.settings["learning_rate"] == 5e-5


def test_asha_stops_all_but_the_best_third(world, tmp_path):
    grid = {"learning_rate": (5e-5, 4e-5, 3e-5, 2e-5, 1e-5, 1e-6, 1e-7, 1e-8)}
    result = search(RUN, VOTES, (1.3, 2.3), tmp_path / "a", grid=grid, seeds=(0,), stop="asha")
    assert result.pruned >= 4
    assert result.settings["learning_rate"] == 5e-5
    result = search(RUN, VOTES, (1.3, 2.3), tmp_path / "n", grid=grid, seeds=(0,), stop="never")
    assert (result.trials, result.pruned) == (8, 0)


def test_several_workers_try_the_same_points(world, tmp_path):
    for workers in (1, 3):
        search(RUN, VOTES, (1.3, 2.3), tmp_path / str(workers), seeds=(0,), budget=8, stop="never", workers=workers)
    assert sorted(run.name for run in world[:8]) == sorted(run.name for run in world[8:])


def test_with_several_workers_a_trial_that_fails_ends_alone(world, tmp_path, monkeypatch, caplog):
    sound = searching.execute

    def fail(run, cache, on_progress):
        if run.settings.learning_rate == 5e-5:
            raise InputError("a worker was lost")
        return sound(run, cache, on_progress=on_progress)

    options = {"grid": SMALL, "seeds": (0,), "workers": 2}
    monkeypatch.setattr(searching, "execute", fail)
    result = search(RUN, VOTES, (1.3, 2.3), tmp_path, **options)
    assert (result.trials, result.settings["learning_rate"]) == (2, 1e-5)
    assert caplog.text.count("a worker was lost") == 2
    monkeypatch.setattr(searching, "execute", sound)
    assert search(RUN, VOTES, (1.3, 2.3), tmp_path, **options).settings["learning_rate"] == 5e-5
    assert len(world) == 4  # only those that had failed were repeated
    monkeypatch.setattr(searching, "execute", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        search(RUN, VOTES, (1.3, 2.3), tmp_path / "other", **options)


def test_an_interrupt_waits_for_no_trial(world, tmp_path, monkeypatch):
    sound, is_over, asked, ask = searching.execute, Event(), [], Study.ask

    def execute(run, cache, on_progress):
        if run.settings.learning_rate == 5e-5:
            is_over.wait(30)
        return sound(run, cache, on_progress=on_progress)

    def interrupt(self, *arguments):
        asked.append(arguments)
        if len(asked) == 3:  # when the first trial has ended, and the second waits
            raise KeyboardInterrupt
        return ask(self, *arguments)

    monkeypatch.setattr(searching, "execute", execute)
    monkeypatch.setattr(Study, "ask", interrupt)
    with pytest.raises(KeyboardInterrupt):
        search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=SMALL, seeds=(0,), workers=2)
    assert len(world) == 1
    is_over.set()


def test_a_budget_is_a_limit(world, tmp_path):
    search(RUN, VOTES, (1.3, 2.3), tmp_path, grid=GRID, budget=3)
    assert len(world) == 9
    with pytest.raises(InputError, match="budget 0 must be at least 1"):
        search(RUN, VOTES, (1.3, 2.3), tmp_path, budget=0)


def test_the_diversity_weight_is_searched_only_for_ours(world, tmp_path):
    grid = {"diversity_weight": (0.1, 0.2)}
    search(RUN, PABEE, (1.3, 2.3), tmp_path / "a", grid=grid, seeds=(0,))
    search(RUN, VOTES, (1.3, 2.3), tmp_path / "b", grid=grid, seeds=(0,))
    assert len(world) == 1 + 2


def test_without_optuna(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"searching for settings needs more packages: .*exitpoll\[search\]"):
        search(RUN, VOTES, (1.3, 2.3), tmp_path)


def test_the_verb(run, tmp_path, encoder_folder):
    write_toy_folder(tmp_path / "toy", train=64, others=48)
    arguments = ["--encoder", encoder_folder, "--data", tmp_path / "toy", "--out", tmp_path / "s", "--budget", "1"]
    code, printed, error = run("search", *arguments, "--seeds", "0", "--logs-per-epoch", "1")
    assert code == 0, error
    assert "best of 1 trials" in printed
    assert "--learning-rate" in printed
    [(key, settings)] = read_best(tmp_path / "s").items()
    assert key == ("toy", "ours, votes")
    assert f"--learning-rate {settings['learning_rate']}" in printed


def test_a_plan_uses_the_best_settings_of_a_task_and_method(encoder_folder, tmp_path):
    for name in ("trec", "cola"):
        write_toy_folder(tmp_path / name, train=8, others=8)
    best = {("trec", "ours, votes"): {"epochs": 4, "diversity_weight": 0.5}, ("trec", "PABEE"): {"epochs": 5}}
    plan = Plan(str(encoder_folder), 3, str(tmp_path), searched=best)
    settings = {
        (task, row.name): plan.run(task, row, 0).settings
        for task in ("trec", "cola")
        for row in (*ROWS, NO_DIVERSITY_ROW)
    }
    assert {settings["trec", name].epochs for name in ("ours, votes", "ours, learned")} == {4}
    assert {settings["trec", name].epochs for name in ("PABEE",)} == {5}
    others = {settings["trec", "full model"].epochs, settings["trec", "ours on the full model"].epochs}
    assert others == {settings["cola", "ours, votes"].epochs} == {TrainingSettings().epochs}
    assert settings["trec", "ours, votes"].diversity_weight == 0.5
    assert plan.run("trec", VARIANTS[0], 0).settings.diversity_weight == 0.1  # which is the point of that row
    assert plan.run("trec", VARIANTS[0], 0).settings.epochs == 4


def test_heads_are_trained_on_a_full_model_with_the_settings_searched_for_both_stages(encoder_folder, tmp_path):
    write_toy_folder(tmp_path / "trec", train=8, others=8)
    best = {("trec", "DeeBERT"): {"epochs": 4, "learning_rate": 1e-5}, ("trec", "full model"): {"epochs": 5}}
    plan = Plan(str(encoder_folder), 3, str(tmp_path), searched=best)
    deebert, fastbert, full = (
        plan.run("trec", ROWS_BY_NAME[name], 0) for name in ("DeeBERT", "FastBERT", "full model")
    )
    assert (deebert.start.settings.epochs, deebert.start.settings.learning_rate) == (4, 1e-5)
    assert deebert.start.exits == full.exits
    assert fastbert.start == full
    assert full.settings.epochs == 5


def test_the_range_of_speedups_follows_from_the_classes(tmp_path):
    for name, classes in (("two.csv", "ab"), ("three.csv", "abc")):
        rows = [f"text {number},{label}" for number in range(40) for label in classes]
        (tmp_path / name).write_text("\n".join(["text,label", *rows]) + "\n")
    assert range_of(str(tmp_path / "two.csv")) == RANGES["binary"]
    assert range_of(str(tmp_path / "three.csv")) == RANGES["multiclass"]


@pytest.mark.parametrize(
    ("option", "message"),
    [(("--limit", "0"), "--limit 0 must be at least 1"), (("--seeds", "0", "0"), "seed 0 is named twice")],
)
def test_bad_sizes_and_seeds_are_refused_before_anything_is_written(run, tmp_path, encoder_folder, option, message):
    write_toy_folder(tmp_path / "toy", train=32, others=16)
    arguments = ["--encoder", encoder_folder, "--data", tmp_path / "toy", "--out", tmp_path / "s"]
    code, _, error = run("search", *arguments, *option)
    assert code == 2
    assert message in error
    assert not (tmp_path / "s").exists()


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no completed search"):
        read_best(tmp_path)
    (tmp_path / "best-trec-PABEE.json").write_text('{"task": "trec", "row": "PABEE", "settings": {"magic": 1}}')
    with pytest.raises(InputError, match="is not a result of 'exitpoll search'"):
        read_best(tmp_path)


@pytest.mark.parametrize(("method", "exits"), [("full model", 1), ("DeeBERT", 3), ("ours on the full model", 3)])
def test_the_verb_on_other_methods(run, tmp_path, encoder_folder, method, exits):
    write_toy_folder(tmp_path / "toy", train=64, others=48)
    arguments = ["--encoder", encoder_folder, "--data", tmp_path / "toy", "--out", tmp_path / "s", "--budget", "1"]
    code, _, error = run("search", *arguments, "--seeds", "0", "--method", method, "--logs-per-epoch", "1")
    assert code == 0, error
    [summary] = (tmp_path / "s" / "runs").glob("*/run.json")
    written = json.loads(summary.read_text())
    assert len(written["scores"]["test"]) == exits
    assert written["settings"]["schedule"] == ("joint" if exits == 1 else "two-stage")


def test_settings_that_are_searched_for_are_refused(run, tmp_path, encoder_folder):
    code, _, error = run("search", "--encoder", encoder_folder, "--data", "x", "--out", tmp_path, "--epochs", "4")
    assert code == 2
    assert "--epochs is searched for" in error
