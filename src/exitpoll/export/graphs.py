"""Write a model as ONNX stages, so that ONNX Runtime can take its exits: embedding, context, layers, heads.

Every distinct layer is a graph of its own (one for all depths of an ALBERT), and so is every head: who never leaves
early pays for one head, and texts of different depths can share a layer and be read by different heads. Texts and
tokens are dynamic dimensions.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.utils import _pytree as pytree
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import batches, lengths_of, pick
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import exit_logits
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.torch_runtime import fingerprint_of, loaded_model
from exitpoll.errors import InputError, MissingExtraError
from exitpoll.models.encoders import Context
from exitpoll.models.folder import TOKENIZER
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import padding_of, readable_length

OPSET = 23  # the first with an operator for attention
EXAMPLES = ((3, 7), (5, 11))  # (texts, tokens): dimensions that differ between the two are dynamic
PROBES = 32  # texts on which an export is compared with the model
TOLERANCE = 1e-3  # of logits in float32, as a share of the largest; rounding alone gives 1e-5 or less

Graph = Any  # an onnx.ModelProto


@dataclass(frozen=True)
class Stage:
    """One graph to be written."""

    file: str
    module: nn.Module
    inputs: Mapping[str, tuple[Tensor, Tensor]]  # each as it is in the first and in the second example
    outputs: Sequence[str]
    number: int = 0  # which layer or head it is, as the names of its weights say


class _Embedding(nn.Module):
    """Token ids to the hidden states entering layer 1."""

    def __init__(self, model: EarlyExitModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *columns: Tensor) -> Tensor:
        return self.model.family.embed(self.model.encoder, dict(zip(self.names, columns, strict=True)))


class _Whole(_Embedding):
    """Token ids to the last exit's logits."""

    def forward(self, *columns: Tensor) -> Tensor:
        tokens = dict(zip(self.names, columns, strict=True))
        *_, (number, hidden) = self.model.walk_exits(tokens)
        return self.model.logits_at(number, hidden, tokens["attention_mask"])


class _Context(nn.Module):
    """Hidden states and mask to the tensors that every layer needs beside the hidden states."""

    def __init__(self, model: EarlyExitModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        context = self.model.family.context(self.model.encoder, hidden, mask)
        return tuple(tensor.clone() for tensor in _tensors(context))  # an input that is an output would lose its name


class _Layer(nn.Module):
    """Hidden states to hidden states."""

    def __init__(self, model: EarlyExitModel, context: Context, index: int) -> None:
        super().__init__()
        self.model, self.index = model, index
        self.leaves, self.shape = pytree.tree_flatten(context)

    def forward(self, hidden: Tensor, *tensors: Tensor) -> Tensor:
        given = iter(tensors)
        leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self.leaves]
        context = pytree.tree_unflatten(leaves, self.shape)
        return self.model.family.layer(self.model.encoder, hidden, context, self.index)


class _Head(nn.Module):
    """Hidden states to logits."""

    def __init__(self, model: EarlyExitModel, exit_number: int) -> None:
        super().__init__()
        self.model, self.exit_number = model, exit_number

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return self.model.logits_at(self.exit_number, self.model.family.read(self.model.encoder, hidden), mask)


def export(
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    on_progress: OnProgress = ignore,
) -> LoadedModel:
    """Write a model as ONNX stages in float32, with its tokenizer, and make sure that they say what the model says.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: The folder to write to, which exists.
        on_progress: Called after every graph.

    Returns:
        The export, loaded.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        if find_spec(package) is None:
            raise MissingExtraError("exporting", "onnx")
    folder = Path(folder)
    if model.dtype != torch.float32 or model.device.type != "cpu":
        model = copy.deepcopy(model).float().cpu()
    model = model.eval()
    _save_tokenizer(tokenizer, folder)
    manifest = _manifest(model, tokenizer)
    stages = list(_stages(model, manifest))
    translated: list[tuple[Stage, Graph]] = []
    for number, stage in enumerate(stages, start=1):
        graph = _like_an_earlier(stage, translated)
        if graph is None:
            graph = _translate(stage)
            translated.append((stage, graph))
        (folder / stage.file).write_bytes(graph.SerializeToString())
        on_progress(Progress("exporting", number, len(stages)))
    manifest.save(folder)
    exported = load_exported(folder)
    _compare(loaded_model(model, tokenizer), exported, probe_texts(tokenizer))
    return exported


def probe_texts(tokenizer: PreTrainedTokenizerBase, count: int = PROBES, seed: int = 0) -> list[str]:
    """Make texts of random words, of one to forty tokens.

    Args:
        tokenizer: Knows the words.
        count: How many texts.
        seed: Seed of the choice.

    Returns:
        The texts.
    """
    chance = np.random.default_rng(seed)
    words = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    lengths = chance.integers(1, 41, size=count)
    return [tokenizer.decode(chance.choice(words, size=length)).strip() or "a" for length in lengths]


def _manifest(model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase) -> Manifest:
    """Name the files; layers that share weights and exits that share a head share a file."""
    config = model.config
    sets = [model.family.weight_set(config.encoder, index) for index in range(config.exit_layers[-1])]
    native = len(config.exit_layers) - 1 if config.native_head else None
    heads = [0 if config.shared_head and number != native else number for number in range(len(config.exit_layers))]
    given = set(tokenizer("a")) - {"attention_mask"}
    return Manifest(
        precision="float32",
        fingerprint=fingerprint_of(model),
        exit_layers=list(config.exit_layers),
        label_names=[config.id2label[number] for number in range(config.num_labels)],
        problem_type=config.problem_type,
        max_length=readable_length(config.encoder, config.max_length),
        truncation_side=tokenizer.truncation_side,
        padding={name: filler for name, filler in padding_of(tokenizer).items() if name in given},
        embedding="embedding.onnx",
        context="context.onnx",
        layers=[f"layer-{each + 1:02}.onnx" for each in sets],
        branches=[0] * len(sets),
        heads=[f"head-{each + 1:02}.onnx" for each in heads],
    )


def _stages(model: EarlyExitModel, manifest: Manifest) -> Iterator[Stage]:
    """Go through the graphs to be written, each once, with examples of what goes in."""
    columns = [*manifest.padding, "attention_mask"]
    tokens = [_example(model, columns, *size) for size in EXAMPLES]
    with torch.no_grad():
        hidden = [model.family.embed(model.encoder, each) for each in tokens]
        masks = [each["attention_mask"] for each in tokens]
        contexts = [model.family.context(model.encoder, each, mask) for each, mask in zip(hidden, masks, strict=True)]
    seen = {"hidden": (hidden[0], hidden[1]), "mask": (masks[0], masks[1])}
    leaves = zip(*map(_tensors, contexts), strict=True)
    shared = {f"context_{number}": pair for number, pair in enumerate(leaves)}
    both = {name: (tokens[0][name], tokens[1][name]) for name in columns}
    yield Stage(manifest.embedding, _Embedding(model, columns), both, ["hidden"])
    yield Stage(manifest.context, _Context(model), seen, list(shared))
    for file, index in _first(manifest.layers).items():
        layer = _Layer(model, contexts[0], index)
        number = model.family.weight_set(model.config.encoder, index)
        yield Stage(file, layer, {"hidden": seen["hidden"], **shared}, ["hidden_out"], number)
    for file, number in _first(manifest.heads).items():
        yield Stage(file, _Head(model, number), seen, ["logits"], number)


def _first(files: Sequence[str]) -> dict[str, int]:
    """Say where each file is named first."""
    return {file: files.index(file) for file in files}


def _example(model: EarlyExitModel, columns: Sequence[str], texts: int, tokens: int) -> dict[str, Tensor]:
    """Make token ids, one text shorter than the others."""
    ids = torch.arange(texts * tokens).reshape(texts, tokens) % model.config.encoder.vocab_size
    mask = torch.ones_like(ids)
    mask[1, tokens // 2 :] = 0
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: made[name] for name in columns}


def _tensors(context: Context) -> list[Tensor]:
    """Give the tensors of a context in their order."""
    return [leaf for leaf in pytree.tree_leaves(context) if isinstance(leaf, Tensor)]


def _translate(stage: Stage) -> Graph:
    """Trace a stage and translate it; its weights keep their names."""
    texts, tokens = Dim("texts", min=1, max=1 << 16), Dim("tokens", min=2, max=1 << 16)
    names = dict(zip(EXAMPLES[0], (texts, tokens), strict=True))
    shapes = [
        {axis: names[size] for axis, size in enumerate(one.shape) if size != other.shape[axis]}
        for one, other in stage.inputs.values()
    ]
    with _quiet():
        program = torch.onnx.export(
            stage.module,
            tuple(one for one, _ in stage.inputs.values()),
            input_names=list(stage.inputs),
            output_names=list(stage.outputs),
            opset_version=OPSET,
            dynamic_shapes=_as_arguments(stage.module, shapes),
            dynamo=True,
            optimize=False,  # ONNX Runtime does that on loading
            verbose=False,
        )
    assert program is not None
    return program.model_proto


def translate_whole(model: EarlyExitModel, names: Sequence[str]) -> Graph:
    """Translate a model without its early exits, as one graph.

    Args:
        model: The model.
        names: What the tokenizer gives: input_ids, token_type_ids, …

    Returns:
        A graph from token ids to the last exit's logits.
    """
    model = copy.deepcopy(model).float().cpu().eval()
    columns = [*(name for name in names if name != "attention_mask"), "attention_mask"]
    examples = [_example(model, columns, *size) for size in EXAMPLES]
    inputs = {name: (examples[0][name], examples[1][name]) for name in columns}
    return _translate(Stage("", _Whole(model, columns), inputs, ["logits"]))


def _like_an_earlier(stage: Stage, translated: Sequence[tuple[Stage, Graph]]) -> Graph | None:
    """Put a stage's weights into the graph of an earlier one, if that then says what the stage says.

    Translating takes seconds, and the layers of most encoders differ in their weights alone.
    """
    for earlier, graph in translated:
        if type(earlier.module) is type(stage.module):
            exchanged = _exchange_weights(graph, earlier.number, stage)
            if exchanged is not None and _says_the_same(exchanged, stage):
                return exchanged
    return None


def _exchange_weights(graph: Graph, number: int, stage: Stage) -> Graph | None:
    """Give a graph the weights of another layer or head; None if they are of other names or shapes."""
    from onnx import numpy_helper

    weights = dict(stage.module.named_parameters()) | dict(stage.module.named_buffers())
    exchanged = type(graph)()
    exchanged.CopyFrom(graph)
    for tensor in exchanged.graph.initializer:
        name = tensor.name.replace(f".{number}.", f".{stage.number}.", 1)
        if tensor.name in weights and name != tensor.name:
            if name not in weights or list(weights[name].shape) != list(tensor.dims):
                return None
            tensor.CopyFrom(numpy_helper.from_array(weights[name].detach().numpy(), tensor.name))
    return exchanged


def _says_the_same(graph: Graph, stage: Stage) -> bool:
    """Whether a graph gives what a stage gives, on the second example."""
    from onnxruntime import InferenceSession

    session = InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = stage.module(*(other for _, other in stage.inputs.values())).numpy()
    [found] = session.run(None, {name: other.detach().numpy() for name, (_, other) in stage.inputs.items()})
    return np.allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def _as_arguments(module: nn.Module, shapes: list[dict[int, Any]]) -> tuple:
    """Arrange dynamic shapes as the module's forward takes its arguments: variable ones are one tuple."""
    if isinstance(module, _Embedding):
        return (tuple(shapes),)
    if isinstance(module, _Layer):
        return (shapes[0], tuple(shapes[1:]))
    return tuple(shapes)


def _compare(model: LoadedModel, exported: LoadedModel, texts: Sequence[str]) -> None:
    """Refuse an export that does not say what the model says."""
    tokens = model.tokenize(Texts(texts))
    for name, column in exported.tokenize(Texts(texts)).items():
        if list(map(list, column)) != list(map(list, tokens[name])):
            raise InputError(f"the exported tokenizer gives other {name} than transformers does")
    worst, largest = 0.0, 0.0
    for rows in batches(lengths_of(tokens), 8):
        ours, theirs = (exit_logits(each.runtime, pick(tokens, rows)) for each in (model, exported))
        worst = float(np.maximum(worst, np.abs(ours - theirs).max()))  # NaN stays NaN
        largest = max(largest, float(np.abs(ours).max()))
    if not worst <= TOLERANCE * max(largest, 1.0):
        raise InputError(f"the export does not say what the model says: logits differ by up to {worst:.2g}")


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write tokenizer.json, which is all that `tokenizers` needs."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(f"a {type(tokenizer).__name__} has no tokenizer.json; only fast tokenizers can be exported")
    backend.save(str(folder / TOKENIZER))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter has to say about itself out of our output."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
