"""Where Node.js and its packages are, and the files of the demo page as a web server gives them."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.report.browser import CHROMIUM, ROOT

HERE, DEMO = Path(__file__).parent, ROOT / "docs" / "demo"
NODE = shutil.which("node")
PACKAGES = Path(os.environ.get("NODE_PATH", ROOT / "node_modules"))  # npm install onnxruntime-node onnxruntime-web
WEB = PACKAGES / "onnxruntime-web" / "dist"

needs_node = pytest.mark.skipif(NODE is None, reason="there is no Node.js")
needs_package = pytest.mark.skipif(
    NODE is None or not (PACKAGES / "onnxruntime-node").is_dir(), reason="there is no onnxruntime-node"
)
needs_web = pytest.mark.skipif(
    CHROMIUM is None or not WEB.is_dir(), reason="there is no Chromium, or no onnxruntime-web"
)


def run_node(script: Path, given: str = "") -> str:
    """Run a script, and return what it prints."""
    environment = {**os.environ, "NODE_PATH": str(PACKAGES)}
    done = subprocess.run(
        [NODE, script], input=given, capture_output=True, encoding="utf-8", env=environment, cwd=script.parent
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_site(site: Path, export: Path) -> Path:
    """Put the page, an export and a local copy of onnxruntime-web into a folder."""
    shutil.copytree(DEMO, site / "demo")
    (site / "model").symlink_to(export)
    for runtime in (site / "runtime", site / "demo" / "runtime"):
        runtime.symlink_to(WEB)
    return site


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        """Log nothing."""


@contextmanager
def serve(folder: Path):
    """Serve a folder on this machine alone, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
