"""Kill one of two training processes at a random step, again and again, and resume: does it end with the same losses?

python scripts/kill_ranks.py [--kills 10]

Every kill is of a new training of a tiny model, in its first and its second stage in turn: kill -9 of a random process
after a random step, then --resume. It
fails if the launcher returned 0 or took more than 60 s to end, if a process was left, or if a loss differs from
those of an undisturbed training. The result goes to benchmarks/results/kills.json.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from kill_results import keep

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.tiny import tiny_encoder, tiny_tokenizer  # noqa: E402 (after the path is set)

STAGES, STEPS = 2, 14  # and of each
LIMIT = 60.0  # seconds
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@dataclass(frozen=True)
class Launch:
    """Result of a launch."""

    code: int
    seconds: float  # since a process was killed, or since the start
    errors: str


def launch(encoder: Path, out: Path, notes: Path, *options: str) -> Launch:
    """Train in two processes."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [*TORCHRUN, str(ROOT / "tests" / "training" / "worker.py"), *map(str, (encoder, out, notes)), *options]
    started = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    killed = notes / "killed"
    seconds = time.time() - (killed.stat().st_mtime if killed.exists() else started)
    return Launch(done.returncode, seconds, done.stderr)


def kill_once(encoder: Path, folder: Path, expected: str, rank: int, stage: int, step: int) -> dict[str, object]:
    """Kill one process, resume, and describe both."""
    folder.mkdir()
    killed = launch(encoder, folder / "m", folder, "--kill", f"{rank}:{stage}:{step}")
    left = sum(Path("/proc", (folder / f"pid-{number}").read_text()).exists() for number in (0, 1))
    (folder / "killed").unlink()
    resumed = launch(encoder, folder / "m", folder, "--resume")
    same = resumed.code == 0 and (folder / "m" / "training.jsonl").read_text() == expected
    if not same:
        print(killed.errors, resumed.errors, sep="\n--- resumed:\n", file=sys.stderr)
    outcome = {
        "rank": rank,
        "stage": stage,
        "step": step,
        "code": killed.code,
        "seconds_to_end": round(killed.seconds, 1),
    }
    passed = killed.code != 0 and killed.seconds < LIMIT and not left and same
    return {**outcome, "left": left, "code_of_resumed": resumed.code, "same_losses": same, "passed": passed}


def main() -> None:
    """Kill and resume."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    chance, outcomes = random.Random(chosen.seed), []
    with tempfile.TemporaryDirectory() as scratch:
        encoder, undisturbed = Path(scratch) / "encoder", Path(scratch) / "undisturbed"
        tiny_encoder("bert").save_pretrained(encoder)
        tiny_tokenizer().save_pretrained(encoder)
        undisturbed.mkdir()
        launch(encoder, undisturbed / "m", undisturbed)
        expected = (undisturbed / "m" / "training.jsonl").read_text()
        for number in range(chosen.kills):
            rank, step = chance.randrange(2), chance.randrange(1, STEPS + 1)
            stage = 1 + number % STAGES
            outcomes.append(kill_once(encoder, Path(scratch) / str(number), expected, rank, stage, step))
            print(outcomes[-1], flush=True)
    sys.exit(keep("training processes", outcomes))


if __name__ == "__main__":
    main()
