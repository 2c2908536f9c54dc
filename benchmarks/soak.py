"""The reliability tests of the server in full: overload, kills, signals, slow clients, poison, fuzzing, memory.

python benchmarks/soak.py                 # make soak: about 25 minutes
python benchmarks/soak.py --share 0.25    # a quarter of all requests, kills, seconds
python benchmarks/soak.py --only 10 11    # some tests, whose results replace earlier ones
python benchmarks/soak.py --resume        # those that have no result of this size yet, or failed

Every test has a server of its own, with a tiny model that is made on the spot. Figures and verdicts are written to
results/soak.json after every test. A test passes if its checks hold and its figures keep their limits; where a limit is
looser than the bar to reach, the results say both. Test 1, that every text is accounted for, is part of those under
load; test 18, false alarms of the audits, needs no server and is in tests/decide.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

import soak_faults as faults
import soak_limits as limits
import soak_load as load
import soak_programs as programs
import soak_signals as signals
from common import RESULTS, write_results
from soak_bars import WHY_LOOSER
from soak_model import make_model

Test = Callable[[Path, float], dict[str, object]]
TESTS: dict[int, Test] = {
    2: load.same_answers,
    3: load.overload,
    4: programs.retries,
    5: load.disconnects,
    6: faults.slow_clients,
    7: programs.fuzz,
    8: faults.odd_bytes,
    9: faults.odd_texts,
    10: faults.poison,
    11: load.kills,
    12: signals.front_killed,
    13: signals.signals,
    14: faults.hung_call,
    15: load.reloads,
    16: load.starvation,
    17: limits.slow_down,
    19: limits.memory,
    20: limits.many_connections,
    21: limits.metrics,
    22: signals.starts,
}


def main() -> None:
    """Run the tests, and write what came of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the full size of all tests, above 0 and up to 1")
    parser.add_argument("--only", type=int, nargs="+", choices=list(TESTS), help="numbers of tests")
    parser.add_argument("--resume", action="store_true", help="leave out tests that have passed at this size")
    parser.add_argument("--out", type=Path, default=RESULTS / "soak.json")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    share = round(min(max(arguments.share, 0.01), 1.0), 3)
    results = _earlier(arguments.out) if arguments.only or arguments.resume else {}
    chosen = arguments.only or list(TESTS)
    if arguments.resume:
        chosen = [number for number in chosen if not _is_done(results.get(str(number)), share)]
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        for number in chosen:
            result = results[str(number)] = _run(TESTS[number], model, share)
            _write(arguments.out, results)
            print(number, result["verdict"], f"{result['seconds']} s", json.dumps(_shown(result)), flush=True)
    raise SystemExit(0 if all(results[str(number)]["verdict"] != "failed" for number in chosen) else 1)


def _earlier(path: Path) -> dict[str, dict[str, Any]]:
    """Return the results that are there."""
    return json.loads(path.read_text(encoding="utf-8"))["tests"] if path.exists() else {}


def _is_done(result: dict[str, Any] | None, share: float) -> bool:
    """Return whether a test need not be run again."""
    return result is not None and result["verdict"] != "failed" and result["share"] == share


def _write(path: Path, results: dict[str, dict[str, Any]]) -> None:
    """Write the results so far, in the order of the tests."""
    ordered = {str(number): results[str(number)] for number in TESTS if str(number) in results}
    bars = [bar for result in ordered.values() for bar in result.get("bars", {}).values()]
    content = {
        "cores": len(psutil.Process().cpu_affinity()),
        "complete": len(ordered) == len(TESTS),
        "passed": all(result["verdict"] != "failed" for result in ordered.values()),
        "bars": len(bars),
        "bars_reached": sum(bar["reached"] for bar in bars),
        "why_some_limits_are_looser": WHY_LOOSER,
        "tests": ordered,
    }
    write_results(path, content, show=False)


def _run(test: Test, model: Path, share: float) -> dict[str, Any]:
    """Run a test; one that raises has failed."""
    before = time.monotonic()
    try:
        figures = test(model, share)
    except Exception as error:
        traceback.print_exc()
        figures = {"error": str(error)[:300], "checks": {"ran": False}}
    seconds = round(time.monotonic() - before, 1)
    about = (test.__doc__ or "").partition(": ")[2]
    return {"about": about, "verdict": _verdict(figures), "share": share, "seconds": seconds, **figures}


def _verdict(figures: dict[str, Any]) -> str:
    """Return whether checks and limits hold; a test that says nothing was skipped."""
    held = [*figures["checks"].values(), *(bar["held"] for bar in figures.get("bars", {}).values())]
    return "skipped" if not held else "passed" if all(held) else "failed"


def _shown(result: dict[str, Any]) -> dict[str, object]:
    """Return the checks that failed, and the figures of all bars."""
    failed = [name for name, holds in result["checks"].items() if not holds]
    bars = {name: bar["value"] if bar["held"] else bar for name, bar in result.get("bars", {}).items()}
    return {"failed": failed, **bars} if failed else bars


if __name__ == "__main__":
    main()
