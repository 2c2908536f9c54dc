"""One of the processes of a tiny training, started by torchrun.

worker.py ENCODER OUT NOTES [--resume] [--kill RANK:STAGE:STEP]: every process writes its process id into the folder
NOTES, and which folders and files it made, renamed and wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from exitpoll import EarlyExitModel, TrainingSettings, train
from exitpoll.training import ranks, trainer
from tests.tiny import tiny_tokenizer, toy_splits

TEXTS, OTHERS = 100, 29  # neither is divided by the batch size or by the number of processes
SETTINGS = TrainingSettings(epochs=2, batch_size=16, logs_per_epoch=7, schedule="two-stage")  # a line for every step
LABELS = ["bad", "good", "so-so"]


def without_dropout(encoder: str) -> EarlyExitModel:
    torch.manual_seed(0)
    model = EarlyExitModel.from_encoder(encoder, labels=LABELS)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def train_tiny(encoder: str, out: Path, *, resume: bool = False):
    model = without_dropout(encoder)
    return train(model, tiny_tokenizer(), toy_splits(TEXTS, OTHERS), out, SETTINGS, resume=resume)


def watch_writes(folder: Path) -> list[tuple[str, str]]:
    """Collect what this process makes, renames and writes in a folder."""
    seen: list[tuple[str, str]] = []

    def hook(event: str, arguments: tuple) -> None:
        writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
        if event in ("os.mkdir", "os.rename", "os.rmdir") or writes:
            path = os.fspath(arguments[0]) if not isinstance(arguments[0], int) else ""
            if os.fsdecode(path).startswith(str(folder)):
                missing = event != "os.mkdir" or not os.path.exists(path)
                seen.extend([(event, os.path.basename(os.fsdecode(path)))] if missing else [])

    sys.addaudithook(hook)
    return seen


def kill_at(rank: int, stage: int, step: int, notes: Path) -> None:
    """Kill one of the processes, as by kill -9, after a step of a stage (1 or 2)."""
    after_step = trainer.AfterStep.on_step_end

    def maybe_kill(self, args, state, control, **kwargs):
        after_step(self, args, state, control, **kwargs)
        now = int(Path(args.output_dir).name[0])  # of 1-last or 2-heads
        if (ranks.processes().process_index, now, state.global_step) == (rank, stage, step):
            (notes / "killed").write_text(f"{now}:{step}")
            os.kill(os.getpid(), signal.SIGKILL)

    trainer.AfterStep.on_step_end = maybe_kill


def load_late() -> None:
    """Let the second process load the best checkpoint half a second after the first, which then removes it."""
    load_best = trainer.ExitTrainer._load_best_model

    def load_best_late(self):
        time.sleep(0.5 * ranks.processes().process_index)
        load_best(self)

    trainer.ExitTrainer._load_best_model = load_best_late


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("encoder")
    parser.add_argument("out", type=Path)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill")
    chosen = parser.parse_args()
    rank = os.environ["RANK"]
    (chosen.notes / f"pid-{rank}").write_text(str(os.getpid()))
    writes = watch_writes(chosen.out.parent)
    if chosen.kill:
        rank_to_kill, stage, step = map(int, chosen.kill.split(":"))
        kill_at(rank_to_kill, stage, step, chosen.notes)
    load_late()
    train_tiny(chosen.encoder, chosen.out, resume=chosen.resume)
    (chosen.notes / f"writes-{rank}.json").write_text(json.dumps(writes))
    ranks.leave()


if __name__ == "__main__":
    main()
