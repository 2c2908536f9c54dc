"""Losses over the logits of all exits: relevancy, diversity, self-distillation, distillation.

Notation of Sun et al. (2021): x_i is the distribution over classes that head i predicts, i = 1…L; y is the gold label;
CE(x_i, x_j) = −Σ_c x_j[c] log x_i[c], so the earlier head x_j is the target. All losses take logits
(texts, exits, classes) and are means over texts. The papers cover single-label tasks; in multi-label tasks every label
is a Bernoulli variable, and regression has no diversity loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from exitpoll.errors import InputError

# Log-probabilities are clamped here: e^-10000 is 0 in any precision, and −∞ · 0 would be NaN.
LOG_FLOOR = -1e4


def relevancy(
    logits: Tensor, labels: Tensor, *, exit_weights: str = "uniform", problem_type: str = SINGLE_LABEL
) -> Tensor:
    """Compute the relevancy loss, which trains every head: L_rel = Σ_i α_i CE(x_i, y), Sun et al. (2021), Eq. 10.

    Args:
        logits: (texts, exits, classes)
        labels: (texts,) class numbers or, for regression, values; (texts, classes) of 0 and 1 for multi-label.
        exit_weights: "uniform", α_i = 1, or "depth", α_i ∝ i with Σ_i α_i = L, Zhou et al. (2020), Eq. 3.
        problem_type: As in transformers: single_label_classification, multi_label_classification or regression.

    Returns:
        The loss, ().
    """
    losses = exit_losses(logits, labels, problem_type=problem_type)  # (texts, exits)
    return (losses * _alpha(exit_weights, logits)).sum(dim=1).mean()


def exit_losses(logits: Tensor, labels: Tensor, *, problem_type: str = SINGLE_LABEL) -> Tensor:
    """Compute the loss of every head on every text: CE(x_i, y), binary cross-entropy or squared error.

    Args:
        logits: (texts, exits, classes)
        labels: As in `relevancy`.
        problem_type: As in `relevancy`.

    Returns:
        Losses, (texts, exits).
    """
    logits = _precise(logits)
    if problem_type == SINGLE_LABEL:
        gold = labels[:, None, None].expand(-1, logits.shape[1], 1)  # (texts, exits, 1)
        return -_log_softmax(logits).gather(-1, gold).squeeze(-1)
    targets = labels.to(logits.dtype).reshape(len(logits), 1, -1)  # (texts, 1, classes)
    if problem_type == MULTI_LABEL:
        yes, no = _log_sigmoids(logits)
        return -(targets * yes + (1 - targets) * no).mean(dim=-1)
    if problem_type == REGRESSION:
        return (logits - targets).square().mean(dim=-1)
    known = ", ".join((SINGLE_LABEL, MULTI_LABEL, REGRESSION))
    raise InputError(f"problem type '{problem_type}' is unknown; choose one of: {known}")


def diversity(
    logits: Tensor,
    *,
    closest: str = "text",
    through_target: bool = False,
    neighbors: int | None = None,
    last: bool = True,
    shares: Tensor | None = None,
    problem_type: str = SINGLE_LABEL,
) -> Tensor:
    """Compute the diversity loss: L_div = −Σ_{i≥2} min_{j<i} CE(x_i, x_j), Sun et al. (2021), Eq. 12.

    It pushes every head away from the nearest earlier head.

    Args:
        logits: (texts, exits, classes)
        closest: Take the minimum over j for every "text", or once for the "batch", by the mean over its texts.
        through_target: Let the gradient flow into the earlier head x_j too.
        neighbors: Compare with at most this many heads directly before; 1 is the paper's shortcut, j = i − 1.
        last: Keep the term of the last head (False is the paper's β_L = 0).
        shares: β_i / λ, the factor of every head's term, (exits - 1,); 1 by default.
        problem_type: single_label_classification or multi_label_classification.

    Returns:
        The loss, (), not yet multiplied by λ.
    """
    pairs = _earlier_pairs(
        logits, closest=closest, neighbors=neighbors, through_target=through_target, problem_type=problem_type
    )
    nearest = pairs.amin(dim=-1)  # (texts or 1, exits - 1)
    terms = nearest if shares is None else nearest * shares
    kept = terms if last else terms[:, :-1]
    return -kept.sum(dim=1).mean()


def ensemble(
    logits: Tensor,
    labels: Tensor,
    *,
    diversity_weight: float,
    exit_weights: str = "uniform",
    closest: str = "text",
    through_target: bool = False,
    neighbors: int | None = None,
    last: bool = True,
    problem_type: str = SINGLE_LABEL,
) -> Tensor:
    """Compute the ensemble loss, for accurate and diverse heads: L = L_rel + λ L_div, Sun et al. (2021), Eq. 14.

    The weight of a head's diversity term never exceeds that of its relevancy term, β_i = min(λ, α_i): otherwise the
    first heads, whose α_i is small if weighted by depth, would be pushed away from the right class even for λ < 1.

    Args:
        logits: (texts, exits, classes)
        labels: As in `relevancy`.
        diversity_weight: λ in [0, 1).
        exit_weights: As in `relevancy`.
        closest: As in `diversity`.
        through_target: As in `diversity`.
        neighbors: As in `diversity`.
        last: As in `diversity`.
        problem_type: single_label_classification or multi_label_classification.

    Returns:
        The loss, ().
    """
    check_diversity_weight(diversity_weight)
    loss = relevancy(logits, labels, exit_weights=exit_weights, problem_type=problem_type)
    if diversity_weight == 0 or logits.shape[1] == 1:
        return loss
    shares = (_alpha(exit_weights, logits)[1:] / diversity_weight).clamp(max=1)  # (exits - 1,)
    return loss + diversity_weight * diversity(
        logits,
        closest=closest,
        through_target=through_target,
        neighbors=neighbors,
        last=last,
        shares=shares,
        problem_type=problem_type,
    )


def self_distillation(logits: Tensor, *, temperature: float = 1.0, problem_type: str = SINGLE_LABEL) -> Tensor:
    """Compute the self-distillation loss, which needs no labels: Σ_{i<L} KL(x_i ‖ x_L), Liu et al. (2020), Eq. 4.

    In multi-label tasks the divergence is the mean over labels; in regression it is the squared distance to the last
    head's value.

    Args:
        logits: (texts, exits, classes)
        temperature: Divides the logits of both sides; the loss is multiplied by its square, so that the size of the
            gradients does not depend on it. Regression has none.
        problem_type: As in `relevancy`.

    Returns:
        The loss, ().
    """
    if temperature <= 0:
        raise InputError(f"temperature {temperature} must be above 0")
    logits = _precise(logits)
    if problem_type == REGRESSION:
        return (logits[:, :-1] - logits[:, -1:].detach()).square().mean(dim=-1).sum(dim=1).mean()
    log_probabilities = _log_distributions(logits / temperature, problem_type)
    students, teacher = log_probabilities[:, :-1], log_probabilities[:, -1:].detach()
    divergence = (students.exp() * (students - teacher)).sum(dim=-1).mean(dim=-1)  # (texts, exits - 1)
    return divergence.sum(dim=1).mean() * temperature**2


def distillation(
    logits: Tensor, teacher: Tensor, *, temperature: float = 1.0, last: float = 1.0, problem_type: str = SINGLE_LABEL
) -> Tensor:
    """Compute the distillation loss: T² Σ_i α_i KL(t ‖ x_i), where t is another model's answer, Hinton et al. (2015).

    In multi-label tasks the divergence is the mean over labels; in regression it is the squared distance.

    Args:
        logits: (texts, exits, classes)
        teacher: The logits of the other model, (texts, classes).
        temperature: T, which divides the logits of both sides. Regression has none.
        last: α_L, the weight of the last head, where the others have 1.
        problem_type: As in `relevancy`.

    Returns:
        The loss, ().
    """
    logits, teacher = _precise(logits), _precise(teacher)[:, None]
    if problem_type == REGRESSION:
        divergence = (logits - teacher).square().mean(dim=-1)  # (texts, exits)
    else:
        students, target = (_log_distributions(some / temperature, problem_type) for some in (logits, teacher))
        divergence = (target.exp() * (target - students)).sum(dim=-1).mean(dim=-1) * temperature**2
    return (divergence[:, :-1].sum(dim=1) + last * divergence[:, -1]).mean()


def cross_entropies(logits: Tensor, *, through_target: bool = False, problem_type: str = SINGLE_LABEL) -> Tensor:
    """Compute the cross-entropy between every two heads.

    Args:
        logits: (texts, exits, classes)
        through_target: Let the gradient flow into the target too.
        problem_type: single_label_classification or multi_label_classification.

    Returns:
        CE(x_i, x_j) at [:, i, j], (texts, exits, exits).
    """
    logits = _precise(logits)
    if problem_type == REGRESSION:
        raise InputError(
            "the diversity loss compares class distributions, which regression does not have: use relevancy"
        )
    if problem_type == MULTI_LABEL:
        yes, no = _log_sigmoids(logits)
        log_probabilities = torch.cat([yes, no], dim=-1)  # (texts, exits, 2 * classes)
        labels = logits.shape[-1]
    else:
        log_probabilities = _log_softmax(logits)  # (texts, exits, classes)
        labels = 1
    target = log_probabilities.exp()
    if not through_target:
        target = target.detach()
    return -(log_probabilities / labels) @ target.transpose(1, 2)


def closest_earlier(
    logits: Tensor,
    *,
    closest: str = "text",
    neighbors: int | None = None,
    problem_type: str = SINGLE_LABEL,
) -> Tensor:
    """Return the nearest earlier head, argmin_{j<i} CE(x_i, x_j), of every head but the first.

    Args:
        logits: (texts, exits, classes)
        closest: As in `diversity`.
        neighbors: As in `diversity`.
        problem_type: single_label_classification or multi_label_classification.

    Returns:
        Exit numbers from 0, (texts, exits - 1).
    """
    pairs = _earlier_pairs(logits, closest=closest, neighbors=neighbors, problem_type=problem_type)
    return pairs.argmin(dim=-1).expand(len(logits), -1)


def _earlier_pairs(
    logits: Tensor,
    *,
    closest: str,
    neighbors: int | None,
    through_target: bool = False,
    problem_type: str,
) -> Tensor:
    """Compute CE(x_i, x_j) for i ≥ 2, and ∞ where x_j is not compared: (texts, exits - 1, exits).

    With closest="batch", there is one row for all texts.
    """
    if closest not in ("text", "batch"):
        raise InputError(f"closest '{closest}' is unknown; choose one of: text, batch")
    if neighbors is not None and neighbors < 1:
        raise InputError(f"neighbors {neighbors} must be at least 1")
    pairs = cross_entropies(logits, through_target=through_target, problem_type=problem_type)
    if closest == "batch":
        pairs = pairs.mean(dim=0, keepdim=True)
    earlier = torch.ones_like(pairs[0], dtype=torch.bool).tril(-1)  # (exits, exits)
    if neighbors is not None:
        earlier = earlier.triu(-neighbors)
    return pairs.masked_fill(~earlier, math.inf)[:, 1:]


def _alpha(exit_weights: str, logits: Tensor) -> Tensor:
    """Return the weights of the exits, α: (exits,)."""
    exits = logits.shape[1]
    if exit_weights == "uniform":
        return torch.ones(exits, device=logits.device)
    if exit_weights == "depth":
        return torch.arange(1, exits + 1, device=logits.device) * (2 / (exits + 1))
    raise InputError(f"exit_weights '{exit_weights}' is unknown; choose one of: uniform, depth")


def _precise(logits: Tensor) -> Tensor:
    """Return logits in float32 or float64."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _log_softmax(logits: Tensor) -> Tensor:
    """Compute log-probabilities, clamped to be finite."""
    return functional.log_softmax(logits, dim=-1).clamp(min=LOG_FLOOR)


def _log_distributions(logits: Tensor, problem_type: str) -> Tensor:
    """Compute log-probabilities: (…, 1, classes), or for every label whether it applies, (…, classes, 2)."""
    if problem_type == MULTI_LABEL:
        return torch.stack(_log_sigmoids(logits), dim=-1)
    return _log_softmax(logits).unsqueeze(-2)


def _log_sigmoids(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the log-probabilities that every label applies and that it does not, clamped to be finite."""
    return functional.logsigmoid(logits).clamp(min=LOG_FLOOR), functional.logsigmoid(-logits).clamp(min=LOG_FLOOR)


def check_diversity_weight(diversity_weight: float) -> None:
    """Refuse a λ with which the loss could lower the probability of the right class, Sun et al. (2021), Eq. 22.

    Args:
        diversity_weight: λ.
    """
    if not 0 <= diversity_weight < 1:
        raise InputError(
            f"diversity weight {diversity_weight} must be at least 0 and below 1: from 1 on, λ·p_c − 1 can turn "
            "positive and the loss would lower the probability of the right class"
        )
