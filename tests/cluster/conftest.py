"""One Ray for all tests, which end in time: each has a limit, and all together are to stay below another."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from exitpoll.cluster.connect import QUIET
from tests.cluster.local_ray import processes_in, wait_until

LIMIT = 300  # seconds, of a test or of starting Ray; what waits for ever in silence fails here
WHOLE = 150  # seconds, of all tests on Ray
durations = []  # of tests on Ray, and of starting and ending it


@contextmanager
def limited(seconds=LIMIT):
    """Fail a block that takes too long, and note how long it took."""

    def give_up(*_):
        raise TimeoutError(f"not done within {seconds} s")

    started, before = time.monotonic(), signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        durations.append(time.monotonic() - started)


@pytest.fixture(autouse=True)
def time_limit(request):
    if request.node.get_closest_marker("ray") is None:
        yield
        return
    with limited():
        yield


@pytest.fixture(scope="package")
def ray_folder():
    """Start Ray, one for all tests, in a folder with a short name; at the end, none of its processes is left."""
    ray = pytest.importorskip("ray")
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    os.environ.update(QUIET)
    with limited():
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
    with limited():
        ray.shutdown()
        wait_until(lambda: not processes_in(folder), seconds=20)
    shutil.rmtree(folder, ignore_errors=True)


def pytest_terminal_summary(terminalreporter):
    """Report how long the tests on Ray took; a busy machine must not fail them."""
    if durations:
        excess = f", more than {WHOLE} s" if sum(durations) > WHOLE else ""
        terminalreporter.write_line(f"tests on Ray took {sum(durations):.0f} s{excess}")
