"""adopt(): from a fine-tuned classifier and texts without labels to a fast model folder with a guarantee.

The heads learn the classifier's own answers, on the output of its encoder, which stays as it is; then the policy is
chosen on other texts and certified on yet others. The guarantee is about the original classifier in float32, in every
runtime: for an int8 export, quantization and early exit are in one certificate. Every step is kept in
`<out>.adopting`, and a job that was interrupted continues behind the last step that was finished.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from exitpoll.adoption.outcome import Adopted
from exitpoll.adoption.parts import divide
from exitpoll.adoption.settings import AdoptSettings
from exitpoll.adoption.steps import SECONDS, Adoption
from exitpoll.data.batching import Text
from exitpoll.data.progress import OnProgress, ignore, shown
from exitpoll.data.splits import Texts
from exitpoll.engine.arguments import iterate_texts, to_text
from exitpoll.engine.engine import Engine
from exitpoll.errors import InputError
from exitpoll.files import locked, read_json, restore, write_json
from exitpoll.models.folder import check_free_for_model

IDENTITY = "identity.json"  # in the work folder

logger = logging.getLogger("exitpoll")


def adopt(
    classifier: str | Path,
    texts: Texts | Iterable[Text],
    out: str | Path,
    *,
    max_disagreement: float = 0.01,
    confidence: float = 0.95,
    tolerance: float | None = None,
    adapt: bool = False,
    runtimes: Sequence[str] | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: bool = False,
) -> Engine:
    """Give a fine-tuned classifier early exits, from texts without labels, and certify them.

    Args:
        classifier: A hub name or a local folder of an AutoModelForSequenceClassification, or of a CrossEncoder of
            sentence-transformers; or a model folder of exitpoll.
        texts: Texts, or pairs of texts, like those that it will see: a list, a column of pandas, …; some thousands.
        out: The model folder to write.
        max_disagreement: The share of texts, at most, whose answer may differ from the original classifier's.
        confidence: How sure that is.
        tolerance: For regression: values at most so far from the original's count as the same answer; a tenth of the
            standard deviation of its values by default.
        adapt: Train the encoder too, on the original's answers: more texts exit early, and full depth changes.
        runtimes: The runtimes to export for and to time: "torch", "onnx", "onnx-int8"; all installed by default.
        seed: Seed of the division of the texts and of the training.
        overwrite: Replace an older model folder.
        progress: Whether to show progress bars on stderr.

    Returns:
        The engine, in the fastest runtime that keeps the guarantee; `engine.policy.certificate` states it.
    """
    settings = AdoptSettings(max_disagreement, confidence, tolerance, adapt, runtimes, seed)
    with shown(progress) as on_progress:
        adopted = adopt_classifier(classifier, texts, out, settings, overwrite=overwrite, on_progress=on_progress)
    for line in adopted.lines():
        logger.info(line)
    return Engine.load(adopted.folder)


def adopt_classifier(
    classifier: str | Path,
    texts: Texts | Iterable[Text],
    out: str | Path,
    settings: AdoptSettings | None = None,
    *,
    overwrite: bool = False,
    on_step: Callable[[str], None] = logger.info,
    on_progress: OnProgress = ignore,
) -> Adopted:
    """Do what `adopt` does, and return what came out.

    Args:
        classifier: As for `adopt`.
        texts: As for `adopt`.
        out: As for `adopt`.
        settings: How to adopt.
        overwrite: Replace an older model folder.
        on_step: Called with the name of every step that is begun.
        on_progress: Called as the work proceeds.

    Returns:
        The result.
    """
    settings, out = settings or AdoptSettings(), Path(out).resolve()
    if not isinstance(texts, Texts):
        texts = Texts.of([to_text(f"text {number}", text) for number, text in enumerate(iterate_texts(texts))])
    texts = replace(texts, labels=None)  # whatever they mean: the classifier's answers count
    work = out.with_name(f"{out.name}.adopting")
    restore(work, out)
    check_free_for_model(out, overwrite=overwrite)
    parts = divide(texts, settings.guarantee, settings.seed)
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out, "adopt"):
        _open(work, classifier, texts, settings)
        left_over = len(texts) - sum(parts.sizes.values())
        try:
            return Adoption(str(classifier), parts, left_over, settings, work, out, on_step, on_progress).run()
        except InputError:
            if {path.name for path in work.iterdir()} <= {IDENTITY, SECONDS}:  # nothing to continue
                shutil.rmtree(work)
            raise


def _open(work: Path, classifier: str | Path, texts: Texts, settings: AdoptSettings) -> None:
    """Make the work folder, or check that an interrupted job had the same classifier, texts and settings."""
    identity = {
        "classifier": str(Path(classifier).resolve() if Path(classifier).exists() else classifier),
        "texts": len(texts),
        "digest": _digest(texts),
        "settings": vars(settings) | {"runtimes": list(settings.runtimes or ()), "report": None},
    }
    work.mkdir(exist_ok=True)
    if not (work / IDENTITY).exists():
        if any(not path.name.startswith(IDENTITY) for path in work.iterdir()):
            raise InputError(f"'{work}' exists and is not what an interrupted adoption leaves; remove it")
        write_json(work / IDENTITY, identity)
    elif read_json(work / IDENTITY) != identity:
        raise InputError(
            f"'{work}' is of an interrupted adoption of other texts or settings; remove it, or choose another out",
            options=["out"],
        )


def _digest(texts: Texts) -> str:
    """Hash texts in their order, by which they are divided: in another order, texts that taught would certify."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(text).encode())
    return digest.hexdigest()
