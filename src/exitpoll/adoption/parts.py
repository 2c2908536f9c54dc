"""Divide texts without labels into those that teach the heads, choose the policy and certify it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from exitpoll.data.splits import Texts
from exitpoll.decide.bounds import texts_needed
from exitpoll.decide.certificate import Guarantee
from exitpoll.decide.proof import for_the_better_of_two
from exitpoll.errors import InputError

SHARES = {"teach": 0.5, "choose": 0.15, "certify": 0.35}
MOST = {"teach": 20_000, "choose": 5_000, "certify": 10_000}  # more texts than these gain little and take time


@dataclass(frozen=True)
class Parts:
    """The texts by what they are for; a text that occurs several times may be in several parts, as in traffic."""

    teach: Texts  # the heads learn the classifier's answers to them
    choose: Texts  # the policy, its exits and the best checkpoint are chosen on them
    certify: Texts  # nothing is chosen on them: the guarantee is tested here

    @property
    def sizes(self) -> dict[str, int]:
        """The number of texts, by part."""
        return {name: len(getattr(self, name)) for name in SHARES}


def divide(texts: Texts, guarantee: Guarantee, seed: int) -> Parts:
    """Divide texts at random.

    Args:
        texts: Texts like those that the classifier will see.
        guarantee: What is to be certified; refused if there are too few texts for it.
        seed: Seed of the division.

    Returns:
        The parts.
    """
    needed = texts_needed(guarantee.risk, guarantee.at_most, for_the_better_of_two(guarantee).confidence)
    least = math.ceil(needed / SHARES["certify"])
    if len(texts) < least:
        raise InputError(
            f"{len(texts)} texts are too few to guarantee that {guarantee}: {least} or more are needed, and about "
            f"{10 * least} for the best speed-up; or allow more with max_disagreement",
            options=["max_disagreement"],
        )
    order = np.random.default_rng(seed).permutation(len(texts))
    sizes = {name: min(int(share * len(texts)), MOST[name]) for name, share in SHARES.items()}
    sizes["certify"] = max(sizes["certify"], needed)
    sizes["teach"] = min(sizes["teach"], len(texts) - sizes["choose"] - sizes["certify"])
    ends = np.cumsum(list(sizes.values()))
    rows = (np.sort(order[end - size : end]) for end, size in zip(ends, sizes.values(), strict=True))
    return Parts(*(texts.select(part) for part in rows))
