"""One set of bars serves training, recording, timing and prediction."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from exitpoll.data.bars import progress_bars
from exitpoll.data.progress import Progress, shown

SCORES = (0.5, 0.75)


def screen(*reports, terminal=True):
    """Return what a terminal, or a file, shows of reports of progress."""
    out = io.StringIO()
    with progress_bars(Console(file=out, force_terminal=terminal, width=150, color_system=None)) as on_progress:
        for report in reports:
            on_progress(report)
    return out.getvalue()


def test_a_bar_for_every_task():
    text = screen(Progress("exporting", 1, 4), Progress("recording the export", 64, 128))
    assert "exporting" in text
    assert "1/4" in text
    assert "recording the export" in text
    assert "64/128" in text


def test_training_shows_its_loss_and_scores():
    text = screen(Progress("joint", 5, 20, loss=0.25), Progress("joint", 10, 20, loss=0.125, exit_scores=SCORES))
    assert "training joint" in text
    assert "10/20" in text
    assert "loss 0.125 · exits 50.0 75.0" in text


def test_prediction_shows_throughput_and_depth():
    text = screen(Progress("predicting", 1000, mean_depth=3.21))
    assert "1000/?" in text
    assert " texts/s · mean depth 3.21" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_every_evaluation_is_printed_once(terminal):
    again = Progress("joint", 11, 20, loss=0.1, exit_scores=SCORES)
    text = screen(Progress("joint", 10, 20, loss=0.125, exit_scores=SCORES), again, terminal=terminal)
    assert text.count("step 10/20  loss 0.125 · exits 50.0 75.0") == 1
    assert "step 11/20" not in text


def test_a_file_has_no_bars():
    assert screen(Progress("recording", 1, 2), Progress("joint", 1, 2, loss=0.1), terminal=False) == ""


def test_python_shows_bars_on_request(capsys):
    reports = []
    for asked in (False, True):
        with shown(asked, reports.append) as on_progress:
            on_progress(Progress("joint", 10, 20, loss=0.125, exit_scores=SCORES))
        assert ("exits 50.0 75.0" in capsys.readouterr().err) == asked
    assert len(reports) == 2
