"""Take the picture of a server's page for the documentation; needs a Chromium and a served model.

exitpoll serve quickstart/model --audit 1 --port 8000 &
python scripts/page_picture.py http://127.0.0.1:8000/ docs/figures/page.png
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image
from tests.report.browser import CHROMIUM, start

TEXTS = (
    "a gorgeous , witty , seductive movie .",
    "it is neither as funny nor as sad as it believes , but somebody will like it .",
    "the plot is a mess from beginning to end .",
)
COLORS = 200  # of the file, which stays small
WAIT = "new Promise((done) => setTimeout(done, {milliseconds}))"


def take(address: str, out: Path, *, width: int, height: int, dark: bool) -> None:
    """Classify some texts on the page, and save what it shows.

    Args:
        address: Of the page.
        out: The PNG file.
        width: Of the window.
        height: Of the window.
        dark: Whether in dark colors.
    """
    with tempfile.TemporaryDirectory() as profile, start(profile) as browser:
        browser.open(address, width=width, height=height, dark=dark)
        browser.run(WAIT.format(milliseconds=1500))
        browser.run(f"document.getElementById('texts').value = {json.dumps(chr(10).join(TEXTS))}")
        browser.run("document.getElementById('run').click()")
        browser.run(WAIT.format(milliseconds=8000))
        for line in browser.console:
            print(line)
        browser.picture(out)
    with Image.open(out) as picture:
        small = picture.convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    small.save(out, optimize=True)


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address")
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1100)
    parser.add_argument("--height", type=int, default=900)
    parser.add_argument("--dark", action="store_true")
    given = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("there is no Chromium")
    take(given.address, given.out, width=given.width, height=given.height, dark=given.dark)


if __name__ == "__main__":
    main()
