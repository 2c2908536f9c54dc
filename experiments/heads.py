"""Which heads learn a frozen classifier's answers best: what they read, how wide they are, and what they are taught.

    python -m experiments.heads DATA WORK trec routing pairs

WORK holds the classifiers that experiments/adopt.py has fine-tuned. The texts are divided as `exitpoll adopt` divides
them; every kind of head is trained on those that teach, chosen on those that choose, and certified on the others, with
at most 1 % of other answers. Writes experiments/results/heads.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from experiments.adopt import SEED, TASKS, to_texts
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

from exitpoll import Texts, Trace, calibrate
from exitpoll.adoption.parts import divide
from exitpoll.decide.analysis import consistency_oracle
from exitpoll.decide.certificate import Guarantee
from exitpoll.files import read_json, write_json

RESULTS = Path(__file__).parent / "results" / "heads.json"
EPOCHS, BATCH_SIZE, LEARNING_RATE = 10, 64, 1e-3


@dataclass(frozen=True)
class Features:
    """What a frozen classifier computes for some texts."""

    tokens: Tensor  # (texts, layers, tokens, width) float16
    mask: Tensor  # (texts, tokens)
    logits: Tensor  # (texts, classes)


def features_of(classifier: Path, texts: Texts) -> Features:
    """Run the classifier over texts, and keep the hidden states of all layers but the last."""
    model = AutoModelForSequenceClassification.from_pretrained(classifier, output_hidden_states=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(classifier)
    given = list(texts)
    columns = list(zip(*given, strict=True)) if isinstance(given[0], tuple) else [given]
    tokens = tokenizer(*map(list, columns), truncation=True, max_length=64, padding=True, return_tensors="pt")
    states, logits = [], []
    with torch.inference_mode():
        for start in range(0, len(given), 64):
            output = model(**{name: column[start : start + 64] for name, column in tokens.items()})
            states.append(torch.stack(output.hidden_states[1:-1], dim=1).half())
            logits.append(output.logits)
    return Features(torch.cat(states), tokens["attention_mask"], torch.cat(logits))


# ---- heads ----------------------------------------------------------------------------------------------------------


class Pooling(nn.Module):
    """What a head reads of the hidden states of a layer."""

    def __init__(self, kind: str, width: int) -> None:
        """Prepare one of: mean, mean max min, attention."""
        super().__init__()
        self.kind = kind
        self.size: int = 3 * width if kind == "mean max min" else width
        self.query = nn.Linear(width, 1) if kind == "attention" else None

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pool (texts, tokens, width) into (texts, size)."""
        flags = mask[:, :, None].bool()
        if self.query is not None:
            weights = self.query(hidden).masked_fill(~flags, -1e4).softmax(dim=1)
            return (weights * hidden).sum(dim=1)
        mean = (hidden * flags).sum(dim=1) / flags.sum(dim=1)
        if self.kind == "mean":
            return mean
        highest = hidden.masked_fill(~flags, -1e4).amax(dim=1)
        return torch.cat([mean, highest, hidden.masked_fill(~flags, 1e4).amin(dim=1)], dim=1)


class Heads(nn.Module):
    """A head for every layer; each may read what the one before it said."""

    def __init__(self, layers: int, width: int, classes: int, *, pooling: str, hidden: int, chained: bool) -> None:
        """Prepare untrained heads; `hidden` 0 is a linear head."""
        super().__init__()
        self.chained = chained
        poolings = [Pooling(pooling, width) for _ in range(layers)]
        self.poolings, size = nn.ModuleList(poolings), poolings[0].size + (classes if chained else 0)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(size, hidden), nn.Tanh(), nn.Linear(hidden, classes))
            if hidden
            else nn.Linear(size, classes)
            for _ in range(layers)
        )
        self.classes = classes

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Compute logits, (texts, layers, classes)."""
        said = torch.zeros(len(tokens), self.classes)
        logits = []
        for number, (pooling, head) in enumerate(zip(self.poolings, self.heads, strict=True)):
            read = pooling(tokens[:, number].float(), mask)
            said = head(torch.cat([read, log_softmax(said.detach(), dim=1)], dim=1) if self.chained else read)
            logits.append(said)
        return torch.stack(logits, dim=1)


Loss = Callable[[Tensor, Tensor], Tensor]  # logits (texts, classes), those of the classifier


def forward_kl(temperature: float) -> Loss:
    """Return the usual distillation: KL(classifier ‖ head)."""

    def loss(logits: Tensor, teacher: Tensor) -> Tensor:
        target = log_softmax(teacher / temperature, dim=1)
        student = log_softmax(logits / temperature, dim=1)
        return temperature**2 * kl_div(student, target, log_target=True, reduction="batchmean")

    return loss


def reverse_kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return FastBERT's distillation: KL(head ‖ classifier)."""
    student, target = log_softmax(logits, dim=1), log_softmax(teacher, dim=1)
    return kl_div(target, student, log_target=True, reduction="batchmean")


def hard(logits: Tensor, teacher: Tensor) -> Tensor:
    """Learn the classifier's answers alone."""
    return cross_entropy(logits, teacher.argmax(dim=1))


soft = forward_kl(1.0)


def both(logits: Tensor, teacher: Tensor) -> Tensor:
    """Learn the classifier's probabilities and its answers, with the same weight."""
    return (soft(logits, teacher) + hard(logits, teacher)) / 2


@dataclass(frozen=True)
class Kind:
    """One kind of head, and what it is taught."""

    pooling: str = "mean"
    hidden: float = 1.0  # width of the head, as a share of the encoder's
    chained: bool = False
    loss: Loss = soft
    true_labels: bool = False  # learned instead of the classifier's answers


KINDS = {
    "mean": Kind(),
    "mean, max and min": Kind(pooling="mean max min"),
    "one-query attention": Kind(pooling="attention"),
    "mean, and what the head before said": Kind(chained=True),
    "mean, linear": Kind(hidden=0),
    "mean, twice as wide": Kind(hidden=2.0),
    "mean, temperature 2": Kind(loss=forward_kl(2.0)),
    "mean, KL(head ‖ classifier)": Kind(loss=reverse_kl),
    "mean, hard answers": Kind(loss=hard),
    "mean, true labels": Kind(loss=hard, true_labels=True),
    "mean, probabilities and answers": Kind(loss=both),
    "attention, probabilities and answers": Kind(pooling="attention", loss=both),
    "attention, hard answers": Kind(pooling="attention", loss=hard),
    "mean, max and min, probabilities and answers": Kind(pooling="mean max min", loss=both),
}


def train_heads(kind: Kind, features: Features) -> Heads:
    """Train heads of one kind."""
    set_seed(SEED)
    texts, layers, _, width = features.tokens.shape
    size = round(kind.hidden * width)
    classes = features.logits.shape[1]
    heads = Heads(layers, width, classes, pooling=kind.pooling, hidden=size, chained=kind.chained)
    optimizer = torch.optim.AdamW(heads.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    steps = EPOCHS * -(-texts // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(texts).split(BATCH_SIZE):
            logits = heads(features.tokens[rows], features.mask[rows])
            losses = [kind.loss(logits[:, number], features.logits[rows]) for number in range(layers)]
            optimizer.zero_grad()
            torch.stack(losses).sum().backward()
            optimizer.step()
            schedule.step()
    return heads.eval()


def trace_of(heads: Heads, features: Features) -> Trace:
    """Record all exits; the last is the classifier itself."""
    with torch.inference_mode():
        logits = [
            heads(tokens, mask)
            for tokens, mask in zip(features.tokens.split(256), features.mask.split(256), strict=True)
        ]
    return Trace(torch.cat([torch.cat(logits), features.logits[:, None]], dim=1).numpy())


def measure(classifier: Path, texts: Texts) -> dict[str, Any]:
    """Measure all kinds on one classifier."""
    parts = divide(texts, Guarantee(), SEED)
    teach, choose, certify = (features_of(classifier, part) for part in (parts.teach, parts.choose, parts.certify))
    assert parts.teach.labels is not None
    labels = nn.functional.one_hot(torch.as_tensor(parts.teach.labels), teach.logits.shape[1]).float()
    labelled = replace(teach, logits=labels)
    rows = {}
    for name, kind in KINDS.items():
        heads = train_heads(kind, labelled if kind.true_labels else teach)
        search, proof = trace_of(heads, choose), trace_of(heads, certify)
        policy = calibrate(proof, max_disagreement=0.01, search=search)
        assert policy.certificate is not None
        agreement = (proof.logits.argmax(axis=2) == proof.logits[:, -1:].argmax(axis=2)).mean(axis=0)
        rows[name] = {
            "certified_speedup": policy.certificate.speedup,
            "strategy": policy.name,
            "oracle": round(consistency_oracle(proof).speedup, 3),
            "agreement": [round(float(share), 4) for share in agreement],
        }
        print(classifier.name, name, rows[name]["certified_speedup"], rows[name]["oracle"], flush=True)
    return rows


def table(results: dict[str, Any]) -> str:
    """Write the results as the table of docs/concepts/training.md."""
    tasks = list(results)
    lines = [
        "| heads | " + " | ".join(f"{task}: certified (perfect choice)" for task in tasks) + " |",
        "|---|" + "---|" * len(tasks),
    ]
    for name in KINDS:
        rows = [results[task][name] for task in tasks]
        cells = [f"{row['certified_speedup']:.2f} × ({row['oracle']:.2f})" for row in rows]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure every task that is named and keep what is known of the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("tasks", nargs="+", choices=TASKS)
    chosen = parser.parse_args()
    results = read_json(RESULTS) or {}
    for name in chosen.tasks:
        task = TASKS[name]
        train, _ = task.read(chosen.data)
        order = np.random.default_rng(SEED).permutation(len(train))
        rest = [train[row] for row in order[task.learn : task.learn + task.adopt]]
        labels = np.array([int(label) for _, label in rest])
        results[name] = measure(chosen.work / f"{name}-classifier", replace(to_texts(rest), labels=labels))
        write_json(RESULTS, results)
    print(table(results))


if __name__ == "__main__":
    main()
