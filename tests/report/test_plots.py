"""Figures are drawn from any names, and in colours that a page can replace."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from exitpoll import InputError
from exitpoll.report.plots import as_svg, draw_agreement, draw_curves, draw_depths, draw_exits, draw_parts, save
from tests.report.samples import LAYERS, benchmark, report

PNG = b"\x89PNG"


def test_a_name_with_dollar_signs_is_not_a_formula(tmp_path):
    comparison = report().comparison
    about = {**comparison.about, "data": "prices_$5_to_$10.csv"}
    save(draw_curves(replace(comparison, about=about)), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(PNG)


def test_the_chosen_policy_and_the_oracles_are_inside_the_axes():
    axes = draw_curves(report().comparison, chosen=(99.0, 0.0)).axes[0]
    labels = [str(line.get_label()) for line in axes.get_lines()]
    [number] = [number for number, label in enumerate(labels) if label.startswith("this policy (0.0 at 99.00×)")]
    [[x, y]] = np.asarray(axes.get_lines()[number].get_xydata())
    assert (x, y) == (axes.get_xlim()[1], axes.get_ylim()[0])
    assert sum(label.startswith("oracle") for label in labels) == len(report().comparison.oracles)


def test_shares_of_texts_by_depth():
    axes = draw_depths({1: 30, 2: 10, 4: 0}).axes[0]
    assert [bar.get_height() for bar in axes.containers[0]] == [75.0, 25.0, 0.0]


def test_parts_are_relative_to_plain_transformers():
    axes = draw_parts(benchmark()).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["torch, batch size 1", "torch, batch size 32"]
    assert [bar.get_width() for bar in axes.containers[0]] == [50.0, 50.0]  # 1 of 2 milliseconds


def test_an_svg_takes_the_colour_of_the_page():
    draw = partial(draw_exits, LAYERS, {"accuracy": np.array([0.5, 0.7, 0.9])})
    svg = as_svg(draw, "exits", "Score of every exit")
    assert svg.startswith('<svg role="img" aria-label="Score of every exit"')
    assert "currentColor" in svg
    assert "#010203" not in svg
    assert all(name.startswith("exits-") for name in re.findall(r'\bid="([^"]+)"', svg))


def test_svg_files(tmp_path):
    save(draw_agreement(LAYERS, np.eye(3)), tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"drawing figures needs more packages: .*exitpoll\[plots\]"):
        draw_depths({1: 1})
