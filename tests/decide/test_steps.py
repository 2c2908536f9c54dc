"""A strategy's step equals its formula on whole traces, exit by exit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exitpoll.decide import formulas, steps
from exitpoll.decide.fits import FEATURES, VALUE_FEATURES
from exitpoll.decide.operations import NUMPY

VARIANTS: dict[str, list[dict]] = {
    "entropy": [{}, {"normalized": True}],
    "max_prob": [{}, {"temperatures": [0.5, 1.0, 2.0, 4.0, 0.7]}],
    "margin": [{}],
    "patience": [{}],
    "stable": [{"within": 0.5}],
    "static": [{}],
    "static_values": [{}],
    "learned_distance": [
        {"coefficients": np.linspace(-2, 2, 5 * len(VALUE_FEATURES)).reshape(5, -1), "intercepts": [0.1, -1, 0, 2, 1]}
    ],
    "confident_patience": [{"confidence": 0.6}],
    "js_patience": [{"divergence": 0.05}],
    "votes": [{"k": 0.0}, {"k": 0.5}, {"k": 1.0}],
    "soft_votes": [{"k": 0.25}],
    "mean": [{}],
    "geometric": [{}],
    "learned": [
        {"coefficients": np.linspace(-2, 2, 5 * len(FEATURES)).reshape(5, -1), "intercepts": [0.1, -1, 0, 2, 1]}
    ],
}


@pytest.mark.parametrize(("name", "variant"), [(name, variant) for name in VARIANTS for variant in VARIANTS[name]])
@given(seed=st.integers(0, 10_000), classes=st.integers(2, 7), scale=st.sampled_from([0.1, 1.0, 10.0, 300.0]))
@settings(max_examples=25, deadline=None)
def test_steps_equal_the_formula_exit_by_exit(name, variant, seed, classes, scale):
    generator = np.random.default_rng(seed)
    of_values = name in ("stable", "static_values", "learned_distance")
    logits = (generator.normal(size=(6, 5, 1 if of_values else classes)) * scale).astype(np.float32)
    logits[:2] = logits[:2].round()  # ties
    expected = getattr(formulas, name)(logits, **variant)
    memory: steps.Memory = {}
    for number in range(logits.shape[1]):
        step = getattr(steps, name)(NUMPY, logits[:, number], memory, number, **variant)
        near = 1e-7 * scale**2 if name == "learned_distance" else 1e-12  # a variance is the difference of two sums
        np.testing.assert_allclose(step.score, expected.score[:, number], rtol=1e-12, atol=near)
        np.testing.assert_array_equal(step.answer, expected.answer[:, number])
        memory = step.memory
