"""Figures are drawn from any names, and in colours that a page can replace."""

from __future__ import annotations

from dataclasses import replace

from exitpoll.report.plots import draw_curves, save
from tests.report.samples import material


def test_a_name_with_dollar_signs_is_not_a_formula(tmp_path):
    comparison = material().comparison
    about = {**comparison.about, "data": "prices_$5_to_$10.csv"}
    save(draw_curves(replace(comparison, about=about)), tmp_path / "x.png")
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
