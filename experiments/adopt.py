"""What `exitpoll adopt` gains on classifiers that plain transformers fine-tuned.

Every classifier is fine-tuned on half of the training data; `adopt` sees the texts of the other half, without labels,
and what it guarantees is measured on the test split.

    python experiments/adopt.py DATA MODELS WORK trec routing pairs reranker korean [--adapt]

DATA holds folders of train.tsv, dev.tsv and test.tsv (trec, agnews, sst5, cola, snli, qqp, nsmc), MODELS the encoders
gte-small and albert-kor-base. WORK keeps classifiers and adopted folders, so that a run that was interrupted continues.
Writes experiments/results/adopt.json.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from exitpoll import Engine, Texts, load_model
from exitpoll.adoption.adopt import adopt_classifier
from exitpoll.adoption.outcome import Adapting
from exitpoll.adoption.settings import AdoptSettings
from exitpoll.decide.analysis import consistency_oracle
from exitpoll.engine.record import record_in_memory
from exitpoll.files import read_json, write_json

RESULTS = Path(__file__).parent / "results" / "adopt.json"
SEED = 0
ALL_LAYERS = "all layers run"  # by default, where exits cost more time than they save

Example = tuple[tuple[str, ...], float]  # one text or two, and a class number or a value


@dataclass(frozen=True)
class Task:
    """A classifier to adopt, and the data it comes from."""

    read: Callable[[Path], tuple[list[Example], list[Example]]]  # of train and test
    encoder: str
    about: str
    learn: int = 4000  # examples that it is fine-tuned on
    adopt: int = 4000  # texts that adopt sees
    test: int = 1000
    epochs: float = 2.0
    values: bool = False  # regression


def read_table(folder: Path, split: str) -> list[dict[str, str]]:
    """Read a split."""
    with (folder / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def single(name: str, held_out: str) -> Callable[[Path], tuple[list[Example], list[Example]]]:
    """Return a reader of a dataset of texts or pairs."""

    def read(data: Path) -> tuple[list[Example], list[Example]]:
        train, test = (read_table(data / name, split) for split in ("train", held_out))
        names = sorted({row["label"] for row in train})
        return tuple([_example(row, names) for row in rows] for rows in (train, test))  # type: ignore[return-value]

    return read


def _example(row: dict[str, str], names: Sequence[str]) -> Example:
    """Return the texts of a row, and the number of its class."""
    texts = (row["text"],) if "text" in row else (row["text_a"], row["text_b"])
    return texts, names.index(row["label"])


ROUTES = (  # dataset, held-out split, column of the text, whether its classes are told apart
    ("trec", "test", "text", True),
    ("agnews", "test", "text", True),
    ("sst2", "dev", "text", True),
    ("nsmc", "test", "text", True),
    ("snli", "test", "text_a", False),
    ("snli", "test", "text_b", False),
    ("mrpc", "dev", "text_a", False),
    ("qqp", "dev", "text_a", False),
    ("rte", "dev", "text_a", False),
    ("cola", "dev", "text", False),
)


def read_routing(data: Path) -> tuple[list[Example], list[Example]]:
    """Mix nine datasets to a task of 20 classes: which kind of text it is and, of four of them, its class there."""
    named: list[list[tuple[str, str]]] = [[], []]  # texts and names of their classes, of train and test
    for name, held_out, column, by_class in ROUTES:
        for rows, split, most in zip(named, ("train", held_out), (1000, 250), strict=True):
            table = read_table(data / name, split)
            for number in np.random.default_rng(SEED).permutation(len(table))[: most if by_class else most // 2]:
                kind = table[number]["label"] if by_class else column
                rows.append((table[number][column], f"{name} {kind}"))
    classes = sorted({kind for _, kind in named[0]})
    train, test = ([_numbered(text, kind, classes) for text, kind in rows] for rows in named)
    return train, test


def _numbered(text: str, kind: str, classes: Sequence[str]) -> Example:
    """Return a text with the number of its class."""
    return (text,), classes.index(kind)


TASKS = {
    "trec": Task(single("trec", "test"), "gte-small", "TREC questions, 6 classes", 2700, 2700, 500, 3.0),
    "routing": Task(read_routing, "gte-small", "nine datasets mixed, 20 classes", 3000, 4000, 1000, 2.0),
    "pairs": Task(single("qqp", "dev"), "gte-small", "Quora pairs, duplicate or not", 3000, 4000, 1000, 2.0),
    "reranker": Task(
        single("qqp", "dev"), "gte-small", "Quora pairs, a value (CrossEncoder)", 3000, 4000, 1000, 2.0, True
    ),
    "korean": Task(single("nsmc", "test"), "albert-kor-base", "Korean movie reviews, 2 classes", 1500, 2500, 500, 1.0),
}


def fine_tune(task: Task, examples: list[Example], encoder: Path, out: Path) -> None:
    """Fine-tune a classifier with plain transformers, unless that has been done."""
    if out.exists():
        return
    set_seed(SEED)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    classes = 1 if task.values else 1 + int(max(label for _, label in examples))
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=classes)
    model.config.problem_type = "regression" if task.values else "single_label_classification"
    rows = [
        {**tokenizer(*texts, truncation=True, max_length=64), "labels": float(label) if task.values else int(label)}
        for texts, label in examples
    ]
    arguments = TrainingArguments(
        output_dir=str(out.with_name(f"{out.name}.training")),
        num_train_epochs=task.epochs,
        per_device_train_batch_size=64,
        learning_rate=1e-4,
        warmup_steps=0.1,
        train_sampling_strategy="group_by_length",
        save_strategy="no",
        report_to=[],
        seed=SEED,
        use_cpu=True,
    )
    Trainer(model, arguments, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)).train()
    aside = out.with_name(f"{out.name}.saving")
    tokenizer.model_max_length = 64
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    aside.rename(out)


def to_texts(examples: list[Example]) -> Texts:
    """Return texts without labels."""
    return Texts.of([texts[0] if len(texts) == 1 else texts for texts, _ in examples])  # type: ignore[misc]


def measure(task: Task, name: str, data: Path, models: Path, work: Path, *, adapt: bool) -> dict[str, Any]:
    """Fine-tune, adopt, and measure on the test split."""
    train, test = task.read(data)
    order = np.random.default_rng(SEED).permutation(len(train))
    learn = [train[row] for row in order[: task.learn]]
    rest = [train[row] for row in order[task.learn : task.learn + task.adopt]]
    classifier, out = work / f"{name}-classifier", work / f"{name}-{'adapted' if adapt else 'frozen'}"
    fine_tune(task, learn, models / task.encoder, classifier)
    settings = AdoptSettings(adapt=adapt, seed=SEED)
    before = start_peak()
    adopted = adopt_classifier(classifier, to_texts(rest), out, settings, on_step=print, overwrite=True)
    peak = mebibytes("VmHWM")
    held_out = to_texts([test[row] for row in np.random.default_rng(SEED).permutation(len(test))[: task.test]])
    original = reference_answers(classifier, held_out)
    return {
        "about": task.about,
        "texts": len(rest),
        "sizes": dict(adopted.texts),
        "guarantee": adopted.guarantee,
        "minutes": round(adopted.seconds / 60, 2),
        "memory": {  # MiB
            "before": before,
            "peak": peak,
            "weights": round(sum(path.stat().st_size for path in classifier.glob("*.safetensors")) / 2**20),
        },
        "oracle": adopted.oracle_speedup,
        "runtime": adopted.runtime,
        "adapting": None if adopted.adapting is None else asdict(adopted.adapting),
        "in_runtimes": [asdict(row) for row in adopted.in_runtimes],
        "gains": [asdict(gain) for gain in adopted.gains],
        "test": {row.runtime: test_in(out, row.runtime, held_out, original) for row in adopted.in_runtimes},
        "test_oracle": round(float(consistency_oracle(_trace(out, held_out)).speedup), 3) if not task.values else None,
    }


def start_peak() -> int | None:
    """Forget the peak of this process's memory, where the system can, and return what it uses, in MiB."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return mebibytes("VmRSS")


def mebibytes(name: str) -> int | None:
    """Read a size of this process; None where the system does not tell."""
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return round(int(next(line for line in lines if line.startswith(name)).split()[1]) / 1024)
    return None


def reference_answers(classifier: Path, texts: Texts) -> np.ndarray:
    """Return the logits of the classifier in plain transformers, (texts, classes)."""
    model = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    given = list(texts)
    logits = []
    with torch.inference_mode():
        for start in range(0, len(given), 32):
            part = given[start : start + 32]
            columns = list(zip(*part, strict=True)) if isinstance(part[0], tuple) else [part]
            tokens = tokenizer(*map(list, columns), truncation=True, padding=True, return_tensors="pt")
            logits.append(model(**tokens).logits.numpy())
    return np.concatenate(logits)


def test_in(folder: Path, runtime: str, texts: Texts, original: np.ndarray) -> dict[str, float]:
    """Measure depth and disagreement with the original on texts that nothing was chosen on."""
    engine = Engine.load(folder, runtime)
    predictions = engine(list(texts))
    depth = float(np.mean([prediction.depth for prediction in predictions]))
    certificate = engine.policy.certificate
    tolerance = getattr(certificate.goal, "tolerance", None) if certificate is not None else None
    if tolerance is not None:
        values = np.array([row.label for row in predictions], dtype=np.float64)
        differs = np.abs(values - original[:, 0]) > tolerance
    else:
        names = np.array(engine.model.label_names)
        differs = np.array([row.label for row in predictions]) != names[original.argmax(axis=1)]
    return {
        "speedup": round(engine.runtime.exit_layers[-1] / depth, 3),
        "differs": round(float(differs.mean()), 5),
        "texts": len(predictions),
    }


def _trace(folder: Path, texts: Texts) -> Any:
    """Record the test texts in torch."""
    return record_in_memory(load_model(folder, "torch"), texts)


def table(results: dict[str, Any]) -> str:
    """Write the results as the table of docs/how-to/adopt.md."""
    lines = [
        "| classifier | encoder | texts | minutes | certified: fewer layers | on test: fewer layers, other answers "
        "| perfect choice | faster than plain transformers, 1 / 32 at a time | by early exit |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, row in results["runs"].items():
        name = key.split(" ")[0]
        chosen = next(entry for entry in row["in_runtimes"] if entry["runtime"] == row["runtime"])
        test = row["test"][row["runtime"]]
        gains = [gain for gain in row["gains"] if gain["runtime"] == row["runtime"]]
        cells = [
            f"{name}: {row['about']}",
            _encoder(row.get("adapting")),
            f"{row['texts']:,}",
            f"{row['minutes']:.1f}",
            f"**{chosen['speedup']:.2f} ×**" if chosen["met"] else "none",
            f"{test['speedup']:.2f} ×, {100 * test['differs']:.1f} %",
            f"{row['oracle']:.1f} ×",
            " / ".join(f"{gain[_total(chosen)]['value']:.1f} ×" for gain in gains) + f" ({row['runtime']})",
            " / ".join(f"{gain['by_exits']['value']:.1f} ×" for gain in gains)
            if has_exits(chosen)
            else "all layers run",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def has_exits(chosen: dict[str, Any]) -> bool:
    """Return whether texts exit early in the default runtime."""
    return bool(chosen.get("exits", True))


def _total(chosen: dict[str, Any]) -> str:
    """Return the name of the gain over plain transformers of what runs by default."""
    return "total" if has_exits(chosen) else "without_exits"


def _encoder(adapting: dict[str, float] | None) -> str:
    """Say whether the encoder was trained too, and what that gained on the texts that choose."""
    if adapting is None:
        return "frozen"
    kept = "" if Adapting(**adapting).pays else ", not kept"
    changed = f"{100 * adapting['changed']:.1f} % of answers at full depth changed{kept}"
    return f"trained too: {adapting['adapted']:.2f} × against {adapting['frozen']:.2f} × frozen, {changed}"


def short_table(results: dict[str, Any]) -> str:
    """Write the results of classifiers that stay as they are, as the table of the README."""
    lines = [
        "| classifier | texts | minutes | fewer layers, guaranteed | other answers, on test "
        "| faster than the same runtime without exits | faster than plain transformers |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, row in results["runs"].items():
        chosen = next(entry for entry in row["in_runtimes"] if entry["runtime"] == row["runtime"])
        if key.endswith("adapted") or not chosen["met"]:
            continue
        gains = [gain for gain in row["gains"] if gain["runtime"] == row["runtime"]]
        cells = [
            row["about"],
            f"{row['texts']:,}",
            f"{row['minutes']:.0f}",
            f"{chosen['speedup']:.1f} ×",
            f"{100 * row['test'][row['runtime']]['differs']:.1f} %",
            " / ".join(f"**{gain['by_exits']['value']:.1f} ×**{_spread(gain['by_exits'])}" for gain in gains)
            if has_exits(chosen)
            else ALL_LAYERS,
            " / ".join(f"{gain[_total(chosen)]['value']:.1f} ×{_spread(gain[_total(chosen)])}" for gain in gains),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(gain: dict[str, float]) -> str:
    """Write the range of a ratio over rounds."""
    return f" ({gain['low']:.1f}–{gain['high']:.1f})"


def main() -> None:
    """Measure every task that is named and keep what is known of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("models", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    parser.add_argument("--adapt", action="store_true")
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    results = read_json(RESULTS) or {"runs": {}}
    for name in chosen.tasks:
        row = measure(TASKS[name], name, chosen.data, chosen.models, chosen.work, adapt=chosen.adapt)
        results["runs"][f"{name} {'adapted' if chosen.adapt else 'frozen'}"] = row
        results["machine"] = {"cores": os.cpu_count(), "processor": platform.machine()}
        write_json(RESULTS, results)
    print(table(results))


if __name__ == "__main__":
    main()
