"""On Ray: the same rows, settings and answers as without it, whatever dies on the way; one Ray for all tests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from exitpoll import InputError, Policy, TrainingSettings
from exitpoll.cli.cluster import study_executor
from exitpoll.cluster import Predictor, deployment
from exitpoll.cluster.connect import QUIET, connected
from exitpoll.cluster.predict import RayActors
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.engine.predict import predict_file
from exitpoll.engine.sharded import predict_shards
from exitpoll.study.paper import ROWS_BY_NAME
from exitpoll.study.plan import Plan
from exitpoll.study.reproduce import reproduce
from exitpoll.study.search import search
from tests.tiny import assert_same_rows, toy_rows, write_toy_folder, write_tsv

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.ray

POLICY = Policy("max_prob", 0.36)
ROWS = toy_rows(60)
FAST = TrainingSettings(epochs=1, logs_per_epoch=1)
CLIENTS = 4  # of a server, at a time


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent_of(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def processes():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def workers_below(folder, name):
    """Return the workers of the Ray in a folder whose class has some name."""
    return [
        pid
        for pid in processes()
        if command_of(pid).startswith(f"ray::{name}") and str(folder) in command_of(parent_of(pid))
    ]


def wait_until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(scope="module")
def ray_folder():
    """Start Ray in a folder with a short name; at the end, none of its processes is left."""
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    os.environ.update(QUIET)
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        _temp_dir=str(folder),
    )
    yield folder
    ray.shutdown()
    wait_until(lambda: not [pid for pid in processes() if str(folder) in command_of(pid)], seconds=20)
    shutil.rmtree(folder, ignore_errors=True)


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


def test_a_search_finds_the_same_best_trial(ray_folder, plan, tmp_path):
    row = ROWS_BY_NAME["ours, votes"]
    grid = {"learning_rate": (1e-5, 1e-3, 1e30)}  # the last diverges
    found = {}
    for name, cluster in {"here": None, "ray": "auto"}.items():
        with study_executor(cluster, cluster and 2) as options:
            run = plan.run("trec", row, 0)
            found[name] = search(run, row, (1.0, 3.0), tmp_path / name, grid=grid, seeds=(0,), **options)
    # On a cluster no trial is stopped early: here the one that diverges may be, before it fails.
    assert (found["here"].settings, found["here"].score) == (found["ray"].settings, found["ray"].score)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "ray" / "runs").rglob("run.json")}
    again = search(plan.run("trec", row, 0), row, (1.0, 3.0), tmp_path / "ray", grid=grid, seeds=(0,), **options)
    assert again == found["ray"]
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "ray" / "runs").rglob("run.json")}


def test_a_reproduction_has_the_same_runs(ray_folder, plan, tmp_path):
    plan = replace(plan, rows=[ROWS_BY_NAME["ours, votes"], ROWS_BY_NAME["PABEE"]])
    tables = []
    for name, cluster in {"here": None, "ray": "auto"}.items():
        with study_executor(cluster, cluster and 2) as options:
            outcomes, failed = reproduce(plan, tmp_path / name, with_tables=True, varied=None, **options)
        assert failed == {}
        cells = json.loads((tmp_path / name / "cells.json").read_text())
        tables.append([{**cell, "seconds": 0} for cell in cells])
        assert len(outcomes) == 2
    assert tables[0] == tables[1]


# ---- serving --------------------------------------------------------------------------------------------------------


def post(url, text):
    request = urllib.request.Request(
        f"{url}/v1/predict", json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)["predictions"][0]


@pytest.fixture
def served(ray_folder):
    """The address of Ray Serve, and a function that deploys an application or updates it."""
    from ray import serve

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}", lambda app: serve.run(app, name="tests", route_prefix="/")
    serve.shutdown()


def test_policies_change_under_load_without_a_failed_request(ray_folder, served, exported_folder):
    (url, run), text = served, ROWS[0][0]
    options = {"replicas": 2, "name": "toy"}
    never, always = Policy("max_prob", None), Policy("max_prob", 0.0)
    run(deployment(exported_folder, policy=never, **options))
    deepest, replicas = post(url, text)["depth"], workers_below(ray_folder, "ServeReplica")
    assert len(replicas) == 2
    depths, is_over = [], []

    async def load():
        while not is_over:
            depths.append((await asyncio.to_thread(post, url, text))["depth"])

    async def update():
        try:
            for number in range(4):
                policy = always if number % 2 else never
                await asyncio.to_thread(run, deployment(exported_folder, policy=policy, **options))
            other = Policy("max_prob", 0.5, problem_type="multi_label_classification")  # of another model
            await asyncio.to_thread(run, deployment(exported_folder, policy=other, **options))
        finally:
            is_over.append(True)

    async def main():
        await asyncio.gather(update(), *(load() for _ in range(CLIENTS)))

    asyncio.run(main())
    assert {deepest, 1} <= set(depths)
    assert workers_below(ray_folder, "ServeReplica") == replicas  # the same as before
    with pytest.raises(InputError, match="policy: strategy 'nonsense'"):
        deployment(exported_folder, policy={**always.to_dict(), "strategy": "nonsense"})
    with pytest.raises(InputError, match="the first must not be larger than the second"):
        deployment(exported_folder, replicas=(2, 1))
    assert {post(url, text)["depth"] for _ in range(8)} == {1}  # the broken update left the last one
