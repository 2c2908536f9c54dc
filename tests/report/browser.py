"""Drive a headless Chromium over its debugging pipe: widths, colour schemes, clicks, the console, pictures."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ROOT = Path(__file__).resolve().parents[2]
AXE = Path(os.environ.get("AXE_JS", ROOT / "node_modules" / "axe-core" / "axe.min.js"))  # npm install axe-core
SETTLED = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"


class Browser:
    """One page of a headless Chromium."""

    def __init__(self, commands, replies):
        """Attach to the page that the browser opens at its start."""
        self._commands, self._replies, self._number, self._session = commands, replies, 0, None
        self.console = []  # errors and warnings, as the page logs them
        self.requests = []  # addresses
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def _call(self, method, **parameters):
        """Send a command, and wait for its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        self._commands.flush()
        while (reply := self._receive()).get("id") != self._number:
            self._note(reply)
        assert "error" not in reply, reply["error"]
        return reply["result"]

    def _receive(self):
        """Read the next message."""
        content = bytearray()
        while (byte := self._replies.read(1)) not in (b"\0", b""):
            content += byte
        assert content, "the browser has ended"
        return json.loads(content)

    def _note(self, event):
        """Keep what the console shows and what is requested."""
        given = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.console.append(given["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif event.get("method") == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.console.append(str(given["args"]))
        elif event.get("method") == "Log.entryAdded":
            self.console.append(given["entry"]["text"])
        elif event.get("method") == "Network.requestWillBeSent":
            self.requests.append(given["request"]["url"])

    def open(self, page, *, width=1200, height=900, dark=False, fragment=""):
        """Open a file, or an address, in a window of some width."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url="about:blank")
        self.console.clear()
        self.requests.clear()
        self._call("Page.navigate", url=page if str(page).startswith("http") else f"file://{page}{fragment}")
        self.run("new Promise((done) => document.readyState === 'complete' ? done() : addEventListener('load', done))")
        self.run(SETTLED)

    def run(self, expression):
        """Evaluate an expression in the page, and return its value."""
        result = self._call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key):
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self._call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def drag(self, left, right, y):
        """Press at one place of the window, move in steps, and release at another."""
        self._mouse("mousePressed", left, y)
        for step in range(1, 11):
            self._mouse("mouseMoved", left + step * (right - left) / 10, y)
        self._mouse("mouseReleased", right, y)

    def _mouse(self, kind, x, y):
        self._call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def picture(self, path):
        """Save a picture of the whole page."""
        given = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        Path(path).write_bytes(base64.b64decode(given))


KEYS = {"ArrowRight": 39, "ArrowDown": 40, "ArrowLeft": 37, "Home": 36, "End": 35, "Enter": 13}


@contextmanager
def start(profile):
    """Start a browser with a profile folder of its own, and end it; it reads from descriptor 3 and writes to 4."""
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
    (commands, sending), (receiving, replies) = _pipe(), _pipe()
    process = subprocess.Popen(
        [CHROMIUM, *flags, "--remote-debugging-pipe", f"--user-data-dir={profile}"],
        preexec_fn=lambda: (os.dup2(commands, 3), os.dup2(replies, 4)),
        pass_fds=(3, 4),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(replies)
    with os.fdopen(sending, "wb") as writer, os.fdopen(receiving, "rb") as reader:
        try:
            yield Browser(writer, reader)
        finally:
            process.terminate()
            process.wait(20)


def _pipe():
    """Make a pipe whose descriptors are neither 3 nor 4."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved
