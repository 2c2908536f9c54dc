"""Kill workers, the command itself or a node in the middle of `exitpoll predict`: is the output as if nothing happened?

python scripts/kill_workers.py [--kills 10] [--only NAME …]

A tiny model predicts a file of toy texts in shards: with `--processes 2`, with `--cluster local`, and on a cluster of
several nodes that Ray simulates on this machine. Kills are -9, at random moments between the start of the first worker
and the end of an undisturbed job. A job whose worker or node was lost goes on by itself; a killed command is given
again with --resume. A kill fails if a row of the output differs from that of a single process, is missing or doubled,
or if a process is left. The result goes to benchmarks/results/kills.json.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from exitpoll import Engine, Policy
from exitpoll.cluster.connect import QUIET
from exitpoll.cluster.predict import RayActors
from exitpoll.data.progress import Progress
from exitpoll.engine.model_choice import ModelChoice
from exitpoll.engine.predict import predict_file
from exitpoll.engine.sharded import predict_shards
from exitpoll.files import partial_of, remove_folder
from kill_results import keep

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.exports import TinyModel  # noqa: E402 (after the path is set)
from tests.tiny import assert_same_rows, toy_rows, write_tsv  # noqa: E402

ROWS, SHARD_ROWS = 20_000, 250
LIMIT = 300.0  # seconds for a job, and for a worker to start
GONE = 90.0  # seconds for all processes of a killed command to end: two agents of Ray itself take 75
WAYS = {  # flags of predict, and what is in the command line of its workers
    "--processes": (("--processes", "2"), "exitpoll.engine.shard_worker"),
    "--cluster local": (("--cluster", "local", "--processes", "2"), "ray::ShardActor"),
}
Kill = dict[str, object]


@dataclass(frozen=True)
class Bench:
    """A tiny model, a file of texts, and what a single process predicts for them."""

    folder: Path
    chance: random.Random

    def prepare(self) -> None:
        """Write the model and the texts, and predict them undisturbed."""
        exported = TinyModel(self.folder, "bert").exported  # which loads in a moment
        exported.rename(self.model)
        Policy("max_prob", 0.5).save(self.model / "policy.json")
        write_tsv(self.source, toy_rows(ROWS))
        predict_file(Engine.load(self.model, threads=1), self.source, self.expected)

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.folder / "model"

    @property
    def source(self) -> Path:
        """The texts."""
        return self.folder / "in.tsv"

    @property
    def expected(self) -> Path:
        """What a single process predicts."""
        return self.folder / "expected.csv"

    @property
    def out(self) -> Path:
        """What a disturbed job predicts."""
        return self.folder / "out.csv"

    def start(self, flags: Sequence[str]) -> psutil.Popen:
        """Start a job, or continue it."""
        command = [sys.executable, "-m", "exitpoll", "predict", str(self.model), "--data", str(self.source)]
        command += ["--out", str(self.out), "--shard-rows", str(SHARD_ROWS), "--resume", *flags]
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        return psutil.Popen(command, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL)

    def is_same(self) -> bool:
        """Return whether the output is as expected, and remove it."""
        try:
            assert_same_rows(self.out, self.expected)
        except (AssertionError, OSError):
            return False
        finally:
            self.out.unlink(missing_ok=True)
            if partial_of(self.out).exists():
                remove_folder(partial_of(self.out))
        return True


def below(process: psutil.Process, words: str = "") -> list[psutil.Process]:
    """Return the processes that a process started, and those that they started, whose command has some words."""
    found: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                if words in " ".join(child.cmdline()):
                    found.append(child)
    return found


def left_of(processes: Iterable[psutil.Process], seconds: float = GONE) -> int:
    """Return how many processes have not ended within some seconds."""
    return len(psutil.wait_procs(list(processes), timeout=seconds)[1])


def workers_of(job: psutil.Popen, words: str) -> list[psutil.Process]:
    """Wait until a job has workers, and return them; none if it ends before."""
    end = time.monotonic() + LIMIT
    while job.poll() is None and time.monotonic() < end:
        if workers := below(job, words):
            return workers
        time.sleep(0.02)
    return []


def time_job(bench: Bench, flags: Sequence[str], words: str) -> tuple[float, float]:
    """Run an undisturbed job, and return the seconds until its first worker and until its end."""
    started = time.monotonic()
    job = bench.start(flags)
    workers_of(job, words)
    first = time.monotonic() - started
    if job.wait(LIMIT) != 0 or not bench.is_same():
        raise SystemExit(f"an undisturbed job failed: {' '.join(flags)}")
    return first, time.monotonic() - started


def kill_a_worker(bench: Bench, flags: Sequence[str], words: str, moment: float) -> Kill | None:
    """Kill a worker at a moment, and let the job end; None if it had ended before."""
    job = bench.start(flags)
    time.sleep(moment)
    is_killed = False
    with suppress(psutil.NoSuchProcess, IndexError):  # it has just ended, or the job has
        bench.chance.choice(workers_of(job, words)).kill()
        is_killed = True
    processes = below(job)
    code = job.wait(LIMIT)
    left, same = left_of(processes), bench.is_same()
    kill = {"seconds": round(moment, 1), "code": code, "left": left, "same_rows": same}
    return {**kill, "passed": code == 0 and not left and same} if is_killed else None


def kill_workers(bench: Bench, way: str, kills: int) -> Iterator[Kill]:
    """Kill a worker in each of several jobs."""
    first, whole = time_job(bench, *WAYS[way])
    while kills:
        kill = kill_a_worker(bench, *WAYS[way], bench.chance.uniform(first, whole))
        if kill is not None:
            yield kill
            kills -= 1


def kill_commands(bench: Bench, way: str, kills: int) -> Iterator[Kill]:
    """Kill the command again and again, and give it again, so that a job is continued several times until it ends."""
    flags, words = WAYS[way]
    _, whole = time_job(bench, flags, words)
    killed: list[Kill] = []  # of the job under way
    while kills or killed:
        job, moment = bench.start(flags), bench.chance.uniform(0, whole)
        if kills and is_running_after(job, moment):
            processes = below(job)
            job.kill()
            job.wait()
            killed.append({"seconds": round(moment, 1), "left": left_of(processes)})
            kills -= 1
            continue
        job.wait(LIMIT)
        same = bench.is_same()
        yield from ({**kill, "same_rows": same, "passed": same and not kill["left"]} for kill in killed)
        killed.clear()


def is_running_after(job: psutil.Popen, seconds: float) -> bool:
    """Wait for some seconds, and return whether a job still runs."""
    try:
        job.wait(seconds)
    except psutil.TimeoutExpired:
        return True
    return False


def lose_nodes(bench: Bench, kills: int) -> list[Kill]:
    """Lose a node after a random shard of every job; another one joins the cluster."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ.update(QUIET)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        lost = [lose_a_node(bench, cluster, nodes) for _ in range(kills)]
    finally:
        processes = below(psutil.Process())
        ray.shutdown()
        cluster.shutdown()
    left = left_of(processes)
    return [{**kill, "left": left, "passed": kill["same_rows"] and not left} for kill in lost]


def lose_a_node(bench: Bench, cluster: Any, nodes: list[Any]) -> Kill:
    """Predict on a cluster that loses a node on the way."""
    moment = bench.chance.randrange(1, ROWS // SHARD_ROWS - 2) * SHARD_ROWS  # rows that are done

    def lose(progress: Progress) -> None:
        if progress.done == moment:
            cluster.remove_node(nodes.pop(0), allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=1))

    choice = ModelChoice.of(bench.model)
    predict_shards(RayActors(2), choice, str(bench.source), bench.out, shard_rows=SHARD_ROWS, on_progress=lose)
    return {"rows_done": moment, "same_rows": bench.is_same()}


KILLS: dict[str, Callable[[Bench, int], Iterable[Kill]]] = {
    "workers of --processes": lambda bench, kills: kill_workers(bench, "--processes", kills),
    "command with --processes": lambda bench, kills: kill_commands(bench, "--processes", kills),
    "workers of --cluster local": lambda bench, kills: kill_workers(bench, "--cluster local", kills),
    "command with --cluster local": lambda bench, kills: kill_commands(bench, "--cluster local", kills),
    "nodes of a simulated cluster": lose_nodes,
}


def main() -> None:
    """Kill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--only", nargs="+", choices=list(KILLS), default=list(KILLS))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    code = 0
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), random.Random(chosen.seed))
        bench.prepare()
        for name in chosen.only:
            outcomes = []
            for outcome in KILLS[name](bench, chosen.kills):
                print(f"{name}: {outcome}", flush=True)
                outcomes.append(outcome)
            code |= keep(name, outcomes)
    sys.exit(code)


if __name__ == "__main__":
    main()
