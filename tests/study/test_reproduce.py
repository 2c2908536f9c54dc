"""Runs are kept by their settings, rows that differ in strategy share a run, and figures come from test texts."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from exitpoll import InputError, TrainingSettings
from exitpoll.data.progress import Progress
from exitpoll.decide.evaluate import Estimate
from exitpoll.study.clock import Clock
from exitpoll.study.comparisons import ALL, Gain, Runs, averages, contests
from exitpoll.study.execute import execute, execute_all
from exitpoll.study.figures import draw_all, draw_curves
from exitpoll.study.paper import BINARY, GRID, MULTICLASS, NAMED, OURS_ROW, PRESETS, ROWS, VARIANTS
from exitpoll.study.plan import Plan, check_tasks, group_of
from exitpoll.study.reproduce import find_all, reproduce, runs_of
from exitpoll.study.run import Run, _digest
from exitpoll.study.tables import against_paper, cells, table
from tests.tiny import write_toy_folder

FAST = TrainingSettings(epochs=1, logs_per_epoch=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name in ("trec", "rte", "snli"):
        write_toy_folder(folder / name, train=96, others=48)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("out") / "runs"


@pytest.fixture
def plan(data, encoder_folder):
    return Plan(str(encoder_folder), layers=3, data=str(data), tasks=["trec"], settings=FAST)


def test_rows_that_differ_in_their_strategy_share_a_run(plan):
    names = [run.name for run in plan.runs()]
    assert len(names) == len(set(names)) == 10  # of three layers half are two, and three quarters too
    assert all(name.startswith("trec-") for name in names)


def test_a_name_follows_from_all_settings_and_no_path(plan, data, encoder_folder):
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


def test_names_on_the_hub_are_told_apart(plan):
    run = plan.run("trec", ROWS[0], 0)
    names = {replace(run, encoder=f"{owner}/bert").name for owner in ("a", "b")}
    assert len(names) == 2


def test_from_runs_to_tables(plan, cache):
    seen = []
    outcomes, failed = execute_all(
        plan.runs(), cache, on_run=lambda progress: seen.append((progress.done, progress.total))
    )
    assert not failed
    assert seen == [(number, 10) for number in range(10)]
    bases = {run.base.name for run in plan.runs() if run.base is not None}
    assert {folder.parent.name for folder in cache.glob("*/model")} == bases  # all other models are dropped
    found = cells(plan, outcomes)
    missing = {row.name for row in ROWS} - {each.row for each in found}
    assert missing <= {"PABEE", "ours, patience", "ours, votes"}  # whose few thresholds may all be out of the range
    by_row = {each.row: each for each in found}
    assert by_row["first half"].speedup == pytest.approx(1.5)
    assert by_row["LayerDrop"].speedup == pytest.approx(1.5)
    assert by_row["HeadPrune"].speedup > 1
    for each in found:
        assert 0 <= each.score <= 1
        assert each.low <= each.score <= each.high
        if each.policy is not None:
            assert each.speedup > 1
            fitted = each.row in (
                "RightTool",
                "ours, learned",
                "ours on the full model",
            )  # to the texts that thresholds are chosen on
            assert (each.score_on_dev is None) == fitted
    written = table(found, ["trec"], [row.name for row in ROWS])
    assert written.count("\n") == len(ROWS) + 1
    assert f"(runs/{by_row['DeeBERT'].run}/run.json)" in written
    assert "nan" not in table(found, ["trec"], [row.name for row in ROWS], on_dev=True)
    paper = against_paper(found, ["trec"], [row.name for row in ROWS])
    assert "RightTool" not in paper
    above = 100 * (by_row["DeeBERT"].score_on_dev - by_row["full model"].score)
    assert f"| DeeBERT | {above:+.1f} (-0.5) |" in paper

    again = execute(plan.run("trec", OURS_ROW, 0), cache)
    assert again.summary["seconds"] == outcomes[-2].summary["seconds"]  # it was found, not done anew
    assert not (again.folder / "model").exists()
    assert (again.folder / "training.jsonl").exists()


def test_a_task_may_start_from_another(plan, cache):
    run = plan.run("rte", ROWS[0], 0)
    assert run.start is not None
    assert run.start.task == "snli"
    outcome = execute(run, cache)
    assert outcome.summary["start"]["task"] == "snli"


def test_heads_alone_leave_the_full_model_as_it_is(plan, cache):
    full, heads = (
        execute(plan.run("trec", row, 0), cache).trace("test") for row in ROWS if row.name in ("full model", "DeeBERT")
    )
    assert plan.run("trec", ROWS[5], 0).start == plan.run("trec", ROWS[0], 0)
    np.testing.assert_allclose(heads.logits[:, -1], full.logits[:, 0], atol=1e-5)


def test_three_moments_of_a_training_are_kept(plan, cache):
    outcome = execute(plan.run("trec", OURS_ROW, 0), cache)
    steps = outcome.moments()
    assert len(steps) == 2  # three steps in all: the first moments fall together
    labels = outcome.trace("calibration").labels
    for features, seen in steps.values():
        assert features.shape[:2] == (len(labels), 3)
        np.testing.assert_array_equal(seen, labels)


def test_fewer_texts_held_out(plan, cache):
    outcome = execute(replace(plan.run("trec", ROWS[0], 0), held_out=20), cache)
    assert [len(outcome.trace(split)) for split in ("calibration", "test")] == [20, 20]


def test_presets_are_those_of_the_paper(plan):
    preset = replace(plan, presets=True)
    ours, theirs = (preset.run("trec", NAMED[name], 0).settings
                    for name in ("ours, votes", "PABEE"))  # fmt: skip
    assert (ours.learning_rate, ours.batch_size, ours.epochs, ours.diversity_weight) == (2e-5, 16, 4, 0.3)
    assert (theirs.learning_rate, theirs.resolved().diversity_weight) == (2e-5, 0.0)
    assert {len(values) for values in PRESETS.values()} == {5}
    assert set(GRID) == {"batch_size", "learning_rate", "epochs", "diversity_weight"}


def test_tables_of_tasks():
    assert [group_of(task) for task in ("SST-2", "cola", "qnli", "nsmc")] == ["binary"] * 4
    assert [group_of(task) for task in ("trec", "ag_news")] == ["multiclass"] * 2
    check_tasks([*BINARY, *MULTICLASS], None)
    check_tasks(["nsmc"], "folder")
    with pytest.raises(InputError, match="task 'other' is unknown"):
        check_tasks(["other"], None)
    with pytest.raises(InputError, match="task 'nsmc' is not known to be on the hub"):
        check_tasks(["nsmc"], None)


def test_a_folder_without_a_task(plan):
    with pytest.raises(InputError, match="has no folder 'cola'"):
        plan.run("cola", ROWS[0], 0)


def test_spread_over_seeds(plan, cache):
    seeds = replace(plan, seeds=(0, 1), rows=[ROWS[0]])
    found = cells(seeds, execute_all(seeds.runs(), cache)[0])
    assert "±" in table(found, ["trec"], ["full model"])


def test_run_is_plain():
    assert Run("a/b", "c", FAST).task == "b"


def test_the_verb(run, data, encoder_folder, tmp_path):
    arguments = ["--encoder", encoder_folder, "--data", data, "--out", tmp_path / "out", "--tasks", "trec"]
    small = ["--methods", "full model", "ours, entropy", "--epochs", "1", "--logs-per-epoch", "1"]
    code, printed, error = run("reproduce", "multiclass", *arguments, *small)
    assert code == 0, error
    assert "run 2 of 2: trec-ensemble-s0-" in printed
    assert "## Multi-class tasks" in (tmp_path / "out" / "tables.md").read_text()
    found = json.loads((tmp_path / "out" / "cells.json").read_text())
    assert [each["row"] for each in found] == ["full model", "ours, entropy"]
    assert (tmp_path / "out" / "runs" / found[0]["run"] / "run.json").exists()
    code, _, error = run("reproduce", "multiclass", *arguments, "--methods", "magic")
    assert code == 2
    assert "method 'magic' is in no table" in error


# ---- beyond the tables ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def studied(data, encoder_folder, cache):
    """Two tasks, one of them with two seeds and two variants."""
    rows = [row for row in ROWS if row.name in ("full model", "RightTool", "PABEE") or row.name.startswith("ours")]
    plan = Plan(str(encoder_folder), 3, str(data), ["trec", "rte"], rows, seeds=(0, 1), settings=FAST)
    variants = replace(plan, tasks=["trec"], rows=VARIANTS[:2]).runs()
    assert {run.name for run in [*plan.runs(), *variants]} < {run.name for run in runs_of(plan, "trec")}
    runs = [run for run in plan.runs() if run.settings.seed == 0 or run.task == "trec"]
    return plan, execute_all([*runs, *variants], cache)[0]


def test_a_contest_is_fair_and_says_how_sure_it_is(studied):
    plan, outcomes = studied
    ours = NAMED["ours, votes"]
    runs = Runs(plan, outcomes)
    against_itself = list(contests(runs, {"nothing": (ours, ours)}, [1.3]))
    assert [(each.task, each.tasks, each.seeds) for each in against_itself] == [("trec", 1, 2), ("rte", 1, 1)]
    for each in against_itself:
        assert (each.gain.value, each.gain.low, each.gain.high) == (0, 0, 0)
    found = list(contests(runs))
    assert len({each.question for each in found}) > 5
    for each in found:
        assert each.gain.low <= each.gain.value <= each.gain.high
        if "full model" not in each.question:
            assert min(each.speedups) > 1
    first, second = NAMED["PABEE"], NAMED["ours, patience"]
    there, back = (next(contests(runs, {"q": pair}, [1.3])).gain.value for pair in ((first, second), (second, first)))
    assert there == pytest.approx(-back)


def test_tasks_are_averaged_whenever_they_were_run(studied):
    plan, outcomes = studied
    parts = [find_all(replace(plan, tasks=[task]), outcomes, None)["contests"] for task in plan.tasks]
    assert all(parts)
    assert {each["task"] for part in parts for each in part} == set(plan.tasks)
    one_by_one = averages(
        Gain(**{**each, "gain": Estimate(**each["gain"])}) for part in reversed(parts) for each in part
    )
    together = [each for each in find_all(plan, outcomes, None)["contests"] if each["task"] == ALL]
    assert together
    found = {(each.question, each.speedup): each for each in one_by_one}
    for each in together:
        again = asdict(found[each["question"], each["speedup"]])
        assert again["tasks"] == each["tasks"] == 2
        assert again["seeds"] == each["seeds"] == 1
        assert again["gain"] == pytest.approx(each["gain"])
        assert again["speedups"] == pytest.approx(each["speedups"])


@pytest.mark.parametrize(
    ("values", "rests_on"),
    [((0.0, 0.0, 6.0), ("c",)), ((2.0, 2.0, 2.0), ()), ((0.0, 2.0, 2.0), ("b", "c")), ((0.0, 0.0, 1.0), ())],
)
def test_an_average_says_which_tasks_it_rests_on(values, rests_on):
    for side in (1, -1):
        gains = [
            Gain("q", task, 2.0, Estimate(side * value, side * value - 1.5, side * value + 1.5), 1, 1, (2.0, 2.0), ())
            for task, value in zip("abc", values, strict=True)
        ]
        [mean] = averages(gains)
        assert mean.gain.sign == (0 if sum(values) == 1 else side)
        assert mean.rests_on == rests_on


def test_a_contest_leaves_out_what_cannot_be(studied):
    plan, outcomes = studied
    ours = NAMED["ours, patience"]
    assert not list(contests(Runs(plan, outcomes), {"too fast": (ours, ours)}, [3.5]))
    assert not list(contests(Runs(plan, []), {"nothing was run": (ours, ours)}, [1.3]))


def test_findings_and_figures(studied, tmp_path):
    plan, outcomes = studied
    found = json.loads(json.dumps(find_all(plan, outcomes, "trec")))
    trec = found["tasks"]["trec"]
    assert len(trec["exits"]) == 3
    assert trec["oracle"]["first_right"]["score"] >= max(trec["exits"])
    for front in (*trec["curves"].values(), *trec["k"].values()):
        speedup, score = np.asarray(front).T
        assert (np.diff(speedup) > 0).all()
        assert (np.diff(score) < 0).all()
    for each in trec["leaving"].values():
        assert 0 < sum(each["shares"]) <= 1
    np.testing.assert_allclose(np.sum(trec["closest"], axis=1), [0, 1, 1], atol=1e-4)
    assert np.asarray(trec["alpha"]["alpha"]).shape == (len(trec["alpha"]["steps"]), 2)
    assert set(found["states"]) == {"with diversity", "without diversity"}
    names = [each["name"] for each in found["variants"]]
    assert names == ["λ = 0.2 (ours)", "λ = 0", "λ = 0.1"]  # the second variant is ours
    assert {each["seeds"] for each in found["variants"]} == {2}
    ours, without = (each["above_ours"]["exits"] for each in found["variants"][:2])
    assert ours == {"value": 0, "low": 0, "high": 0}
    means = [np.mean(each["exits"]) for each in found["variants"][:2]]
    assert without["value"] == pytest.approx(means[1] - means[0], abs=1e-4)
    drawn = [path.name for path in draw_all(found, tmp_path)]
    assert {"curves.png", "oracle.png", "lambda.png", "values.png", "states.png", "closest-rte.png"} <= set(drawn)
    assert all((tmp_path / name).stat().st_size > 5_000 for name in drawn)


def test_a_method_looks_the_same_on_every_task():
    one = {"points": [], "metric": "accuracy", "curves": {"A": [[1, 0.9]], "B": [[2, 0.8]]}}
    other = {**one, "curves": {"B": [[2, 0.7]]}}
    first, second = draw_curves({"first": other, "second": one}).axes
    colours = [{line.get_label(): line.get_color() for line in axes.get_lines()} for axes in (first, second)]
    assert colours[0]["B"] == colours[1]["B"] != colours[1]["A"]


def test_figures_of_runs_that_are_missing(plan, cache, tmp_path):
    found = find_all(plan, [], None)
    assert [path.name for path in draw_all(found, tmp_path)] == ["values.png"]


def test_answers_for_glue(encoder_folder, tmp_path):
    folder = tmp_path / "data" / "rte"
    write_toy_folder(folder, train=96, others=48)
    lines = (folder / "test.tsv").read_text().splitlines()
    unlabelled = [line.rsplit("\t", 1)[0] for line in lines]
    (folder / "test.tsv").write_text("\n".join(unlabelled) + "\n")
    rows = [NAMED[name] for name in ("full model", "ours, entropy", "ours, votes")]
    plan = Plan(str(encoder_folder), 3, str(folder.parent), ["rte"], rows, settings=FAST)
    reproduce(plan, tmp_path, with_tables=True, varied=None)
    written = sorted(path.relative_to(tmp_path / "submissions") for path in tmp_path.rglob("RTE.tsv"))
    in_table = {each["row"] for each in json.loads((tmp_path / "cells.json").read_text())}
    assert "ours, entropy" in in_table  # that votes has a threshold in the range is not certain
    assert {str(path.parent) for path in written} == {name.replace(", ", "-").replace(" ", "-") for name in in_table}
    answers = (tmp_path / "submissions" / "ours-entropy" / "RTE.tsv").read_text().splitlines()
    assert answers[0] == "index\tprediction"
    assert [line.split("\t")[0] for line in answers[1:]] == [str(number) for number in range(len(lines) - 1)]
    classes = {line.rsplit("\t", 1)[1] for line in (folder / "train.tsv").read_text().splitlines()[1:]}
    assert {line.split("\t")[1] for line in answers[1:]} <= classes


def test_a_run_that_fails_stops_no_other(plan, cache, tmp_path, monkeypatch):
    def refuse(*_):
        raise InputError("no head can be cut")

    monkeypatch.setattr("exitpoll.study.execute.prune_heads", refuse)
    some = replace(plan, rows=[row for row in ROWS if row.name in ("HeadPrune", "full model")])
    elsewhere = tmp_path / "runs"
    outcomes, failed = execute_all(some.runs(), elsewhere)
    assert [outcome.run.prune for outcome in outcomes] == [None]
    assert list(failed.values()) == ["no head can be cut"]
    assert [each.row for each in cells(some, outcomes)] == ["full model"]


@pytest.mark.parametrize("keep", [False, True])
def test_other_data_of_the_same_name_are_refused(plan, cache, tmp_path, keep):
    run = plan.run("trec", NAMED["PABEE"], 0)  # whose weights are gone
    execute(run, cache)
    write_toy_folder(tmp_path / "trec", train=32, others=16)
    with pytest.raises(InputError, match="was done with another data of that name"):
        execute(replace(run, data=str(tmp_path / "trec")), cache, keep=keep)


def test_data_that_a_task_starts_from_are_looked_at_too(plan, data, cache, tmp_path):
    run = plan.run("rte", ROWS[0], 0)
    execute(run, cache)
    write_toy_folder(tmp_path / "snli", train=32, others=16)
    with pytest.raises(InputError, match="was done with another data of the start of that name"):
        execute(replace(run, start=replace(run.start, data=str(tmp_path / "snli"))), cache)


def test_a_run_whose_weights_are_gone_is_done_anew_and_whole(plan, cache):
    run = plan.run("trec", OURS_ROW, 1)
    first = execute(run, cache)
    assert not (first.folder / "model").exists()
    (first.folder / "seconds.json").write_text('{"seconds": 1000000}')
    again = execute(run, cache, keep=True)
    assert (again.folder / "model").exists()
    assert again.summary["seconds"] < 1000
    assert again.summary["scores"] == first.summary["scores"]
    np.testing.assert_array_equal(again.trace("test").logits, first.trace("test").logits)


def cut_off_while_recording(monkeypatch, run, cache, *, keep=False):
    def cut_off(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("exitpoll.study.execute._record", cut_off)
        with pytest.raises(KeyboardInterrupt):
            execute(run, cache, keep=keep)


def test_a_run_that_is_done_anew_stays_until_it_is_replaced(plan, tmp_path, monkeypatch):
    run, cache = plan.run("trec", OURS_ROW, 0), tmp_path / "runs"
    before = execute(run, cache)
    cut_off_while_recording(monkeypatch, run, cache, keep=True)
    assert execute(run, cache).summary == before.summary
    assert (execute(run, cache, keep=True).folder / "model").exists()


def test_answers_stay_where_a_model_is_trained_again_for_others(encoder_folder, tmp_path):
    folder = tmp_path / "data" / "rte"
    write_toy_folder(folder, train=64, others=32)
    lines = (folder / "test.tsv").read_text().splitlines()
    (folder / "test.tsv").write_text("\n".join(line.rsplit("\t", 1)[0] for line in lines) + "\n")
    rows = [NAMED[name] for name in ("full model", "DeeBERT")]
    plan = Plan(str(encoder_folder), 3, str(folder.parent), ["rte"], rows, settings=FAST)
    runs = plan.runs()
    execute_all(runs, tmp_path / "runs")  # as for figures alone
    answered = {run.name for run in runs}
    outcomes, failed = execute_all(runs, tmp_path / "runs", answered=answered)
    assert not failed
    assert [outcome.has_unlabelled for outcome in outcomes] == [True, True]


def test_data_that_changed_while_a_run_was_cut_off_are_refused(data, encoder_folder, tmp_path, monkeypatch):
    write_toy_folder(tmp_path / "trec", train=64, others=32)
    run = Plan(str(encoder_folder), 3, str(tmp_path), ["trec"], settings=FAST).run("trec", ROWS[0], 0)
    cut_off_while_recording(monkeypatch, run, tmp_path / "runs")
    write_toy_folder(tmp_path / "trec", train=32, others=16)
    _digest.cache_clear()
    with pytest.raises(InputError, match="was done with another data of that name"):
        execute(run, tmp_path / "runs")


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
def test_what_would_be_ignored_or_counted_twice_is_refused(run, data, encoder_folder, tmp_path, option, message):
    arguments = ["--encoder", encoder_folder, "--data", data, "--out", tmp_path / "o", "--tasks", "trec"]
    code, _, error = run("reproduce", "multiclass", *arguments, *option)
    assert code == 2
    assert message in error
    assert not (tmp_path / "o").exists()


def test_a_task_that_cannot_start_from_another_is_named(plan, tmp_path):
    assert replace(plan, tasks=["trec", "rte"]).notes() == []
    alone = replace(plan, tasks=["rte"], data=str(tmp_path))
    write_toy_folder(tmp_path / "rte", train=32, others=16)
    assert alone.notes() == [f"rte starts from the plain encoder: '{tmp_path}' has none of: mnli, snli"]


def test_time_is_counted_over_all_sittings(tmp_path, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("exitpoll.study.clock.time.monotonic", lambda: now[0])
    progress = Progress("all", 1, 2)
    tick = Clock(tmp_path / "seconds.json").around(None)
    now[0] += 30
    tick(progress)
    now[0] += 1000  # nothing is noted any more: it was cut off
    again = Clock(tmp_path / "seconds.json")
    now[0] += 5
    assert again.seconds == 35


def test_two_neighbouring_thresholds_are_mixed_for_a_speedup_between_them(studied):
    plan, outcomes = studied
    runs = Runs(plan, outcomes)
    row = NAMED["ours, patience"]
    choice = runs.at("trec", [row], 0, 1.2)
    mixture = choice.mixture
    assert choice.words.startswith("ours, patience: patience at ")
    assert [share > 0 for share, _ in mixture] == [True, True]
    there = runs.needed("trec", row, 0).trace("calibration")
    depth = sum(
        share / policy.decide(there).speedup for (share, _), policy in zip(mixture, choice.policies, strict=True)
    )
    assert 1 / depth == pytest.approx(1.2)
    assert runs.at("trec", [row], 0, 3.5) is None


@pytest.mark.parametrize(
    "option", [("--method", "pabee"), ("--schedule", "joint"), ("--layer-drop", "0.2"), ("--weights", "depth")]
)
def test_settings_that_follow_from_the_rows_are_refused(run, data, encoder_folder, tmp_path, option):
    code, _, error = run("reproduce", "--encoder", encoder_folder, "--data", data, "--out", tmp_path / "o", *option)
    assert code == 2
    assert f"{option[0]} follows from the rows" in error


def test_the_verb_draws(run, studied, cache, data, encoder_folder, monkeypatch):
    arguments = ["--encoder", encoder_folder, "--data", data, "--out", cache.parent, "--tasks", "trec"]
    small = ["--methods", "full model", "RightTool", "PABEE", "ours, votes", "--epochs", "1", "--logs-per-epoch", "1"]
    code, printed, error = run("reproduce", "figures", *arguments, *small, "--varied", "trec")
    assert code == 0, error
    assert "## Multi-class" not in printed
    assert "wrote" in printed
    found = json.loads((cache.parent / "findings.json").read_text())
    assert found["varied"] == "trec"
    names = [each["name"] for each in found["variants"]]
    assert names[:2] == ["λ = 0.2 (ours)", "λ = 0"]
    same = {"λ = 0.2", "weights by depth"}  # as ours is on BERT
    assert set(names[2:]) == {row.name for row in VARIANTS} - same
    assert (cache.parent / "figures" / "lambda.png").exists()
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    code, _, error = run("reproduce", "all", *arguments, *small)
    assert code == 2
    assert "drawing figures needs more packages" in error
