"""On Ray: the same rows, settings and tables as without it, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from exitpoll import InputError, Policy, TrainingSettings
from exitpoll.cli.cluster import study_executor
from exitpoll.cluster import Predictor, predict, study
from exitpoll.cluster.connect import connected
from exitpoll.cluster.predict import RayActors
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.engine.predict import predict_file
from exitpoll.engine.sharded import predict_shards
from exitpoll.study.paper import ROWS_BY_NAME
from exitpoll.study.plan import Plan
from exitpoll.study.search import STORAGE, search
from tests.cluster.local_ray import command_of, processes_in, wait_until, workers_below
from tests.tiny import assert_same_rows, toy_rows, write_toy_folder, write_tsv

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray

POLICY = Policy("max_prob", 0.36)
ROWS = toy_rows(60)
FAST = TrainingSettings(epochs=1, logs_per_epoch=1)


def test_processes_are_found_under_any_name_and_parent(ray_folder):
    """Or the check that none is left could not fail."""

    class Parent:
        def start(self):
            code = "import time; print(flush=True); time.sleep(60)"
            return os.getpid(), subprocess.Popen([sys.executable, "-c", code], start_new_session=True).pid

    parent = ray.remote(num_cpus=0)(Parent).remote()
    worker, orphan = ray.get(parent.start.remote())
    try:
        assert str(ray_folder) not in command_of(worker) + command_of(orphan)
        assert {worker, orphan} <= set(processes_in(ray_folder))
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker not in processes_in(ray_folder), seconds=20)
        assert orphan in processes_in(ray_folder)
    finally:
        os.kill(orphan, signal.SIGKILL)


@pytest.fixture(scope="module")
def choice(exported_folder):
    return ModelChoice.of(exported_folder)


@pytest.fixture(scope="module")
def engine(choice):
    return choice.load(POLICY)


@pytest.fixture
def whole(engine, tmp_path):
    """The rows, and what one process writes for them."""
    source = write_tsv(tmp_path / "in.tsv", ROWS)
    predict_file(engine, source, tmp_path / "whole.csv")
    return source, (tmp_path / "whole.csv").read_bytes()


def test_workers_that_are_killed_lose_and_double_nothing(ray_folder, choice, whole, tmp_path):
    source, expected = whole
    killed = []

    def kill(progress):
        victims = [pid for pid in workers_below(ray_folder, "ShardActor") if pid not in killed]
        if progress.done in (8, 24, 40) and victims:
            os.kill(victims[-1], signal.SIGKILL)
            killed.append(victims[-1])

    options = {"policy": POLICY, "shard_rows": 4, "on_progress": kill}
    with connected("auto", 2) as workers:
        done = predict_shards(RayActors(workers), choice, str(source), tmp_path / "out.csv", **options)
    assert len(killed) >= 2
    assert done.rows == 60
    assert (tmp_path / "out.csv").read_bytes() == expected
    assert not (tmp_path / "out.csv.partial").exists()
    wait_until(lambda: not workers_below(ray_folder, "ShardActor"), seconds=10)


def test_more_workers_than_the_cluster_has_cpus_are_refused(ray_folder):
    with (
        pytest.raises(InputError, match="5 workers of one thread need 5 CPUs, and the cluster has 2"),
        connected("auto", 5),
    ):
        raise AssertionError


def test_a_job_that_finds_all_cpus_taken_is_refused(ray_folder, choice, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "START_SECONDS", 2.0)

    class Other:
        def start(self):
            pass

    other = ray.remote(num_cpus=2)(Other).remote()
    ray.get(other.start.remote())
    with pytest.raises(
        InputError, match="no worker has started within 2 s: the cluster has 2 CPUs, of which 0 are free"
    ):
        predict_shards(RayActors(2), choice, str(whole[0]), tmp_path / "out.csv", policy=POLICY)
    ray.kill(other)
    assert not (tmp_path / "out.csv.partial").exists()


def test_a_command_with_a_ray_of_its_own_and_all_its_cpus(exported_folder, whole, tmp_path):
    POLICY.save(tmp_path / "policy.json")
    words = ["predict", exported_folder, "--data", whole[0], "--out", tmp_path / "out.csv", "--shard-rows", "10"]
    words += ["--policy", tmp_path / "policy.json", "--cluster", "local", "--processes", len(os.sched_getaffinity(0))]
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        environment = os.environ | {"RAY_TMPDIR": folder, "RAY_ADDRESS": "127.0.0.1:1"}  # which local ignores
        command = [sys.executable, "-m", "exitpoll", *map(str, words)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=80)
        assert done.returncode == 0, done.stderr
        assert list(Path(folder).glob("ray/session_*"))  # it is there that Ray was started
        wait_until(lambda: not processes_in(folder), seconds=20)
    assert (tmp_path / "out.csv").read_bytes() == whole[1]


def test_a_killed_driver_can_be_resumed_without_ray(ray_folder, exported_folder, engine, tmp_path, run):
    source, out = write_tsv(tmp_path / "in.tsv", toy_rows(4000)), tmp_path / "out.csv"
    POLICY.save(tmp_path / "policy.json")
    words = ["predict", exported_folder, "--data", source, "--out", out, "--policy", tmp_path / "policy.json"]
    words = [*map(str, words), "--shard-rows", "20"]
    address = ray.get_runtime_context().gcs_address
    driver = subprocess.Popen([sys.executable, "-m", "exitpoll", *words, "--cluster", address, "--processes", "1"])
    wait_until(lambda: len(list((tmp_path / "out.csv.partial" / "done").glob("*.json"))) > 3)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    wait_until(lambda: not workers_below(ray_folder, "ShardActor"))
    code, _, err = run(*words, "--processes", "1", "--resume")
    assert (code, err) == (0, "")
    predict_file(engine, source, tmp_path / "whole.csv")
    assert_same_rows(out, tmp_path / "whole.csv")


def test_errors_of_workers_are_one_line(ray_folder, choice, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "good film"}\n' * 9 + '{"text": ""}\n')
    with pytest.raises(InputError, match="line 10 is empty, or neither a text nor a pair"):
        predict_shards(RayActors(1), choice, str(source), tmp_path / "out.csv", policy=POLICY, shard_rows=5)


def test_a_predictor_is_a_step_of_a_pipeline(ray_folder, exported_folder, engine):
    import ray.data

    texts = [row[0] for row in ROWS]
    options = {"batch_size": 30, "compute": ray.data.ActorPoolStrategy(size=1), "num_cpus": 0.5}
    dataset = ray.data.from_items([{"id": number, "text": text} for number, text in enumerate(texts)])
    dataset = dataset.map_batches(
        Predictor, fn_constructor_args=(str(exported_folder),), fn_constructor_kwargs={"policy": POLICY}, **options
    )
    rows = sorted(dataset.take_all(), key=lambda row: row["id"])
    expected = engine(texts)
    assert [row["predicted"] for row in rows] == [prediction.label for prediction in expected]
    assert [row["depth"] for row in rows] == [prediction.depth for prediction in expected]
    with pytest.raises(InputError, match="there is a column 'depth' already"):
        Predictor(exported_folder, policy=POLICY)({"text": texts, "depth": texts})


# ---- search and reproduction ----------------------------------------------------------------------------------------


@pytest.fixture
def plan(tmp_path, encoder_folder):
    write_toy_folder(tmp_path / "data" / "trec", train=48, others=24)
    return Plan(str(encoder_folder), layers=3, data=str(tmp_path / "data"), tasks=["trec"], settings=FAST)


def summaries_in(folder):
    """Return when the runs in a folder were completed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}


def drawn_in(folder):
    """Return the settings of all trials of a search, and whether Optuna's sampler chose them."""
    import optuna

    storage = f"sqlite:///{folder / STORAGE}"
    [name] = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).get_trials()
    return [trial.params for trial in trials], not any("fixed_params" in trial.system_attrs for trial in trials)


@pytest.mark.parametrize("budget", [None, 3])
def test_a_search_finds_the_same_best_trial(ray_folder, plan, tmp_path, budget):
    """Of a whole grid, and of points that Optuna's sampler draws."""
    row = ROWS_BY_NAME["ours, votes"]
    whole = {"learning_rate": (1e-5, 1e-3, 1e30)}  # the last diverges
    larger = {"learning_rate": (1e-5, 1e-4, 1e-3, 3e-3), "batch_size": (8, 16, 24)}
    grid = larger if budget else whole
    found = {}
    for name, cluster in {"here": None, "ray": "auto"}.items():
        with study_executor(cluster, cluster and 2) as options:
            run, options = plan.run("trec", row, 0), {**options, "grid": grid, "seeds": (0,), "stop": "never"}
            found[name] = search(run, row, (1.0, 3.0), tmp_path / name, budget=budget, **options)
    assert found["here"] == found["ray"]
    assert (found["ray"].trials, found["ray"].pruned) == (3, 0 if budget else 1)
    assert drawn_in(tmp_path / "here") == drawn_in(tmp_path / "ray")
    assert drawn_in(tmp_path / "ray")[1] == bool(budget)
    before = summaries_in(tmp_path / "ray")
    assert search(run, row, (1.0, 3.0), tmp_path / "ray", budget=budget, **options) == found["ray"]
    assert summaries_in(tmp_path / "ray") == before


def test_a_trial_that_fails_ends_alone_and_is_repeated(ray_folder, plan, tmp_path, monkeypatch, caplog):
    """By an exception, and by the end of its worker."""
    execute_there, row = study._execute, ROWS_BY_NAME["ours, votes"]

    def fail(run, *given):
        if run.settings.learning_rate == 1e-4:
            raise LookupError("this is broken")
        if run.settings.learning_rate == 1e-3:
            os.kill(os.getpid(), signal.SIGKILL)
        return execute_there(run, *given)

    options = {"grid": {"learning_rate": (1e-3, 1e-4, 1e-5)}, "seeds": (0,), "stop": "never", "workers": 2}
    run = plan.run("trec", row, 0)
    with monkeypatch.context() as patch:
        patch.setattr(study, "_execute", fail)
        patch.setattr(study, "RETRIES", 0)
        found = search(run, row, (1.0, 3.0), tmp_path, executor=study.RayRuns(), **options)
    assert (found.trials, found.settings) == (1, {"learning_rate": 1e-5})
    first, second = sorted(record.getMessage() for record in caplog.records if "a trial failed" in record.message)
    assert "ended 1 workers; too little memory?" in first + second
    assert "failed with LookupError: this is broken" in first + second
    assert search(run, row, (1.0, 3.0), tmp_path, **{**options, "workers": 1}).trials == 3  # without Ray


def test_a_run_is_stopped_on_the_way(ray_folder, plan, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "WATCH_SECONDS", 0.01)
    plan, seen = replace(plan, settings=replace(FAST, epochs=200)), []

    def stop(progress):
        seen.append(progress)
        raise TimeoutError

    run = plan.run("trec", ROWS_BY_NAME["PABEE"], 0)
    with pytest.raises(TimeoutError):
        study.RayRuns()(run, tmp_path / "runs", on_progress=stop)
    assert len(seen) == 1
    assert len(seen[0].exit_scores) == 3
    assert not summaries_in(tmp_path)
    assert 0 < len((tmp_path / "runs" / run.name / "model.partial" / "training.jsonl").read_text().splitlines()) < 200


def test_a_killed_search_repeats_no_finished_trial(ray_folder, plan, encoder_folder, tmp_path, run):
    words = ["search", "--encoder", encoder_folder, "--data", f"{plan.data}/trec", "--out", tmp_path / "s"]
    words = [*map(str, words), *("--budget", "3", "--seeds", "0", "--logs-per-epoch", "1", "--method", "PABEE")]
    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "exitpoll", *words, "--cluster", "auto", "--processes", "1"]
    driver = subprocess.Popen(command, env=os.environ | {"RAY_ADDRESS": address})  # as `ray job submit` does
    wait_until(lambda: summaries_in(tmp_path))
    driver.kill()
    driver.wait()
    before = summaries_in(tmp_path)
    code, printed, err = run(*words, "--cluster", "local", "--processes", "2", "--stop-trials", "asha")
    assert code == 0, err
    assert "best of 3 trials" in printed
    assert before.items() <= summaries_in(tmp_path).items()


def test_a_reproduction_has_the_same_tables(ray_folder, plan, encoder_folder, tmp_path, run):
    words = ["reproduce", "multiclass", "--encoder", encoder_folder, "--data", plan.data, "--tasks", "trec"]
    words += ["--methods", "ours, votes", "PABEE", "--epochs", "1", "--logs-per-epoch", "1"]
    tables = []
    for name, options in {"here": [], "ray": ["--cluster", "local", "--processes", "2"]}.items():
        code, printed, err = run(*words, "--out", tmp_path / name, *options)
        assert code == 0, err
        assert "run 2 of 2" in printed
        cells = json.loads((tmp_path / name / "cells.json").read_text())
        tables.append([{**cell, "seconds": 0} for cell in cells])
    assert tables[0] == tables[1]
