"""Runs are named by their settings, and rows that differ only in their strategy share a run."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from exitpoll import InputError, TrainingSettings
from exitpoll.study.paper import BINARY, GRID, MULTICLASS, PRESETS, ROWS, ROWS_BY_NAME
from exitpoll.study.plan import check_tasks, group_of
from exitpoll.study.run import _STORED_NAMES, Run
from tests.study.conftest import FAST
from tests.tiny import write_toy_folder

COMMITTED = sorted((Path(__file__).parents[2] / "experiments" / "results" / "runs").glob("*.json"))


def test_rows_that_differ_in_their_strategy_share_a_run(plan):
    names = [run.name for run in plan.runs()]
    assert len(names) == len(set(names)) == 10  # half of three layers are two, and so are three quarters
    assert all(name.startswith("trec-") for name in names)


def test_a_name_follows_from_all_settings_and_no_path(plan, data):
    run = plan.run("trec", ROWS[0], 0)
    assert run.name == replace(run, data=f"/elsewhere/{run.task}").name
    others = [
        replace(run, settings=replace(run.settings, seed=1)),
        replace(run, settings=replace(run.settings, learning_rate=1e-5)),
        replace(run, exits=None),
        replace(run, limit=10),
        replace(run, held_out=10),
        replace(run, pooling="first"),
        replace(run, prune="heads"),
        replace(run, start=run),
    ]
    assert len({run.name, *(other.name for other in others)}) == 9
    assert str(data) not in json.dumps(run.identity)


def run_from(identity):
    """The run that a committed file describes."""
    current = {_STORED_NAMES.get(field.name, field.name): field.name for field in fields(TrainingSettings)}
    return Run(
        data=identity["task"],
        encoder=identity["encoder"],
        settings=TrainingSettings(**{current[name]: value for name, value in identity["settings"].items()}),
        exits=None if identity["exits"] is None else tuple(identity["exits"]),
        start=None if identity["start"] is None else run_from(identity["start"]),
        **{name: identity[name] for name in ("limit", "held_out", "pooling", "prune")},
    )


def test_committed_runs_keep_their_names():
    assert len(COMMITTED) > 50
    for path in COMMITTED:
        assert run_from(json.loads(path.read_text())).name == path.stem


def test_hub_names_of_different_owners_differ(plan):
    run = plan.run("trec", ROWS[0], 0)
    names = {replace(run, encoder=f"{owner}/bert").name for owner in ("a", "b")}
    assert len(names) == 2


def test_the_task_is_the_name_of_the_data():
    assert Run("a/b", "c", FAST).task == "b"


def test_presets_are_those_of_the_paper(plan):
    preset = replace(plan, presets=True)
    ours, pabee = (preset.run("trec", ROWS_BY_NAME[name], 0).settings for name in ("ours, votes", "PABEE"))
    assert (ours.learning_rate, ours.batch_size, ours.epochs, ours.diversity_weight) == (2e-5, 16, 4, 0.3)
    assert (pabee.learning_rate, pabee.resolved().diversity_weight) == (2e-5, 0.0)
    assert {len(values) for values in PRESETS.values()} == {5}
    assert set(GRID) == {"batch_size", "learning_rate", "epochs", "diversity_weight"}


def test_tasks_belong_to_tables():
    assert [group_of(task) for task in ("SST-2", "cola", "qnli", "nsmc")] == ["binary"] * 4
    assert [group_of(task) for task in ("trec", "ag_news")] == ["multiclass"] * 2
    check_tasks([*BINARY, *MULTICLASS], None)
    check_tasks(["nsmc"], "folder")
    with pytest.raises(InputError, match="task 'other' is unknown"):
        check_tasks(["other"], None)
    with pytest.raises(InputError, match="task 'nsmc' is not known to be on the hub"):
        check_tasks(["nsmc"], None)


def test_a_folder_without_a_task_is_refused(plan):
    with pytest.raises(InputError, match="has no folder 'cola'"):
        plan.run("cola", ROWS[0], 0)


def test_a_task_that_cannot_start_from_another_is_noted(plan, tmp_path):
    assert replace(plan, tasks=["trec", "rte"]).notes() == []
    alone = replace(plan, tasks=["rte"], data=str(tmp_path))
    write_toy_folder(tmp_path / "rte", train=32, others=16)
    assert alone.notes() == [f"rte starts from the pretrained encoder: '{tmp_path}' has none of: mnli, snli"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (("--held-out", "-5"), "--held-out -5 must be at least 1"),
        (("--limit", "0"), "--limit 0 must be at least 1"),
        (("--start-limit", "0"), "--start-limit 0 must be at least 1"),
        (("--seeds", "0", "0"), "seed 0 is named twice"),
        (("--methods", "PABEE", "PABEE"), "method PABEE is named twice"),
        (("--varied", "trec"), "--varied is for figures"),
    ],
)
def test_options_that_would_be_ignored_or_counted_twice_are_refused(
    run, data, encoder_folder, tmp_path, option, message
):
    arguments = ["--encoder", encoder_folder, "--data", data, "--out", tmp_path / "o", "--tasks", "trec"]
    code, _, error = run("reproduce", "multiclass", *arguments, *option)
    assert code == 2
    assert message in error
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    "option", [("--method", "pabee"), ("--schedule", "joint"), ("--layer-drop", "0.2"), ("--exit-weights", "depth")]
)
def test_settings_that_follow_from_the_rows_are_refused(run, data, encoder_folder, tmp_path, option):
    code, _, error = run("reproduce", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "o", *option)
    assert code == 2
    assert f"{option[0]} follows from the rows" in error
