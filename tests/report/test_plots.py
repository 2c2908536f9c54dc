"""Figures are drawn from any names, and lines can be told apart."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from exitpoll import InputError
from exitpoll.report.plots import REST, draw_agreement, draw_curves, draw_depths, draw_parts, save
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
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [f"{runtime}, batch size {size}" for runtime in ("torch", "onnx") for size in (1, 32)]
    ends = [bar.get_x() + bar.get_width() for bar in axes.containers[-1]]
    assert ends == pytest.approx([62.5, 62.5, 40.0, 40.0])  # the engine's time, of 2 milliseconds


def test_a_report_draws_the_policy_and_the_best_in_colour_and_the_rest_in_grey():
    axes = draw_curves(report().comparison, (2.0, 0.9), "max_prob").axes[0]
    colors = {str(line.get_label()): line.get_color() for line in axes.get_lines()}
    assert colors["max_prob"] != REST["color"] != colors["best of all strategies"]
    assert {colors["votes"], colors["entropy"]} == {REST["color"]}
    assert "best of all strategies" not in [
        line.get_label() for line in draw_curves(report().comparison).axes[0].get_lines()
    ]


def test_svg_files(tmp_path):
    save(draw_agreement(LAYERS, np.eye(3)), tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"drawing figures needs more packages: .*exitpoll\[plots\]"):
        draw_depths({1: 1})
