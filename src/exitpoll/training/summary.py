"""The summary of a training, kept as training.json in the model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version

from exitpoll.decide.certificate import Source
from exitpoll.training.scores import ExitScores
from exitpoll.training.settings import TrainingSettings


@dataclass(frozen=True, kw_only=True)
class TrainingSummary:
    """The fields of training.json; the model card, the engine, exports and the study read them by these names."""

    exitpoll: str = field(default_factory=lambda: version("exitpoll"))
    settings: TrainingSettings  # resolved
    source: Source  # fingerprint of the weights, and the runtime they are for
    encoder: str | None  # name of the pretrained encoder or of its folder
    data: str | None  # name of the data
    pairs: bool  # whether every text is a pair
    metric: str  # of the scores
    exit_layers: Sequence[int]
    scores: Mapping[str, ExitScores]  # of the calibration and the test split
    texts: Mapping[str, int]  # number of texts in every split
    truncated: int  # texts longer than the encoder reads, over all splits
    notes: Sequence[str]
    seconds: float

    def to_dict(self) -> dict[str, object]:
        """Return plain values for JSON, without unknown parts of the source."""
        source = {name: value for name, value in asdict(self.source).items() if value is not None}
        return asdict(self) | {"source": source}
