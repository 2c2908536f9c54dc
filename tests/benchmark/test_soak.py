"""The soak: bars, and the table of its results."""

from __future__ import annotations

import pytest
from benchmarks.soak_bars import at_least, at_most
from benchmarks.soak_tables import reliability_table


@pytest.mark.parametrize(
    ("bar", "reached", "held"),
    [
        (at_most(5.0, 5.0), True, True),
        (at_most(5.1, 5.0), False, False),
        (at_most(7.0, 5.0, 8.0), False, True),
        (at_most(4.0, 5.0, 3.0), True, True),  # a limit is never tighter than the bar
        (at_least(0.95, 0.95), True, True),
        (at_least(0.9, 0.95, 0.85), False, True),
        (at_least(0.8, 0.95, 0.85), False, False),
    ],
)
def test_bars(bar, reached, held):
    assert (bar["reached"], bar["held"]) == (reached, held)


def test_the_table_says_both_limits():
    bars = {"refusal, ms": at_most(70.0, 50.0, 100.0), "throughput": at_least(0.97, 0.95)}
    test = {"about": "too much", "verdict": "passed", "checks": {"a": True, "b": True}, "bars": bars}
    skipped = {"about": "a client", "verdict": "skipped", "checks": {}}
    results = {"cores": 2, "bars": 2, "bars_reached": 1, "tests": {"3": test, "4": skipped}}
    table = reliability_table(results)
    row = "| 3: too much | 2 of 2 | refusal, ms: 70 (≤ 50 [100]); throughput: 0.97 (≥ 0.95) | passed |"
    assert row in table.splitlines()
    assert "| 4: a client | – | – | skipped |" in table.splitlines()
    assert "On 2 cores 1 of 2 figures reach their bar" in table
    assert "make soak" in reliability_table(None)
