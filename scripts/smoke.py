"""Smoke test of an installed exitpoll, as a user runs it: every step is a command of the CLI.

python scripts/smoke.py

Makes a tiny encoder from a config and a few labelled texts in a temporary folder, then trains, records, calibrates,
predicts, exports, predicts with the exports and writes a report. Takes seconds and needs no network; the extras data,
onnx and plots must be installed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = os.environ["ORT_DISABLE_TELEMETRY"] = "1"
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = os.environ["TQDM_DISABLE"] = "1"

from datasets import Dataset, load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

CLASSES = {"bad": ["bad", "awful", "poor"], "good": ["good", "fine", "great"]}
FILLERS = ["the", "film", "was", "and", "with", "a", "very", "plot", "cast", "of"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SPLITS = {"train": 256, "dev": 128, "test": 64}


def make_encoder(folder: Path) -> None:
    """Write a BERT of three layers with random weights, and a tokenizer of whole words."""
    words = [*SPECIAL, *FILLERS, *(word for words in CLASSES.values() for word in words)]
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    named = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named).save_pretrained(folder)


def make_data(folder: Path) -> None:
    """Write three Parquet files of sentences whose label depends on a single word, and read one back as a dataset."""
    generator = random.Random(0)
    for split, count in SPLITS.items():
        rows: dict[str, list[str]] = {"text": [], "label": []}
        for _ in range(count):
            label = generator.choice(list(CLASSES))
            words = [*generator.choices(FILLERS, k=generator.randint(2, 8)), generator.choice(CLASSES[label])]
            generator.shuffle(words)
            rows["text"].append(" ".join(words))
            rows["label"].append(label)
        Dataset.from_dict(rows).to_parquet(folder / f"{split}.parquet")
    loaded = load_dataset("parquet", data_files=str(folder / "test.parquet"), cache_dir=str(folder / "cache"))
    check(len(loaded["train"]) == SPLITS["test"], "datasets reads the Parquet file that it wrote")


def exitpoll(*arguments: str, folder: Path) -> None:
    """Run one command in a folder; show its output only if it fails."""
    command = [str(Path(sys.executable).with_name("exitpoll")), *arguments]
    print("exitpoll", *arguments, flush=True)
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nexit code {done.returncode}")


def check(holds: bool, claim: str) -> None:
    """Stop with a message unless a claim holds."""
    if not holds:
        sys.exit(f"failed: {claim}")


def labels_in(path: Path) -> list[str]:
    """Read the predicted labels of a JSONL file."""
    return [json.loads(line)["predicted"] for line in path.read_text(encoding="utf-8").splitlines()]


def run(folder: Path) -> None:
    """Run all steps in a folder and check what they wrote."""
    (folder / "data").mkdir()
    make_encoder(folder / "encoder")
    make_data(folder / "data")
    train = ["train", "--encoder", "encoder", "--data", "data", "--out", "model"]
    exitpoll(*train, "--epochs", "6", "--learning-rate", "0.005", "--logs-per-epoch", "1", folder=folder)
    exitpoll("record", "model", "--data", "data", "--out", "trace.safetensors", folder=folder)
    exitpoll("sweep", "trace.safetensors", folder=folder)
    exitpoll("calibrate", "model", "--trace", "trace.safetensors", "--speedup", "1.2", folder=folder)
    exitpoll("export", "model", folder=folder)
    exitpoll("export", "model", "--int8", "--data", "data", folder=folder)
    for model, output in (("model", "torch"), ("model/onnx", "onnx"), ("model/onnx-int8", "onnx-int8")):
        exitpoll("predict", model, "--data", "data/test.parquet", "--out", f"{output}.jsonl", folder=folder)
        check(len(labels_in(folder / f"{output}.jsonl")) == SPLITS["test"], f"{model} predicts every row")
    check(labels_in(folder / "torch.jsonl") == labels_in(folder / "onnx.jsonl"), "torch and ONNX Runtime agree")
    exitpoll("report", "model", "--data", "data", folder=folder)
    check((folder / "model" / "report" / "report.html").is_file(), "the report is written")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(scratch))
    print("smoke test passed")
