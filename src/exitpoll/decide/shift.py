"""Whether texts differ from the calibration texts: histograms in a few bins, compared by two-sample tests.

A calibration keeps three histograms of its texts: the depths at which they left, the probability of their answers, and
their lengths in tokens. Later texts are counted into the same bins, in constant memory. Each histogram is compared by
the two-sample test of Kolmogorov and Smirnov, with the bound of Wei and Dudley (2012), at a share of `FALSE_ALARMS`:
if both sets of texts are drawn alike, any difference is reported with at most that probability, whatever the
distributions and however few the texts. Bins cost power, never validity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from exitpoll.decide.decisions import Decisions
from exitpoll.errors import InputError
from exitpoll.files import JsonObject

FALSE_ALARMS = 0.001  # the probability of a report about texts that are drawn as the calibration texts were
BINS = 20
WINDOW = 1000  # live texts that are compared at a time
MOST_BINS = 1000  # that a file may hold

Share = float | Mapping[str, float]  # the probability of an answer, or of every label

_TITLES = {  # of the statistics, with their unit
    "depth": ("depth", " layers"),
    "probability": ("probability of the answer", ""),
    "length": ("length", " tokens"),
}


@dataclass(frozen=True)
class Histogram:
    """How one number is distributed over texts."""

    edges: tuple[float, ...]  # (bins - 1,) rising; a number belongs to the first bin whose edge it does not exceed
    counts: tuple[int, ...]  # (bins,)
    mean: float

    @classmethod
    def of(cls, values: NDArray, edges: Sequence[float] | None = None) -> Histogram:
        """Count values.

        Args:
            values: One finite number per text, (texts,), at least one.
            edges: The edges of the bins; quantiles of the values by default.

        Returns:
            The histogram.
        """
        if edges is None:
            quantiles = np.quantile(values, np.arange(1, BINS) / BINS)
            edges = np.unique([float(f"{edge:.4g}") for edge in quantiles]).tolist()
        counts = _count(values, np.asarray(edges))
        return cls(tuple(edges), tuple(counts.tolist()), float(f"{values.mean():.6g}"))

    def to_dict(self) -> JsonObject:
        """Return plain values, for JSON."""
        return {"edges": list(self.edges), "counts": list(self.counts), "mean": self.mean}

    @classmethod
    def from_dict(cls, content: object) -> Histogram:
        """Read what `to_dict` returned.

        Args:
            content: A JSON object.

        Returns:
            The histogram.
        """
        if not isinstance(content, Mapping) or set(content) != {"edges", "counts", "mean"}:
            raise InputError(f"the profile of the certificate is broken ({content!r:.60}); calibrate again")
        edges, counts = _numbers(content["edges"]), _counts(content["counts"])
        [mean] = _numbers([content["mean"]])
        if len(counts) != len(edges) + 1 or any(np.diff(edges) <= 0):
            raise InputError("the bins of the certificate's profile do not fit its counts; calibrate again")
        return cls(tuple(edges), tuple(counts), mean)


def _count(values: NDArray, edges: NDArray) -> NDArray:
    """Count values by bin, (bins,)."""
    return np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)


def _numbers(values: object) -> list[float]:
    """Check a list of numbers from a file."""
    if not isinstance(values, list) or len(values) > MOST_BINS:
        raise InputError(f"{values!r:.60} must be a list of at most {MOST_BINS} numbers; calibrate again")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e15:
            raise InputError(f"{value!r:.60} in the certificate's profile is not a number; calibrate again")
    return [float(value) for value in values]


def _counts(values: object) -> list[int]:
    """Check a list of counts from a file."""
    numbers = _numbers(values)
    if not numbers or any(number < 0 or number != int(number) for number in numbers) or not sum(numbers):
        raise InputError(f"{values!r:.60} in the certificate's profile are not counts of texts; calibrate again")
    return [int(number) for number in numbers]


@dataclass(frozen=True)
class Profile:
    """What the calibration texts looked like to the policy."""

    depths: Mapping[int, int]  # number of texts that left, by layer with an exit
    probabilities: Histogram | None = None  # of the answers; of the least sure label; None for values
    lengths: Histogram | None = None  # in tokens; None where the trace does not state them

    @classmethod
    def of(cls, decisions: Decisions, lengths: ArrayLike | None = None) -> Profile:
        """Describe texts that a policy decided on.

        Args:
            decisions: Where they left, and the probabilities of their answers.
            lengths: Their tokens, (texts,).

        Returns:
            The profile.
        """
        probabilities = sureness(decisions.probability)
        known = probabilities[np.isfinite(probabilities)]
        return cls(
            decisions.histogram,
            Histogram.of(known) if len(known) else None,
            None if lengths is None else Histogram.of(np.asarray(lengths, dtype=np.float64)),
        )

    @property
    def texts(self) -> int:
        """How many texts there were."""
        return sum(self.depths.values())

    @property
    def only_layer(self) -> int | None:
        """The layer after which all texts left, if there is only one: what a static model of that depth does."""
        used = [layer for layer, count in self.depths.items() if count]
        return used[0] if len(used) == 1 else None

    def histograms(self) -> dict[str, Histogram]:
        """Return the statistics that are known, by name."""
        layers, counts = tuple(self.depths), tuple(self.depths.values())
        mean = float(np.average(layers, weights=counts))
        named = {
            "depth": Histogram(layers[:-1], counts, mean),
            "probability": self.probabilities,
            "length": self.lengths,
        }
        return {name: histogram for name, histogram in named.items() if histogram is not None}

    def to_dict(self) -> JsonObject:
        """Return plain values for JSON, without what is not known."""
        plain: JsonObject = {"depths": {str(layer): count for layer, count in self.depths.items()}}
        for name in ("probabilities", "lengths"):
            if getattr(self, name) is not None:
                plain[name] = getattr(self, name).to_dict()
        return plain

    @classmethod
    def from_dict(cls, content: object) -> Profile:
        """Read what `to_dict` returned.

        Args:
            content: A JSON object.

        Returns:
            The profile.
        """
        if not isinstance(content, Mapping) or not set(content) <= {"depths", "probabilities", "lengths"}:
            raise InputError(f"the profile of the certificate is broken ({content!r:.60}); calibrate again")
        depths = content.get("depths")
        if not isinstance(depths, Mapping) or not all(str(layer).isdecimal() for layer in depths):
            raise InputError(f"the depths of the certificate's profile are broken ({depths!r:.60}); calibrate again")
        layers = _numbers([int(str(layer)[:9]) for layer in depths])
        if any(np.diff([-1, *layers]) <= 0):
            raise InputError("the layers of the certificate's profile must rise; calibrate again")
        counts = _counts(list(depths.values()))
        more = {name: Histogram.from_dict(content[name]) for name in ("probabilities", "lengths") if name in content}
        return cls({int(layer): count for layer, count in zip(layers, counts, strict=True)}, **more)


def sureness(probabilities: ArrayLike) -> NDArray:
    """Return one probability per text.

    Args:
        probabilities: Of the answers, (texts,), or of every label, (texts, labels).

    Returns:
        Probabilities, (texts,); of several labels, that of the least sure one being answered right.
    """
    known = np.asarray(probabilities, dtype=np.float64)
    return known if known.ndim < 2 else np.maximum(known, 1 - known).min(axis=1, initial=1.0)


@dataclass(frozen=True)
class Difference:
    """One statistic in which texts differ from the calibration texts."""

    name: str  # "depth", "probability" or "length"
    here: float  # its mean
    at_calibration: float
    distance: float  # the largest difference of cumulative shares

    def __str__(self) -> str:
        """Describe both means."""
        title, unit = _TITLES[self.name]
        return f"{title} (mean {self.here:.3g}{unit} against {self.at_calibration:.3g})"


@dataclass(frozen=True)
class Shift:
    """What differs significantly between texts and the calibration texts."""

    texts: int
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        """Describe the shift in one line."""
        listed = ", ".join(map(str, self.differences))
        return (
            f"these {self.texts} texts differ from the calibration texts in {listed}: what was calibrated or "
            f"guaranteed may not hold for them (false-alarm rate {100 * FALSE_ALARMS:g} %)"
        )


class ProfileCounter:
    """Counts texts in the bins of a calibration's profile, in constant memory."""

    def __init__(self, profile: Profile) -> None:
        """Start with no texts.

        Args:
            profile: That of the calibration texts.
        """
        self._expected = profile.histograms()
        self._layers = np.array(list(profile.depths))
        self._counts = {
            name: np.zeros(len(histogram.counts), dtype=np.int64) for name, histogram in self._expected.items()
        }
        self._sums = dict.fromkeys(self._expected, 0.0)

    def add(self, depths: ArrayLike, probabilities: ArrayLike | None = None, lengths: ArrayLike | None = None) -> None:
        """Count some texts.

        Args:
            depths: The layers after which they left, (texts,).
            probabilities: Of their answers, (texts,), or of every label, (texts, labels); NaN counts nothing.
            lengths: Their tokens, (texts,).
        """
        unknown = np.setdiff1d(depths, self._layers)
        if len(unknown):
            raise InputError(
                f"the policy was not calibrated for an exit after layer {unknown[0]:.0f}, where a text left"
            )
        self._add("depth", depths)
        self._add("probability", None if probabilities is None else sureness(probabilities))
        self._add("length", lengths)

    def _add(self, name: str, values: ArrayLike | None) -> None:
        """Count one number per text, if the calibration did."""
        if values is None or name not in self._expected:
            return
        known = np.asarray(values, dtype=np.float64)
        known = known[np.isfinite(known)]
        self._counts[name] += _count(known, np.asarray(self._expected[name].edges))
        self._sums[name] += float(known.sum())

    def to_dict(self) -> dict[str, list[float]]:
        """Return what was counted, for `merge`: by statistic, the texts in its bins and then their sum."""
        return {name: [*counts.tolist(), self._sums[name]] for name, counts in self._counts.items()}

    def merge(self, counted: Mapping[str, Sequence[float]]) -> None:
        """Add what another counter of the same profile has counted.

        Args:
            counted: What its `to_dict` returned.
        """
        for name, (*counts, total) in counted.items():
            self._counts[name] += np.asarray(counts, dtype=np.int64)
            self._sums[name] += total

    def shift(self, rate: float = FALSE_ALARMS) -> Shift | None:
        """Test whether the texts so far differ from the calibration texts.

        Args:
            rate: The probability of a false alarm in this call.

        Returns:
            What differs, or None; the rate of false alarms is for one call, at the end.
        """
        compared = self.compare()
        differences = tuple(
            difference
            for difference in compared
            if difference.distance
            > critical_distance(
                sum(self._expected[difference.name].counts),
                int(self._counts[difference.name].sum()),
                rate / len(compared),
            )
        )
        return Shift(int(self._counts["depth"].sum()), differences) if differences else None

    def compare(self) -> list[Difference]:
        """Return all statistics of the texts so far beside those of the calibration texts, however near they are."""
        counted = [(name, counts) for name, counts in self._counts.items() if counts.any()]
        return [
            Difference(
                name,
                self._sums[name] / int(counts.sum()),
                self._expected[name].mean,
                _distance(np.asarray(self._expected[name].counts), counts),
            )
            for name, counts in counted
        ]


class ShiftWatch:
    """Compares texts with the calibration texts window by window, for as long as a server lives.

    The window number k is tested at the share 1 / (k (k + 1)) of `FALSE_ALARMS`. These shares add up to 1, so a false
    alarm has at most that probability over all windows together.
    """

    def __init__(self, profile: Profile, window: int = WINDOW) -> None:
        """Start with no texts.

        Args:
            profile: That of the calibration texts.
            window: How many texts are compared at a time.
        """
        self.profile, self.window, self.windows = profile, window, 0
        self.compared: list[Difference] = []  # in the last window
        self.shift: Shift | None = None  # the first one that was found; it stays
        self._rows: list[tuple[int, Share, int]] = []

    def add(self, depth: int, probability: Share, length: int) -> bool:
        """Count a text.

        Args:
            depth: The layer after which it left.
            probability: Of its answer, or of every label.
            length: Its tokens.

        Returns:
            Whether this text completed a window.
        """
        self._rows.append((depth, probability, length))
        if len(self._rows) < self.window:
            return False
        self._close()
        return True

    def _close(self) -> None:
        """Compare a window, and start the next."""
        depths, shares, lengths = zip(*self._rows, strict=True)
        self._rows.clear()
        self.windows += 1
        counter = ProfileCounter(self.profile)
        counter.add(depths, plain_shares(shares), lengths)
        self.compared = counter.compare()
        self.shift = self.shift or counter.shift(FALSE_ALARMS / (self.windows * (self.windows + 1)))


def plain_shares(shares: Sequence[Share]) -> ArrayLike:
    """Return the probabilities of predictions as numbers: one a text, or one for every label."""
    return [list(share.values()) if isinstance(share, Mapping) else share for share in shares]


def _distance(first: NDArray, second: NDArray) -> float:
    """Compute the largest difference of cumulative shares, the statistic of Kolmogorov and Smirnov."""
    return float(np.abs(first.cumsum() / first.sum() - second.cumsum() / second.sum()).max())


def critical_distance(first: int, second: int, rate: float) -> float:
    """Return what the largest difference of cumulative shares exceeds with at most some probability.

    Args:
        first: Size of one sample.
        second: Size of the other, of the same distribution.
        rate: The probability.

    Returns:
        The distance, by P(D ≥ t) ≤ e · exp(−2 t² m n / (m + n)), Wei and Dudley (2012); 1 and more is never exceeded.
    """
    return float(np.sqrt((1 - np.log(rate)) * (first + second) / (2 * first * second)))
