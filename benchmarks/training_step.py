"""The cost of a training step with a head after every layer, against plain fine-tuning with one head by Trainer.

Both train the same encoder on the same texts, alternately. Limit: 1.15 times.

    python benchmarks/training_step.py [--encoder FOLDER] [--tokens 32]
"""

from __future__ import annotations

import argparse
import logging
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from common import make_encoder, make_texts, write_results
from exitpoll import EarlyExitModel, Splits, Texts, TrainingSettings, train
from exitpoll.data.progress import Progress
from exitpoll.models.tokenizer import tokenize

BATCH, STEPS, SKIPPED, CLASSES = 32, 10, 2, 6
BAR = 1.15


class Clock(TrainerCallback):
    """Records the end of every step."""

    def __init__(self) -> None:
        """Start without steps."""
        self.ticks: list[float] = []

    def on_step_end(self, *arguments: object, **named: object) -> None:
        """Record the end of a step of Trainer."""
        self.ticks.append(time.perf_counter())

    def see(self, progress: Progress) -> None:
        """Record the end of a step of exitpoll."""
        self.ticks.append(time.perf_counter())

    def steps(self) -> list[float]:
        """Return the seconds of every step after the warm-up."""
        return np.diff(self.ticks)[SKIPPED:].tolist()


def plain(encoder: Path, tokenizer: PreTrainedTokenizerBase, texts: Texts, scratch: Path) -> list[float]:
    """Fine-tune with one head."""
    clock = Clock()
    Trainer(
        model=AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=CLASSES),
        args=TrainingArguments(
            output_dir=str(scratch / "plain"),
            num_train_epochs=1,
            per_device_train_batch_size=BATCH,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=tokenize(texts, tokenizer, 128),
        data_collator=DataCollatorWithPadding(tokenizer),
        callbacks=[clock],
    ).train()
    return clock.steps()


def ours(encoder: Path, tokenizer: PreTrainedTokenizerBase, texts: Texts, scratch: Path) -> list[float]:
    """Train with a head after every layer."""
    clock = Clock()
    few = texts.select(np.arange(BATCH))
    names = [str(number) for number in range(CLASSES)]
    splits = Splits(texts, few, few, names, "single_label_classification", "accuracy")
    model = EarlyExitModel.from_encoder(encoder, labels=names)
    settings = TrainingSettings(epochs=1, batch_size=BATCH, logs_per_epoch=1)
    train(model, tokenizer, splits, scratch / "ours", settings, overwrite=True, on_progress=clock.see)
    return clock.steps()


def main() -> None:
    """Train both alternately and compare the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", type=Path, help="a 12-layer, 384-wide BERT with random weights by default")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    scratch = Path(tempfile.mkdtemp(prefix="exitpoll-"))
    try:
        encoder = arguments.encoder or make_encoder(scratch / "encoder")
        tokenizer = AutoTokenizer.from_pretrained(encoder)
        count = BATCH * (STEPS + SKIPPED + 1)
        labels = np.arange(count) % CLASSES
        texts = Texts(make_texts(count, arguments.tokens), None, labels)
        seconds: dict[str, list[float]] = {"plain": [], "ours": []}
        for _ in range(arguments.rounds):
            seconds["plain"] += plain(encoder, tokenizer, texts, scratch)
            seconds["ours"] += ours(encoder, tokenizer, texts, scratch)
    finally:
        shutil.rmtree(scratch)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    ratio = medians["ours"] / medians["plain"]
    write_results(
        "training_step",
        {
            "texts": BATCH,
            "tokens": arguments.tokens,
            "steps_timed": len(seconds["ours"]),
            "median_seconds": {name: round(median, 4) for name, median in medians.items()},
            "ours_over_plain": round(ratio, 3),
            "bar": BAR,
            "within_bar": ratio <= BAR,
        },
    )


if __name__ == "__main__":
    main()
