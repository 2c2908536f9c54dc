"""The tests of the soak with programs of others: schemathesis, and the JavaScript client of Hugging Face."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from soak_bars import at_most
from soak_load import WORKERS, Figures
from soak_server import FAULTS, Faults, serving

HANGS = next(word for word, fault in FAULTS.items() if fault == "hangs")
# Statuses that schemathesis does not expect: too large, and too late for a request that asked for no time. Texts are
# refused for what no schema says: the shape of a tensor that does not fit its data.
SCHEMATHESIS = """
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 429]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]
"""


def fuzz(model: Path, share: float) -> Figures:
    """Test 7: schemathesis on all paths."""
    cases = max(10, int(500 * share))  # a path: every dialect has two or more that predict, so a thousand or more
    with serving(model, *WORKERS, "--max-queue", "20000000") as server, tempfile.NamedTemporaryFile("w") as config:
        config.write(SCHEMATHESIS)
        config.flush()
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", config.name),
            *("run", f"http://127.0.0.1:{server.port}/openapi.json", "--max-examples", str(cases), "--no-color"),
            *("--phases", "examples,coverage,fuzzing,stateful", "--request-timeout", "30"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        failed, alive, series = server.outcomes()["failed"], server.status("/health") == 200, len(server.metrics())
    lines = [line.strip() for line in done.stdout.splitlines()]
    summary = [line[:200] for line in lines if line][-12:]
    checks = {"no failures": done.returncode == 0, "no text failed": failed == 0, "up": alive}
    bars = {"series of metrics after it": at_most(series, 500)}
    return {"cases_a_path": cases, "summary": summary, "bars": bars, "checks": checks}


def retries(model: Path, share: float) -> Figures:
    """Test 4: how many requests one call of the JavaScript client makes when the server is overloaded."""
    packages = Path(os.environ.get("NODE_PATH", "node_modules"))
    if shutil.which("node") is None or not (packages / "@huggingface" / "inference").is_dir():
        return {"skipped": "needs node and @huggingface/inference (NODE_PATH)", "checks": {}}
    queue = ("--workers", "1", "--max-queue", "20", "--timeout", "20")
    with serving(model, *queue, faults=Faults()) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.ask, "POST", "/v1/predict", {"text": HANGS})  # fills the queue
        while not server.metrics()["exitpoll_queue_texts"]:
            time.sleep(0.01)
        script = (
            "const {InferenceClient} = require('@huggingface/inference');"
            f"new InferenceClient('', {{endpointUrl: 'http://127.0.0.1:{server.port}'}})"
            ".textClassification({inputs: 'w1'}).catch(error => console.log(String(error)))"
        )
        environment = {**os.environ, "NODE_PATH": str(packages)}
        done = subprocess.run(["node", "-e", script], capture_output=True, text=True, env=environment, timeout=30)
        asked = server.metrics().get('exitpoll_requests_total{code="429",route="/"}', 0)
        server.process.terminate()
        waiting.exception()
    checks = {"it was refused": asked >= 1}
    bars = {"requests of one call": at_most(asked, 2)}
    return {"error": done.stdout.strip()[:200], "bars": bars, "checks": checks}
