"""Values worked out by hand; the paper's identities; gradients; precision."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from exitpoll import TrainingSettings
from exitpoll.errors import InputError
from exitpoll.models.losses import (
    MULTI_LABEL,
    REGRESSION,
    closest_earlier,
    cross_entropies,
    distillation,
    diversity,
    ensemble,
    exit_losses,
    relevancy,
    self_distillation,
)
from exitpoll.training.objectives import loss_for

LN2 = math.log(2)
HALF_FIRST, HALF_SECOND = [1 / 2, 1 / 4, 1 / 4], [1 / 4, 1 / 2, 1 / 4]
# Two texts, three exits, three classes. Between a distribution and itself CE is 1.5 ln 2, between the two 1.75 ln 2.
LOGITS = torch.tensor(
    [[HALF_FIRST, HALF_SECOND, HALF_FIRST], [HALF_SECOND, HALF_FIRST, HALF_FIRST]], dtype=torch.float64
).log()
LABELS = torch.tensor([0, 1])  # CE with the label: 1 2 1 and 1 2 2, in ln 2


def in_ln2(loss):
    return loss.item() / LN2


class TestRelevancy:
    def test_uniform(self):
        assert in_ln2(relevancy(LOGITS, LABELS)) == pytest.approx((4 + 5) / 2)

    def test_depth(self):
        # α = 1/2, 1, 3/2: (1/2 + 2 + 3/2 + 1/2 + 2 + 3) / 2
        assert in_ln2(relevancy(LOGITS, LABELS, exit_weights="depth")) == pytest.approx(4.75)

    @given(exits=st.integers(1, 30))
    def test_depth_weights_sum_to_the_exits(self, exits):
        logits = torch.zeros(1, exits, 2, dtype=torch.float64)  # every CE is ln 2
        assert in_ln2(relevancy(logits, torch.tensor([0]), exit_weights="depth")) == pytest.approx(exits, rel=1e-6)

    def test_multi_label(self):
        logits = torch.tensor([[[0.0, math.log(3)]]])  # yes with 1/2 and 3/4
        expected = (math.log(2) + math.log(4)) / 2  # gold: yes, no
        assert relevancy(logits, torch.tensor([[1.0, 0.0]]), problem_type=MULTI_LABEL).item() == pytest.approx(expected)

    def test_regression(self):
        logits = torch.tensor([[[1.0], [3.0]], [[0.0], [2.0]]])
        assert relevancy(logits, torch.tensor([2.0, 2.0]), problem_type=REGRESSION).item() == pytest.approx(3.0)

    def test_equals_torch(self):
        logits = torch.randn(5, 4, 3)
        labels = torch.tensor([0, 1, 2, 1, 0])
        expected = sum(torch.nn.functional.cross_entropy(logits[:, head], labels) for head in range(4))
        torch.testing.assert_close(relevancy(logits, labels), expected)

    def test_unknown_problem(self):
        with pytest.raises(InputError, match="problem type 'ranking' is unknown; choose one of: single_label"):
            relevancy(LOGITS, LABELS, problem_type="ranking")

    def test_unknown_weights(self):
        with pytest.raises(InputError, match="'deep' is unknown; choose one of: uniform, depth"):
            relevancy(LOGITS, LABELS, exit_weights="deep")


class TestDiversity:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, -(1.75 + 1.5)),
            ({"through_target": True}, -(1.75 + 1.5)),
            # By the batch, head 3 is at 1.625 from both others: 1.5 and 1.75 in either order.
            ({"closest": "batch"}, -(1.75 + 1.625)),
            # Text 1: head 3 against head 2 is 1.75, text 2: 1.5.
            ({"neighbors": 1}, -(1.75 + 1.625)),
            ({"neighbors": 2}, -(1.75 + 1.5)),
            ({"last": False}, -1.75),
            ({"closest": "batch", "neighbors": 1, "last": False}, -1.75),
        ],
    )
    def test_by_hand(self, options, expected):
        assert in_ln2(diversity(LOGITS, **options)) == pytest.approx(expected)

    def test_multi_label_by_hand(self):
        logits = torch.tensor([[[0.0], [math.log(3)]]])  # yes with 1/2, then with 3/4
        expected = -(math.log(4 / 3) + math.log(4)) / 2
        assert diversity(logits, problem_type=MULTI_LABEL).item() == pytest.approx(expected)

    def test_multi_label_is_a_mean_over_labels(self):
        one = torch.tensor([[[0.3], [1.2], [-0.4]]])
        torch.testing.assert_close(
            diversity(one.repeat(1, 1, 5), problem_type=MULTI_LABEL), diversity(one, problem_type=MULTI_LABEL)
        )

    @pytest.mark.parametrize("through_target", [False, True])
    def test_gradient_reaches_the_target_only_when_asked(self, through_target):
        logits = LOGITS.clone().requires_grad_()
        diversity(logits, neighbors=1, last=False, through_target=through_target).backward()  # head 2 against head 1
        assert (logits.grad[:, 0].abs().sum() > 0) == through_target
        assert logits.grad[:, 1].abs().sum() > 0
        assert logits.grad[:, 2].abs().sum() == 0

    def test_the_target_is_the_earlier_head(self):
        """CE(x_i, x_j) = −Σ x_j log x_i: a later head that gives the target's class nothing is far from it."""
        sure, unsure = torch.tensor([20.0, -20.0]), torch.tensor([0.0, 0.0])
        pairs = cross_entropies(torch.stack([unsure, sure])[None])
        assert pairs[0, 1, 0] > 10  # the unsure target puts half its weight where the sure head has none
        assert pairs[0, 0, 1] == pytest.approx(LN2)

    def test_refuses_regression(self):
        with pytest.raises(InputError, match="use relevancy"):
            diversity(LOGITS, problem_type=REGRESSION)

    @pytest.mark.parametrize(("options", "message"), [({"closest": "x"}, "text, batch"), ({"neighbors": 0}, "least 1")])
    def test_refuses_unknown_options(self, options, message):
        with pytest.raises(InputError, match=message):
            diversity(LOGITS, **options)

    @given(seed=st.integers(0, 10_000), exits=st.integers(2, 6), classes=st.integers(2, 5))
    def test_equals_the_plain_loop(self, seed, exits, classes):
        generator = torch.Generator().manual_seed(seed)
        logits = torch.randn(3, exits, classes, generator=generator, dtype=torch.float64) * 3
        probabilities = logits.softmax(-1)
        total = 0.0
        for text in range(3):
            for i in range(1, exits):
                total -= min(-(probabilities[text, j] * probabilities[text, i].log()).sum().item() for j in range(i))
        assert diversity(logits).item() == pytest.approx(total / 3)

    def test_a_text_does_not_depend_on_its_batch(self):
        single = (diversity(LOGITS[:1]) + diversity(LOGITS[1:])) / 2
        torch.testing.assert_close(diversity(LOGITS), single)


class TestEnsemble:
    def test_by_hand(self):
        assert in_ln2(ensemble(LOGITS, LABELS, diversity_weight=0.2)) == pytest.approx(4.5 - 0.2 * 3.25)

    def test_all_options_by_hand(self):
        loss = ensemble(
            LOGITS, LABELS, diversity_weight=0.5, exit_weights="depth", closest="batch", neighbors=1, last=False
        )
        assert in_ln2(loss) == pytest.approx(4.75 - 0.5 * 1.75)

    @pytest.mark.parametrize("exit_weights", ["uniform", "depth"])
    def test_weight_zero_is_relevancy(self, exit_weights):
        assert ensemble(LOGITS, LABELS, diversity_weight=0, exit_weights=exit_weights) == relevancy(
            LOGITS, LABELS, exit_weights=exit_weights
        )

    @given(
        seed=st.integers(0, 2**31),
        exits=st.integers(2, 24),
        weight=st.floats(0, 1, exclude_max=True),
        exit_weights=st.sampled_from(["uniform", "depth"]),
    )
    def test_no_head_is_ever_pushed_away_from_the_right_class(self, seed, exits, weight, exit_weights):
        logits = 4 * torch.randn(5, exits, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        logits.requires_grad_()
        labels = torch.tensor([0, 1, 2, 0, 1])
        ensemble(logits, labels, diversity_weight=weight, exit_weights=exit_weights).backward()
        right = logits.grad[torch.arange(5), :, labels]  # (texts, exits)
        assert right.max() <= 1e-9  # probabilities have a floor

    def test_one_exit_is_relevancy(self):
        assert ensemble(LOGITS[:, :1], LABELS, diversity_weight=0.3) == relevancy(LOGITS[:, :1], LABELS)

    @pytest.mark.parametrize("weight", [-0.1, 1.0, 1.5, math.nan])
    def test_refuses_weights_outside_the_analysis(self, weight):
        with pytest.raises(InputError, match="at least 0 and below 1: from 1 on, λ·p_c − 1 can turn positive"):
            ensemble(LOGITS, LABELS, diversity_weight=weight)

    @given(p=st.floats(0.01, 0.99), q=st.floats(0.01, 0.99), weight=st.floats(0.01, 0.99))
    def test_binary_identity(self, p, q, weight):
        """The paper's binary analysis: L_i = CE(q, p′) + λ log(1 − q_c), with p′ = (1 − λ p_c, λ p_c)."""
        logits = torch.tensor([[[p, 1 - p], [q, 1 - q]]], dtype=torch.float64).log()
        labels = torch.tensor([0])
        first_head = relevancy(logits[:, :1], labels).item()
        second_head = ensemble(logits, labels, diversity_weight=weight).item() - first_head
        softened = -((1 - weight * p) * math.log(q) + weight * p * math.log(1 - q))
        assert second_head == pytest.approx(softened + weight * math.log(1 - q), abs=1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exit_weights": "uniform"}, 4.5 - 0.2 * 3.25),
        (
            {
                "diversity_weight": 0.5,
                "exit_weights": "depth",
                "closest": "batch",
                "neighbors": 1,
                "last_diversity": False,
            },
            4.75 - 0.5 * 1.75,
        ),
        ({"method": "righttool"}, 4.5),
        ({"method": "pabee"}, 4.75),
        ({"method": "fastbert"}, 0.25),
    ],
)
def test_settings_reach_the_loss(options, expected):
    loss = loss_for(TrainingSettings(**options).resolved(), "single_label_classification")
    assert in_ln2(loss(LOGITS, LABELS)) == pytest.approx(expected)


@pytest.mark.parametrize("through_target", [False, True])
def test_the_setting_of_the_target_reaches_the_loss(through_target):
    settings = TrainingSettings(through_target=through_target, diversity_weight=0.9).resolved()
    gradients = []
    for loss in (loss_for(settings, "single_label_classification"), relevancy):
        logits = LOGITS.clone().requires_grad_()
        loss(logits, LABELS).backward()
        gradients.append(logits.grad[:, 0])  # the first head is nothing but a target of the diversity
    assert torch.allclose(*gradients) == (not through_target)


class TestSelfDistillation:
    def test_by_hand(self):
        # One head of each text differs from the last: KL = 1/2 ln 2 − 1/4 ln 2.
        assert in_ln2(self_distillation(LOGITS)) == pytest.approx(0.25)

    def test_temperature_by_hand(self):
        # At T = 2 probabilities go with the square roots: (√2, 1, 1) / (2 + √2).
        high, low = math.sqrt(2) / (2 + math.sqrt(2)), 1 / (2 + math.sqrt(2))
        expected = 4 * (high - low) * math.log(high / low)
        assert self_distillation(LOGITS, temperature=2).item() == pytest.approx(expected)

    def test_several_labels_by_hand(self):
        # Probabilities of two labels: 1/4 and 1/2 of the first head, 1/2 and 1/2 of the last.
        logits = torch.tensor([[[-math.log(3), 0.0], [0.0, 0.0]]], dtype=torch.float64)
        expected = (1 / 4 * math.log(1 / 2) + 3 / 4 * math.log(3 / 2)) / 2
        assert self_distillation(logits, problem_type=MULTI_LABEL).item() == pytest.approx(expected)

    def test_values_by_hand(self):
        values = torch.tensor([[[1.0], [4.0], [2.0]]])  # 1 and 2 away from the last
        assert self_distillation(values, problem_type=REGRESSION).item() == 1 + 4

    def test_teaches_the_heads_and_not_the_teacher(self):
        logits = LOGITS.clone().requires_grad_()
        self_distillation(logits).backward()
        assert logits.grad[:, -1].abs().sum() == 0
        assert logits.grad[:, :-1].abs().sum() > 0

    def test_nothing_to_learn_is_zero(self):
        assert self_distillation(LOGITS[:, :1].repeat(1, 4, 1)).item() == pytest.approx(0, abs=1e-12)

    def test_refuses_a_temperature_of_zero(self):
        with pytest.raises(InputError, match="temperature 0 must be above 0"):
            self_distillation(LOGITS, temperature=0)


class TestDistillation:
    TEACHER = torch.tensor([HALF_FIRST, HALF_FIRST], dtype=torch.float64).log()

    def test_by_hand(self):
        # The second head of the first text and the first of the second differ from the teacher, by 1/4 ln 2.
        assert in_ln2(distillation(LOGITS, self.TEACHER)) == pytest.approx(0.25)

    def test_the_last_head_may_weigh_more(self):
        others = self.TEACHER.roll(1, dims=1)  # (1/4, 1/2, 1/4): the last heads of both texts differ, and one below
        assert in_ln2(distillation(LOGITS, others)) == pytest.approx((2 * 1 / 4 + 2 * 1 / 4) / 2)
        assert in_ln2(distillation(LOGITS, others, last=3.0)) == pytest.approx((2 * 1 / 4 + 2 * 3 / 4) / 2)

    def test_temperature_by_hand(self):
        high, low = math.sqrt(2) / (2 + math.sqrt(2)), 1 / (2 + math.sqrt(2))
        expected = 4 * (high - low) * math.log(high / low)
        assert distillation(LOGITS, self.TEACHER, temperature=2).item() == pytest.approx(expected)

    def test_several_labels_by_hand(self):
        logits, teacher = torch.tensor([[[-math.log(3), 0.0]]]), torch.tensor([[0.0, 0.0]])  # 1/4, 1/2; 1/2, 1/2
        expected = (1 / 2 * math.log(2) + 1 / 2 * math.log(2 / 3)) / 2
        assert distillation(logits, teacher, problem_type=MULTI_LABEL).item() == pytest.approx(expected)

    def test_values_by_hand(self):
        values = torch.tensor([[[1.0], [4.0], [2.0]]])
        assert distillation(values, torch.tensor([[3.0]]), last=2.0, problem_type=REGRESSION).item() == 4 + 1 + 2

    def test_teaches_all_heads(self):
        logits = LOGITS.clone().requires_grad_()
        distillation(logits, self.TEACHER.roll(1, dims=1)).backward()
        assert (logits.grad.abs().sum(dim=(0, 2)) > 0).all()


OBJECTIVES = {
    "relevancy": relevancy,
    "relevancy by depth": lambda logits, labels: relevancy(logits, labels, exit_weights="depth"),
    "diversity": lambda logits, labels: diversity(logits, through_target=True),
    "diversity by batch": lambda logits, labels: diversity(logits, closest="batch", through_target=True),
    "ensemble": lambda logits, labels: ensemble(logits, labels, diversity_weight=0.3, through_target=True),
    "self-distillation": lambda logits, labels: self_distillation(
        torch.cat([logits, LOGITS[:, :1]], dim=1), temperature=1.5
    ),
    "multi-label": lambda logits, labels: ensemble(
        logits,
        torch.nn.functional.one_hot(labels, 3),
        diversity_weight=0.3,
        through_target=True,
        problem_type=MULTI_LABEL,
    ),
    "regression": lambda logits, labels: relevancy(logits[..., :1], labels.double(), problem_type=REGRESSION),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients(name):
    torch.manual_seed(1)
    logits = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda values: OBJECTIVES[name](values, LABELS), (logits,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name not in ("regression", "self-distillation")])
def test_extreme_logits_in_low_precision_stay_finite(name, dtype):
    most = torch.finfo(dtype).max
    logits = torch.tensor([[[most, -most, 0], [-most, most, 0], [0, 0, -most]]] * 2, dtype=dtype, requires_grad=True)
    loss = OBJECTIVES[name](logits, LABELS)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_extreme_self_distillation_stays_finite(dtype):
    most = torch.finfo(dtype).max
    logits = torch.tensor([[[most, -most], [-most, most], [most, -most]]], dtype=dtype, requires_grad=True)
    loss = self_distillation(logits)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logits.grad).all()


def test_exit_losses_are_one_by_text_and_exit():
    expected = torch.tensor([[1.0, 2, 1], [1, 2, 2]], dtype=torch.float64) * LN2
    torch.testing.assert_close(exit_losses(LOGITS, LABELS), expected)


def test_closest_earlier_by_hand():
    # Text 1: head 2 has only head 1; head 3 equals head 1. Text 2: head 3 equals head 2.
    assert closest_earlier(LOGITS).tolist() == [[0, 0], [0, 1]]
