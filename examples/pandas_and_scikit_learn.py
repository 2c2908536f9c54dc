"""Classify a pandas Series with early exits, and score the answers with scikit-learn.

python examples/train_and_calibrate.py --out reviews
python examples/pandas_and_scikit_learn.py --model reviews
"""

from __future__ import annotations

import argparse

import pandas as pd
from sklearn.metrics import accuracy_score, classification_report

from exitpoll import Engine, Policy, load_splits


def predict(engine: Engine, texts: pd.Series) -> pd.DataFrame:
    """Return label, probability and depth of every text, with the index of the texts."""
    predictions = engine(texts.tolist())
    columns = ("label", "probability", "depth")
    rows = [[getattr(prediction, column) for column in columns] for prediction in predictions]
    return pd.DataFrame(rows, index=texts.index, columns=columns)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", required=True, help="a model folder with its policy.json")
parser.add_argument("--texts", type=int, default=1030, help="classify at most this many texts")
arguments = parser.parse_args()

# Texts and labels as a DataFrame; any DataFrame with a column of texts will do.
splits = load_splits("embedded")
names = pd.Series(splits.label_names)
reviews = pd.DataFrame({"text": splits.test.first, "gold": names.iloc[splits.test.labels].to_numpy()})
reviews = reviews.head(arguments.texts)

# With the model's policy, and with one that never exits early.
early = reviews.join(predict(Engine.load(arguments.model), reviews["text"]))
full = reviews.join(predict(Engine.load(arguments.model, policy=Policy()), reviews["text"]))

print(early.head().to_string(max_colwidth=50))
print(classification_report(early["gold"], early["label"], zero_division=0))
print(f"accuracy with exits: {accuracy_score(early['gold'], early['label']):.3f}")
print(f"accuracy at full depth: {accuracy_score(full['gold'], full['label']):.3f}")
print(f"answers that differ: {(early['label'] != full['label']).mean():.1%}")
print(f"speed-up in layers: {full['depth'].mean() / early['depth'].mean():.2f}")
print("mean depth by label:")
print(early.groupby("gold")["depth"].mean().round(2).to_string())
