"""Kill one of two training processes at a random step, again and again, and resume: does it end with the same losses?

python scripts/kill_ranks.py [--kills 10] [--out benchmarks/results/killed_ranks.json]

Every kill is of a new training of a tiny model: kill -9 of a random process after a random step, then --resume. It
fails if the launcher returned 0 or took more than 60 s to end, if a process was left, or if a loss differs from
those of an undisturbed training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.tiny import tiny_encoder, tiny_tokenizer  # noqa: E402 (after the path is set)

STEPS = 14  # of the first stage
LIMIT = 60.0  # seconds
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def launch(encoder: Path, out: Path, notes: Path, *options: str) -> tuple[int, float]:
    """Train in two processes; return exit code and seconds since a process was killed, or since the start."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [*TORCHRUN, str(ROOT / "tests" / "training" / "worker.py"), *map(str, (encoder, out, notes)), *options]
    started = time.time()
    code = subprocess.run(command, env=environment, capture_output=True).returncode
    killed = notes / "killed"
    return code, time.time() - (killed.stat().st_mtime if killed.exists() else started)


def kill_once(encoder: Path, folder: Path, expected: str, rank: int, step: int) -> dict[str, object]:
    """Kill one process, resume, and describe both."""
    folder.mkdir()
    code, seconds = launch(encoder, folder / "m", folder, "--kill", f"{rank}:{step}")
    left = sum(Path("/proc", (folder / f"pid-{number}").read_text()).exists() for number in (0, 1))
    (folder / "killed").unlink()
    resumed, _ = launch(encoder, folder / "m", folder, "--resume")
    same = resumed == 0 and (folder / "m" / "training.jsonl").read_text() == expected
    outcome = {"rank": rank, "step": step, "code": code, "seconds_to_end": round(seconds, 1), "left": left}
    return {**outcome, "same_losses": same, "passed": code != 0 and seconds < LIMIT and not left and same}


def main() -> None:
    """Kill and resume."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "killed_ranks.json")
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
            outcomes.append(kill_once(encoder, Path(scratch) / str(number), expected, rank, step))
            print(outcomes[-1], flush=True)
    passed = sum(bool(outcome["passed"]) for outcome in outcomes)
    chosen.out.write_text(json.dumps({"passed": passed, "kills": outcomes}, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if passed == len(outcomes) else 1)


if __name__ == "__main__":
    main()
