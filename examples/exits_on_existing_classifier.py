"""Add early exits to a fine-tuned classifier without changing the answers it gives at full depth.

python examples/exits_on_existing_classifier.py --classifier my-classifier --out my-classifier-exits

Without `--classifier`, a small stand-in is made: a random BERT of four layers with the tokenizer of the extra `demo`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig

from exitpoll import EarlyExitModel, Engine, TrainingSettings, calibrate, load_model, load_splits, record, train
from exitpoll.models.pretrained import encoder_folder

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--classifier", type=Path, help="a folder of transformers with safetensors weights")
parser.add_argument("--out", type=Path, required=True, help="the model folder to write")
parser.add_argument("--data", default="embedded", help="a file, a folder, a task or a dataset of the hub")
parser.add_argument("--texts", type=int, default=2000, help="train the new heads on at most this many texts")
arguments = parser.parse_args()

# 1. The classifier: yours, or a stand-in.
classifier = arguments.classifier or arguments.out.with_name(f"{arguments.out.name}-stand-in")
if arguments.classifier is None:
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 128}
    config = BertConfig(num_labels=2, id2label={0: "negative", 1: "positive"}, **shape)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(classifier)
    AutoTokenizer.from_pretrained(encoder_folder("embedded")).save_pretrained(classifier)

# 2. New heads below its own. The encoder and the classifier's own head stay as they are.
splits = load_splits(arguments.data, limit=arguments.texts)
model = EarlyExitModel.from_classifier(classifier)
tokenizer = AutoTokenizer.from_pretrained(classifier)
train(model, tokenizer, splits, arguments.out, TrainingSettings(epochs=1))

# 3. At full depth nothing has changed, to the last bit.
tokens = tokenizer(list(splits.test.first[:8]), return_tensors="pt", padding=True)
before = AutoModelForSequenceClassification.from_pretrained(classifier).eval()
with torch.no_grad():
    unchanged = torch.equal(before(**tokens).logits, EarlyExitModel.from_pretrained(arguments.out)(**tokens).logits)
print("logits at full depth are the same as before:", unchanged)

# 4. Guarantee that early exit rarely changes its answers. That needs no labels, only texts of the kind it will see.
trace = record(load_model(arguments.out), splits.calibration, f"{arguments.out}.calibration.safetensors")
policy = calibrate(trace, max_disagreement=0.05)
policy.save(arguments.out / "policy.json")
print("guarantee:", policy.certificate.guarantee or "none possible with these texts")

# 5. Answer with early exit.
for prediction in Engine.load(arguments.out)(["a gorgeous , witty , seductive movie .", "it is dull ."]):
    print(prediction.label, f"{prediction.probability:.2f}", f"after {prediction.depth} layers")
