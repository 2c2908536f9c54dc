"""The reliability tests of the server in full: overload, kills, signals, slow clients, poison, fuzzing, memory.

python benchmarks/soak.py                 # make soak: about half an hour
python benchmarks/soak.py --share 0.25    # a quarter of all requests, kills, seconds
python benchmarks/soak.py --only 10 11    # some tests, of which no results are written

Every test has a server of its own, with a tiny model that is made on the spot. Figures and verdicts are written to
results/soak.json. Test 1, that every text is accounted for, is part of those under load; test 18, false alarms of the
audits, needs no server and is in tests/decide.
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

import soak_faults as faults
import soak_load as load
from common import RESULTS, write_results
from soak_server import make_model

TESTS: dict[int, Callable[[Path, float], dict[str, object]]] = {
    2: load.same_answers,
    3: load.overload,
    4: faults.retries,
    5: load.disconnects,
    6: faults.slow_clients,
    7: faults.fuzz,
    8: faults.odd_bytes,
    9: faults.odd_texts,
    10: faults.poison,
    11: load.kills,
    12: faults.front_killed,
    13: load.signals,
    14: faults.hung_call,
    15: load.reloads,
    16: faults.starvation,
    17: faults.slow_down,
    19: faults.memory,
    20: faults.many_connections,
    21: faults.metrics,
    22: faults.starts,
}


def main() -> None:
    """Run the tests, and write what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the full size of all tests, above 0 and up to 1")
    parser.add_argument("--only", type=int, nargs="*", default=list(TESTS), help="numbers of tests")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    share = min(max(arguments.share, 0.01), 1.0)
    results: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = make_model(Path(folder))
        for number in arguments.only:
            results[str(number)] = _run(TESTS[number], model, share)
            print(number, results[str(number)]["verdict"], json.dumps(results[str(number)]["checks"]), flush=True)
    passed = all(result["verdict"] != "failed" for result in results.values())
    if arguments.only == list(TESTS):
        write_results("soak", {"share_of_full_size": round(share, 3), "passed": passed, "tests": results})
        print(f"wrote {RESULTS / 'soak.json'}")
    raise SystemExit(0 if passed else 1)


def _run(test: Callable[[Path, float], dict[str, object]], model: Path, share: float) -> dict[str, object]:
    """Run a test; one that raises has failed."""
    before = time.monotonic()
    try:
        figures = test(model, share)
    except Exception as error:
        traceback.print_exc()
        figures = {"error": str(error)[:300], "checks": {"ran": False}}
    checks = figures["checks"]
    assert isinstance(checks, dict)
    verdict = "skipped" if not checks else "passed" if all(checks.values()) else "failed"
    about = (test.__doc__ or "").partition(": ")[2]
    return {"about": about, "verdict": verdict, "seconds": round(time.monotonic() - before, 1), **figures}


if __name__ == "__main__":
    main()
