"""ExitClassifier: a scikit-learn classifier of texts that trains, calibrates and predicts with early exit."""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d
from transformers import set_seed

from exitpoll.data.batching import Text
from exitpoll.data.cut import cut_rows
from exitpoll.data.splits import Splits, Texts
from exitpoll.decide.calibrate import calibrate
from exitpoll.decide.certificate import Guarantee, Speedup
from exitpoll.decide.metrics import SINGLE_LABEL
from exitpoll.decide.policy import Policy
from exitpoll.engine.arguments import iterate_texts, to_text
from exitpoll.engine.engine import Engine, Prediction
from exitpoll.engine.loading import load_model, source_of
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.runtime import LoadedModel
from exitpoll.errors import InputError, TooFewTextsError
from exitpoll.models.card import write_card
from exitpoll.models.folder import POLICY
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.pretrained import encoder_folder
from exitpoll.models.tokenizer import load_tokenizer
from exitpoll.training.settings import TrainingSettings
from exitpoll.training.train import train

STRATEGY = "max_prob"  # which always answers as the head does, so that labels and probabilities agree
NAMED = ("epochs", "batch_size", "learning_rate", "max_length")  # training settings that are parameters by themselves


class _TemporaryFolder:
    """A folder that is removed when nobody uses it any more, or the process that made it ends."""

    # By path, so that copies of an estimator in one process keep its folder too.
    existing: ClassVar[weakref.WeakValueDictionary[str, _TemporaryFolder]] = weakref.WeakValueDictionary()

    def __init__(self) -> None:
        root = Path(tempfile.mkdtemp(prefix="exitpoll-")).resolve()
        self.model_folder = root / "model"
        self.existing[str(self.model_folder)] = self
        weakref.finalize(self, _remove, root, os.getpid())


def _remove(folder: Path, pid: int) -> None:
    """Remove a folder, but not from a fork of the process that made it."""
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class _Live:
    """What a fitted estimator has in memory, and a pickle does not."""

    engine: Engine | None = None
    depth: float | None = None  # mean depth of the last prediction
    temporary: _TemporaryFolder | None = None  # kept as long as an estimator uses it


class ExitClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn classifier of texts with early exit.

    `fit` trains an encoder with a head after every layer, holds back some of the texts, and calibrates on these when a
    text may leave early. A text leaves where the probability of its class is high enough, with the answer of that
    exit's head: `predict` returns the class with the highest of the probabilities in `predict_proba`.

    A fitted estimator keeps its model in a folder, as `exitpoll train` writes it, and is pickled by the path of that
    folder: weights are never in the pickle. A temporary folder goes when the last estimator that uses it does, or the
    process ends; name a `folder` to load a pickle later or in another process.

    Args:
        encoder: A hub name or folder of a pretrained encoder.
        max_disagreement: Goal of the calibration: the fastest policy whose answer differs from the full model's on at
            most this share of texts. Where it cannot be guaranteed, no text leaves early, and a warning says so.
        speedup: Goal in place of max_disagreement, which must then be None: this speed-up in layers, without a
            guarantee.
        confidence: How sure the guarantee is.
        calibration_share: The share of the texts that is held back for calibration and to select checkpoints by.
        epochs: Passes over the training texts.
        batch_size: Texts in a training batch, and at most in one of predictions.
        learning_rate: Peak learning rate of the encoder.
        max_length: Longest text read, in tokens; 128 by default.
        training: More settings of the training by name, as `TrainingSettings` has them.
        folder: Where to keep the model; a temporary folder by default.
        overwrite: Whether `fit` may replace a model in the folder that this estimator did not write.
        threads: How many threads predictions use; by default as many as torch uses in this process.
        random_state: Seed of the training and of the held-back texts: an integer, a RandomState, or None for another
            one every time.

    Attributes:
        classes_: The classes as they were given, sorted.
        folder_: The folder of the model.
    """

    def __init__(
        self,
        encoder: str | Path = "google-bert/bert-base-uncased",
        *,
        max_disagreement: float | None = 0.02,
        speedup: float | None = None,
        confidence: float = 0.95,
        calibration_share: float = 0.2,
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float = 5e-5,
        max_length: int | None = None,
        training: Mapping[str, Any] | None = None,
        folder: str | Path | None = None,
        overwrite: bool = False,
        threads: int | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.encoder = encoder
        self.max_disagreement = max_disagreement
        self.speedup = speedup
        self.confidence = confidence
        self.calibration_share = calibration_share
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.max_length = max_length
        self.training = training
        self.folder = folder
        self.overwrite = overwrite
        self.threads = threads
        self.random_state = random_state

    def fit(self, X: object, y: object) -> ExitClassifier:  # noqa: N803
        """Train on some of the texts, and calibrate on the others.

        Args:
            X: Texts, or pairs of texts, in any container that an engine takes: a list, a NumPy array, a column of
                pandas, ….
            y: Their classes: strings, integers or booleans, as scikit-learn takes them.

        Returns:
            The estimator.
        """
        self._check_goal()
        texts = _to_texts(X)
        encoder = LabelEncoder()
        numbers = encoder.fit_transform(_to_labels(y, texts))  # (texts,)
        classes = encoder.classes_
        if len(classes) < 2:
            raise InputError(f"{len(texts)} texts of {len(classes)} class are too few: a classifier needs two classes")
        seed = self._seed()
        settings = self._settings(seed)
        splits = self._splits(texts, numbers, _names_of(classes), seed)
        live = _Live(temporary=_TemporaryFolder() if self.folder is None else None)
        folder = Path(str(self.folder)).resolve() if live.temporary is None else live.temporary.model_folder
        with _random_state_kept():
            self._train(splits, folder, settings)
            loaded = load_model(folder, threads=self.threads)
            self._fingerprint = loaded.runtime.fingerprint  # the next fit may replace it, whatever comes now
            policy = self._calibrate(loaded, splits.calibration, seed)
        policy.save(folder / POLICY)
        write_card(folder)
        live.engine = Engine(loaded, policy)
        self.classes_, self.folder_ = classes, str(folder)
        self._live = live
        return self

    # ---- predictions ------------------------------------------------------------------------------------------------

    def predict(self, X: object) -> NDArray:  # noqa: N803
        """Predict the classes of texts.

        Args:
            X: Texts, as for `fit`.

        Returns:
            The classes, (texts,).
        """
        predictions = self._predictions(X)
        numbers = {name: number for number, name in enumerate(self.engine_.model.label_names)}
        return self.classes_[np.array([numbers[str(prediction.label)] for prediction in predictions], dtype=np.int64)]

    def predict_proba(self, X: object) -> NDArray:  # noqa: N803
        """Predict the probability of every class, by the head of the exit at which a text leaves.

        Args:
            X: Texts, as for `fit`.

        Returns:
            Probabilities, (texts, classes), in the order of `classes_`.
        """
        rows = [list(prediction.probabilities.values()) for prediction in self._predictions(X)]
        return np.array(rows).reshape(len(rows), len(self.classes_))

    def predict_depth(self, X: object) -> NDArray:  # noqa: N803
        """Predict after how many layers texts leave.

        Args:
            X: Texts, as for `fit`.

        Returns:
            The layers that were run, (texts,).
        """
        return np.array([prediction.depth for prediction in self._predictions(X)], dtype=np.int64)

    @property
    def decision_depth_(self) -> float:
        """The mean number of layers that were run for the texts of the last prediction; NaN if there were none."""
        check_is_fitted(self)
        if self._live.depth is None:
            raise AttributeError("there is no decision_depth_ before the first prediction")
        return self._live.depth

    @property
    def engine_(self) -> Engine:
        """The model with its policy: its `explain` says why a text leaves at an exit."""
        check_is_fitted(self)
        if self._live.engine is None:
            self._live.engine = self._load()
        return self._live.engine

    def _predictions(self, given: object) -> list[Prediction]:
        """Predict texts, and note their mean depth."""
        engine = self.engine_
        predictions = engine(_to_texts(given), self.batch_size)
        depths = [prediction.depth for prediction in predictions]
        self._live.depth = float(np.mean(depths)) if depths else float("nan")
        return predictions

    # ---- fitting ----------------------------------------------------------------------------------------------------

    def _check_goal(self) -> None:
        """Check the goal and the share before anything is trained."""
        if (self.max_disagreement is None) == (self.speedup is None):
            raise InputError("name one goal: max_disagreement, or speedup with max_disagreement=None")
        if self.max_disagreement is not None:  # goals check their values
            Guarantee("disagreement", self.max_disagreement, self.confidence)
        if self.speedup is not None:
            Speedup(self.speedup)
        share: Any = self.calibration_share
        if isinstance(share, bool) or not isinstance(share, float | int | np.number) or not 0 < share < 1:
            raise InputError(f"calibration_share {share!r:.60} must be between 0 and 1")

    def _seed(self) -> int:
        """Return the seed of the training."""
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _settings(self, seed: int) -> TrainingSettings:
        """Collect the settings of the training."""
        if not isinstance(self.training, Mapping | None):
            raise InputError(f"training {self.training!r:.60} must be settings by name")
        known = {row.name for row in fields(TrainingSettings)} - {*NAMED, "seed"}
        unknown = sorted(map(str, set(self.training or ()) - known))
        if unknown:
            raise InputError(f"training has no {', '.join(unknown)}; it has: {', '.join(sorted(known))}")
        named = {name: getattr(self, name) for name in NAMED}
        return TrainingSettings(**named, **(self.training or {}), seed=seed)

    def _splits(self, texts: list[Text], numbers: NDArray, names: list[str], seed: int) -> Splits:
        """Hold back texts for calibration; these stand in for a test split, which is the user's to keep."""
        kept, held_back = cut_rows(texts, numbers, SINGLE_LABEL, seed, float(self.calibration_share), None)
        every = Texts.of(texts)
        every = Texts(every.first, every.second, numbers)
        calibration = every.select(held_back)
        note = "the test split is the calibration split: an ExitClassifier is tested on texts that it was not fitted on"
        return Splits(every.select(kept), calibration, calibration, names, SINGLE_LABEL, "accuracy", [note])

    def _train(self, splits: Splits, folder: Path, settings: TrainingSettings) -> None:
        """Train the encoder with a head after every layer."""
        set_seed(settings.seed)  # for the initial weights of the heads; train() seeds the training itself
        model = EarlyExitModel.from_encoder(self.encoder, labels=list(splits.label_names))
        tokenizer = load_tokenizer(str(encoder_folder(self.encoder)))
        train(model, tokenizer, splits, folder, settings, overwrite=self.overwrite or self._wrote(folder))

    def _wrote(self, folder: Path) -> bool:
        """Return whether a folder holds the model of this estimator, which it may replace."""
        fingerprint = getattr(self, "_fingerprint", None)
        return fingerprint is not None and folder.is_dir() and source_of(folder).fingerprint == fingerprint

    def _calibrate(self, loaded: LoadedModel, texts: Texts, seed: int) -> Policy:
        """Choose when to exit, with a warning if that is never."""
        about = {"split": "calibration", "metric": "accuracy"}
        trace = record_in_memory(loaded, texts, about=about)
        policy = Policy(STRATEGY, answer="head", fallback="head")
        reason = f"{len(texts)} held-back texts could not guarantee a disagreement of {self.max_disagreement} at most"
        try:
            policy = calibrate(
                trace,
                policy,
                speedup=self.speedup,
                max_disagreement=self.max_disagreement,
                confidence=self.confidence,
                seed=seed,
            )
        except TooFewTextsError as error:
            reason = str(error)
        if policy.threshold is None:
            warnings.warn(f"no text will leave early: {reason}", stacklevel=3)
        return policy

    # ---- copies and pickles -----------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Return parameters, classes and the path of the model's folder: nothing of the model itself."""
        return {name: value for name, value in super().__getstate__().items() if name != "_live"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy; the model is loaded from its folder when it is first needed."""
        super().__setstate__(state)
        if "folder_" in vars(self):
            self._live = _Live(temporary=_TemporaryFolder.existing.get(self.folder_))

    def _load(self) -> Engine:
        """Load the model of an estimator that was unpickled."""
        if not Path(self.folder_).is_dir():
            advice = "fit it again, with a folder= to keep its model in"
            raise InputError(f"'{self.folder_}', the model folder of this ExitClassifier, is gone; {advice}")
        engine = Engine.load(self.folder_, threads=self.threads)
        if engine.runtime.fingerprint != self._fingerprint:
            raise InputError(f"'{self.folder_}' holds another model by now than this ExitClassifier was fitted with")
        return engine

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that the input is a list of texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = True, False
        tags.input_tags.string = True
        return tags


def _to_texts(given: object) -> list[Text]:
    """Check texts in any container that has an order."""
    return [to_text(f"text {number}", text) for number, text in enumerate(iterate_texts(given))]


def _to_labels(y: object, texts: list[Text]) -> NDArray:
    """Check classes, one for every text."""
    if y is None:
        raise InputError("a classifier requires y to be passed, but the target y is None")
    labels = column_or_1d(y, warn=True)
    check_consistent_length(texts, labels)
    check_classification_targets(labels)
    return labels


def _names_of(classes: NDArray) -> list[str]:
    """Name classes of any kind for the model; by number if their own names do not tell them apart."""
    names = [str(name) for name in classes.tolist()]
    if all(name.strip() for name in names) and len(set(names)) == len(names):
        return names
    return [f"class {number}" for number in range(len(names))]


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restore the random generators of the process, which training seeds, so that others draw as before."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
