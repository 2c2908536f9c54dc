"""Compare poolings, head learning rates and exit weights: the measurements behind the default settings.

Trains the paper's objective once for every combination and task, and keeps the test scores of every exit in a results
file. A run that is in the file already is not repeated, so that an interrupted script resumes.

    python experiments/defaults.py --encoder ENCODER --data TREC_FOLDER --data SST5_FOLDER
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from itertools import product
from pathlib import Path

from transformers import AutoTokenizer, set_seed

from exitpoll import EarlyExitModel, TrainingSettings, load_splits, train
from exitpoll.files import read_json, write_json

RESULTS = Path(__file__).parent / "results" / "defaults.json"
POOLINGS = ("mean", "first", "pooler")
HEAD_LEARNING_RATES = (1e-3, 5e-5)


def run(encoder: str, data: str, limit: int, pooling: str, settings: TrainingSettings) -> dict[str, object]:
    """Train once and return the test scores of every exit."""
    splits = load_splits(data, limit=limit, seed=settings.seed)
    set_seed(settings.seed)
    model = EarlyExitModel.from_encoder(encoder, labels=splits.label_names, pooling=pooling)
    scratch = Path(tempfile.mkdtemp(prefix="exitpoll-"))
    try:
        trained = train(model, AutoTokenizer.from_pretrained(encoder), splits, scratch / "model", settings)
    finally:
        shutil.rmtree(scratch)
    return {
        "training_texts": len(splits.train),
        "metric": trained.metric,
        "test_scores": [round(score, 4) for score in trained.test_scores],
        "mean": round(sum(trained.test_scores) / len(trained.test_scores), 4),
        "seconds": round(trained.seconds),
    }


def table(results: dict[str, dict]) -> str:
    """Write the results as the table of docs/concepts/training.md."""
    exits = len(next(iter(results.values()))["test_scores"])
    numbers = " | ".join(str(number + 1) for number in range(exits))
    lines = [f"| task | pooling | head learning rate | {numbers} | mean |", "|---" * (exits + 4) + "|"]
    for name, result in sorted(results.items(), key=lambda item: (item[0].split()[0], -item[1]["mean"])):
        task, pooling, rate, _ = name.split()
        scores = " | ".join(f"{100 * score:.1f}" for score in result["test_scores"])
        lines.append(f"| {task} | {pooling} | {rate.split('=')[1]} | {scores} | {100 * result['mean']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Run all combinations that are not in the results file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--data", required=True, action="append")
    parser.add_argument("--limit", type=int, default=5000, help="training texts of every task")
    parser.add_argument("--weights", default="uniform", choices=("uniform", "depth"))
    parser.add_argument("--pooling", nargs="+", default=POOLINGS, choices=POOLINGS)
    parser.add_argument("--head-learning-rate", nargs="+", type=float, default=HEAD_LEARNING_RATES)
    arguments = parser.parse_args()
    results = read_json(RESULTS) or {}
    for pooling, data, rate in product(arguments.pooling, arguments.data, arguments.head_learning_rate):
        settings = TrainingSettings(head_learning_rate=rate, exit_weights=arguments.weights)
        name = f"{Path(data).name} {pooling} head_learning_rate={rate:g} weights={arguments.weights}"
        if name not in results:
            outcome = run(arguments.encoder, data, arguments.limit, pooling, settings)
            results[name] = {"encoder": Path(arguments.encoder).name} | outcome
            write_json(RESULTS, results)
        scores = " ".join(f"{100 * score:.1f}" for score in results[name]["test_scores"])
        print(f"{name}: {scores} (mean {100 * results[name]['mean']:.1f})", flush=True)
    print(table(results))


if __name__ == "__main__":
    main()
