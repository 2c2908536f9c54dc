"""Runs are kept by their settings, resumed after interruption, and refused when their files have changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from exitpoll import InputError
from exitpoll.data.progress import Progress, ignore
from exitpoll.files import read_json
from exitpoll.study.execute import execute, execute_all
from exitpoll.study.paper import OURS_ROW, ROWS, ROWS_BY_NAME
from exitpoll.study.plan import Plan
from exitpoll.study.run import RUN, _digest
from exitpoll.study.tables import compute_cells
from exitpoll.training.clock import Clock
from tests.study.conftest import FAST, hide_labels
from tests.tiny import write_toy_folder


def test_a_task_may_start_from_another(plan, cache):
    run = plan.run("rte", ROWS[0], 0)
    assert run.start is not None
    assert run.start.task == "snli"
    outcome = execute(run, cache)
    assert read_json(outcome.folder / RUN)["start"]["task"] == "snli"


def test_training_only_heads_leaves_the_full_model_unchanged(plan, cache):
    full, heads = (execute(plan.run("trec", ROWS_BY_NAME[name], 0), cache).trace("test")
                   for name in ("full model", "DeeBERT"))  # fmt: skip
    assert plan.run("trec", ROWS_BY_NAME["DeeBERT"], 0).start == plan.run("trec", ROWS_BY_NAME["full model"], 0)
    np.testing.assert_allclose(heads.logits[:, -1], full.logits[:, 0], atol=1e-5)


def test_snapshots_of_three_training_steps_are_kept(plan, cache):
    outcome = execute(plan.run("trec", OURS_ROW, 0), cache)
    snapshots = outcome.snapshots()
    assert len(snapshots) == 2  # of three steps in all, so the first two snapshots coincide
    labels = outcome.trace("calibration").labels
    for features, snapshot_labels in snapshots.values():
        assert features.shape[:2] == (len(labels), 3)
        np.testing.assert_array_equal(snapshot_labels, labels)


def test_held_out_texts_are_limited(plan, cache):
    outcome = execute(replace(plan.run("trec", ROWS[0], 0), held_out=20), cache)
    assert [len(outcome.trace(split)) for split in ("calibration", "test")] == [20, 20]


def test_a_run_that_fails_does_not_stop_the_others(plan, tmp_path, monkeypatch):
    def refuse(*_):
        raise InputError("no head can be pruned")

    monkeypatch.setattr("exitpoll.study.execute.prune_heads", refuse)
    two_rows = replace(plan, rows=[ROWS_BY_NAME[name] for name in ("HeadPrune", "full model")])
    outcomes, failed = execute_all(two_rows.runs(), tmp_path / "runs")
    assert [outcome.run.prune for outcome in outcomes] == [None]
    assert list(failed.values()) == ["no head can be pruned"]
    assert [cell.row for cell in compute_cells(two_rows, outcomes)] == ["full model"]


@pytest.mark.parametrize("keep", [False, True])
def test_other_data_of_the_same_name_are_refused(plan, cache, tmp_path, keep):
    run = plan.run("trec", ROWS_BY_NAME["PABEE"], 0)  # whose weights are removed
    execute(run, cache)
    write_toy_folder(tmp_path / "trec", train=32, others=16)
    with pytest.raises(InputError, match=f"^data changed since '.*{run.name}' was started"):
        execute(replace(run, data=str(tmp_path / "trec")), cache, keep=keep)


def test_other_data_of_the_starting_task_are_refused(plan, cache, tmp_path):
    run = plan.run("rte", ROWS[0], 0)
    execute(run, cache)
    write_toy_folder(tmp_path / "snli", train=32, others=16)
    with pytest.raises(InputError, match=r"^data of the start changed since"):
        execute(replace(run, start=replace(run.start, data=str(tmp_path / "snli"))), cache)


def test_a_run_whose_weights_were_removed_is_repeated_completely(plan, cache):
    run = plan.run("trec", OURS_ROW, 1)
    first = execute(run, cache)
    assert not (first.folder / "model").exists()
    (first.folder / "seconds.json").write_text('{"seconds": 1000000}')
    again = execute(run, cache, keep=True)
    assert (again.folder / "model").exists()
    assert again.summary["seconds"] < 1000
    assert again.summary["scores"] == first.summary["scores"]
    np.testing.assert_array_equal(again.trace("test").logits, first.trace("test").logits)


def interrupt_recording(monkeypatch, run, cache, *, keep=False):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("exitpoll.study.execute._record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            execute(run, cache, keep=keep)


def test_a_run_stays_until_its_repetition_is_complete(plan, tmp_path, monkeypatch):
    run, cache = plan.run("trec", OURS_ROW, 0), tmp_path / "runs"
    before = execute(run, cache)
    interrupt_recording(monkeypatch, run, cache, keep=True)
    assert execute(run, cache).summary == before.summary
    assert (execute(run, cache, keep=True).folder / "model").exists()


def test_answers_stay_when_a_model_is_trained_again_for_others(encoder_folder, tmp_path):
    folder = write_toy_folder(tmp_path / "data" / "rte", train=64, others=32)
    hide_labels(folder)
    rows = [ROWS_BY_NAME[name] for name in ("full model", "DeeBERT")]
    plan = Plan(str(encoder_folder), 3, str(folder.parent), ["rte"], rows, settings=FAST)
    runs = plan.runs()
    execute_all(runs, tmp_path / "runs")  # as for figures alone
    answered = {run.name for run in runs}
    outcomes, failed = execute_all(runs, tmp_path / "runs", answered=answered)
    assert not failed
    assert [outcome.has_unlabelled for outcome in outcomes] == [True, True]


def test_data_that_changed_while_a_run_was_interrupted_are_refused(encoder_folder, tmp_path, monkeypatch):
    write_toy_folder(tmp_path / "trec", train=64, others=32)
    run = Plan(str(encoder_folder), 3, str(tmp_path), ["trec"], settings=FAST).run("trec", ROWS[0], 0)
    interrupt_recording(monkeypatch, run, tmp_path / "runs")
    write_toy_folder(tmp_path / "trec", train=32, others=16)
    _digest.cache_clear()
    with pytest.raises(InputError, match=r"^data changed since"):
        execute(run, tmp_path / "runs")


def test_time_is_counted_over_all_sessions(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("exitpoll.training.clock.time.monotonic", lambda: now[0])
    progress = Progress("all", 1, 2)
    tick = Clock(tmp_path / "seconds.json").around(ignore)
    now[0] += 30
    tick(progress)
    now[0] += 1000  # not written any more: the session was interrupted
    again = Clock(tmp_path / "seconds.json")
    now[0] += 5
    assert again.seconds == 35
