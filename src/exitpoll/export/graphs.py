"""Write a model as ONNX graphs for ONNX Runtime: embedding, context, layers, heads.

Every distinct layer is a graph of its own (one for all depths of an ALBERT), and so is every head. A batch therefore
runs only the heads it needs, and texts of different depths can share a layer and be read by different heads. The
numbers of texts and tokens are dynamic dimensions.
"""

from __future__ import annotations

import copy
import logging
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.export import Dim
from transformers import PreTrainedTokenizerBase

from exitpoll.data.batching import batches, lengths_of, pick
from exitpoll.data.progress import OnProgress, Progress, ignore
from exitpoll.data.splits import Texts
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import exit_logits
from exitpoll.engine.runtime import LoadedModel
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.errors import InputError, check_installed
from exitpoll.export.parts import (
    ContextPart,
    EmbeddingPart,
    FullModelPart,
    HeadPart,
    LayerPart,
    Part,
    ZeroHeadPart,
    context_of_mask,
    tensors_of,
    token_weights,
)
from exitpoll.export.simplify import simplify
from exitpoll.models.fingerprint import fingerprint_of
from exitpoll.models.folder import TOKENIZER
from exitpoll.models.model import EarlyExitModel
from exitpoll.models.tokenizer import padding_of, readable_length

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET = 23  # the first with an operator for attention
EXAMPLES = ((3, 7), (5, 11))  # (texts, tokens): dimensions that differ between the two are dynamic
CHECKED_TEXTS = 32  # random texts on which the graphs are compared with the model
WEIGHTS = "token_weights"  # an input of heads: the weights of tokens in the mean over a text
TOLERANCE = 1e-3  # of float32 logits, relative to the largest; rounding alone gives 1e-5 or less
EXPORTER_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")
_EXPORTER_LOCK = threading.Lock()  # log levels and warning filters belong to the process


@dataclass(frozen=True)
class GraphSpec:
    """One graph to be written."""

    file: str
    module: Part
    inputs: Mapping[str, Sequence[Tensor]]  # by name: the tensor in the first and in the second example
    outputs: Sequence[str]
    number: int = 0  # of the layer or head, as in the names of its weights


def export_graphs(
    model: EarlyExitModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | Path,
    *,
    on_progress: OnProgress = ignore,
) -> LoadedModel:
    """Write a model as ONNX graphs in float32, with its tokenizer, and check that the logits stay the same.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        folder: An existing folder to write to.
        on_progress: Called after every graph.

    Returns:
        The export, loaded.
    """
    check_installed(("onnx", "onnxscript", "onnxruntime"), "exporting", "onnx")
    folder = Path(folder)
    if model.dtype != torch.float32 or model.device.type != "cpu":
        model = copy.deepcopy(model).float().cpu()
    model = model.eval()
    _save_tokenizer(tokenizer, folder)
    manifest = _manifest(model, tokenizer)
    specs = list(_graph_specs(model, manifest))
    translated: list[tuple[GraphSpec, ModelProto]] = []
    for number, spec in enumerate(specs, start=1):
        graph = _reuse(translated, spec)
        if graph is None:
            graph = _translate(spec)
            translated.append((spec, graph))
        (folder / spec.file).write_bytes(simplify(graph).SerializeToString())
        on_progress(Progress("exporting", number, len(specs)))
    manifest.save(folder)
    exported = load_exported(folder)
    _check_equivalent(loaded_model(model, tokenizer), exported, Texts(random_texts(tokenizer, CHECKED_TEXTS)))
    return exported


def random_texts(tokenizer: PreTrainedTokenizerBase, count: int, seed: int = 0) -> list[str]:
    """Make texts of one to forty random tokens.

    Args:
        tokenizer: The tokenizer whose vocabulary to use.
        count: How many texts.
        seed: Seed of the random generator.

    Returns:
        The texts.
    """
    generator = np.random.default_rng(seed)
    vocabulary = np.setdiff1d(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    lengths = generator.integers(1, 41, size=count)
    return [tokenizer.decode(generator.choice(vocabulary, size=length)).strip() or "a" for length in lengths]


def translate_whole(model: EarlyExitModel, names: Sequence[str], exit_number: int | None = None) -> ModelProto:
    """Translate a model without its early exits to one ONNX graph.

    Args:
        model: The model.
        names: What the tokenizer returns: input_ids, token_type_ids, …
        exit_number: The exit at which the graph ends, counted from 0; the last by default.

    Returns:
        A graph from token ids to that exit's logits.
    """
    model = copy.deepcopy(model).float().cpu()
    columns = [*(name for name in names if name != "attention_mask"), "attention_mask"]
    examples = [_example_tokens(model, columns, *size) for size in EXAMPLES]
    inputs = {name: [tokens[name] for tokens in examples] for name in columns}
    number = len(model.config.exit_layers) - 1 if exit_number is None else exit_number
    return _translate(GraphSpec("", FullModelPart(model, columns, number), inputs, ["logits"]))


# ---- which graphs ---------------------------------------------------------------------------------------------------


def _manifest(model: EarlyExitModel, tokenizer: PreTrainedTokenizerBase) -> Manifest:
    """Name the files; layers that share weights and exits that share a head share a file."""
    config = model.config
    weight_sets = [model.family.weight_set(config.encoder, index) for index in range(config.exit_layers[-1])]
    native = len(config.exit_layers) - 1 if config.native_head else None
    alone = {native} | ({0} if model.has_exit_zero else set())  # exits that do not share a head with others
    first = int(model.has_exit_zero)
    exits = range(len(config.exit_layers))
    heads = [first if config.shared_head and number not in alone else number for number in exits]
    columns = set(tokenizer("a")) - {"attention_mask"}
    return Manifest(
        precision="float32",
        model_fingerprint=fingerprint_of(model, tokenizer),
        exit_layers=list(config.exit_layers),
        label_names=[config.id2label[number] for number in range(config.num_labels)],
        problem_type=config.problem_type,
        max_length=readable_length(config.encoder, config.max_length),
        truncation_side=tokenizer.truncation_side,
        padding={name: filler for name, filler in padding_of(tokenizer).items() if name in columns},
        embedding="embedding.onnx",
        context="context.onnx",
        layers=[f"layer-{number + 1:02}.onnx" for number in weight_sets],
        heads=[f"head-{number + 1:02}.onnx" for number in heads],
    )


def _graph_specs(model: EarlyExitModel, manifest: Manifest) -> Iterator[GraphSpec]:
    """List the graphs to be written, with two examples of their inputs."""
    family = model.family
    columns = [*manifest.padding, "attention_mask"]
    examples = [_example_tokens(model, columns, *size) for size in EXAMPLES]
    masks = [tokens["attention_mask"] for tokens in examples]
    with torch.no_grad():
        hidden = [family.embed(model.encoder, tokens) for tokens in examples]
        contexts = [context_of_mask(model, mask) for mask in masks]
        weights = [token_weights(mask) for mask in masks]
    token_inputs = {name: [tokens[name] for tokens in examples] for name in columns}
    head_inputs = {"hidden": hidden, "mask": masks, WEIGHTS: weights}
    shared = {f"context_{number}": pair for number, pair in enumerate(zip(*map(tensors_of, contexts), strict=True))}
    yield GraphSpec(manifest.embedding, EmbeddingPart(model, columns), token_inputs, ["hidden"])
    yield GraphSpec(manifest.context, ContextPart(model), {"mask": masks}, [*shared, WEIGHTS])
    for file, index in _first_use(manifest.layers).items():
        number = family.weight_set(model.config.encoder, index)
        layer = LayerPart(model, index, contexts[0])
        yield GraphSpec(file, layer, {"hidden": hidden, **shared}, ["hidden_out"], number)
    for file, number in _first_use(manifest.heads).items():
        if manifest.exit_layers[number] == 0:
            zero_inputs = {"hidden": hidden, "mask": masks, "input_ids": token_inputs["input_ids"]}
            yield GraphSpec(file, ZeroHeadPart(model), zero_inputs, ["logits"], number)
        else:
            yield GraphSpec(file, HeadPart(model, number), head_inputs, ["logits"], number)


def _first_use(files: Sequence[str]) -> dict[str, int]:
    """Return the first position of every file."""
    return {file: files.index(file) for file in files}


def _example_tokens(model: EarlyExitModel, columns: Sequence[str], texts: int, length: int) -> dict[str, Tensor]:
    """Make token ids, (texts, length), the second text shorter than the others."""
    ids = torch.arange(texts * length).reshape(texts, length) % model.config.encoder.vocab_size
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    tokens = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return {name: tokens[name] for name in columns}


# ---- from torch to ONNX ---------------------------------------------------------------------------------------------


def _translate(spec: GraphSpec) -> ModelProto:
    """Trace a module and translate it to ONNX; its weights keep their names."""
    dimensions = (Dim("texts", min=1, max=1 << 16), Dim("tokens", min=2, max=1 << 16))
    dynamic = dict(zip(EXAMPLES[0], dimensions, strict=True))  # by size in the first example
    axes = [
        {axis: dynamic[size] for axis, size in enumerate(example.shape) if size != other.shape[axis]}
        for example, other in spec.inputs.values()
    ]
    with _quiet_exporter():
        program = torch.onnx.export(
            spec.module,
            tuple(example for example, _ in spec.inputs.values()),
            input_names=list(spec.inputs),
            output_names=list(spec.outputs),
            opset_version=OPSET,
            dynamic_shapes=spec.module.arguments(axes),
            dynamo=True,
            optimize=False,  # ONNX Runtime does that on loading
            verbose=False,
        )
    assert program is not None
    return program.model_proto


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Drop warnings of the exporter about itself; other loggers and warnings are left alone."""
    loggers = [logging.getLogger(name) for name in EXPORTER_LOGGERS]
    with _EXPORTER_LOCK, warnings.catch_warnings():
        for name in EXPORTER_LOGGERS:
            warnings.filterwarnings("ignore", module=rf"{name}\b")
        warnings.filterwarnings("ignore", category=FutureWarning, module="copyreg")  # torch copies its own tree specs
        levels = [logger.level for logger in loggers]
        try:
            for logger in loggers:
                logger.setLevel(max(logger.level, logging.ERROR))
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _reuse(translated: Sequence[tuple[GraphSpec, ModelProto]], spec: GraphSpec) -> ModelProto | None:
    """Put the weights of a layer or head into the graph of an earlier one, if the outputs then match.

    Translating takes seconds, and the layers of most encoders differ in their weights alone.
    """
    for earlier, graph in translated:
        if type(earlier.module) is type(spec.module):
            candidate = _with_weights(graph, earlier.number, spec)
            if candidate is not None and _outputs_match(candidate, spec):
                return candidate
    return None


def _with_weights(graph: ModelProto, number: int, spec: GraphSpec) -> ModelProto | None:
    """Copy the graph of layer or head `number` with the weights of another; None if names or shapes differ."""
    from onnx import numpy_helper

    weights = dict(spec.module.named_parameters()) | dict(spec.module.named_buffers())
    result = type(graph)()
    result.CopyFrom(graph)
    for tensor in result.graph.initializer:
        name = tensor.name.replace(f".{number}.", f".{spec.number}.", 1)
        if tensor.name in weights and name != tensor.name:
            if name not in weights or list(weights[name].shape) != list(tensor.dims):
                return None
            tensor.CopyFrom(numpy_helper.from_array(weights[name].detach().numpy(), tensor.name))
    return result


def _outputs_match(graph: ModelProto, spec: GraphSpec) -> bool:
    """Return whether a graph and a module have the same output on the second example."""
    from onnxruntime import InferenceSession

    session = InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = spec.module(*(example for _, example in spec.inputs.values())).numpy()
    [output] = session.run(None, {name: example.detach().numpy() for name, (_, example) in spec.inputs.items()})
    return np.allclose(output, expected, rtol=TOLERANCE, atol=TOLERANCE)


# ---- the tokenizer, and the check -----------------------------------------------------------------------------------


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write tokenizer.json, the only file that `tokenizers` needs."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InputError(f"a {type(tokenizer).__name__} has no tokenizer.json; only fast tokenizers can be exported")
    backend.save(str(folder / TOKENIZER))


def _check_equivalent(model: LoadedModel, exported: LoadedModel, texts: Texts) -> None:
    """Check that an export has the tokens and, within the tolerance, the logits of its model."""
    tokens = model.tokenize(texts)
    for name, column in exported.tokenize(texts).items():
        if list(map(list, column)) != list(map(list, tokens[name])):
            raise InputError(f"the exported tokenizer returns other {name} than the model's tokenizer")
    worst, largest = 0.0, 0.0
    for rows in batches(lengths_of(tokens), 8):
        expected, logits = (exit_logits(loaded.runtime, pick(tokens, rows)) for loaded in (model, exported))
        worst = float(np.maximum(worst, np.abs(expected - logits).max()))  # NaN stays NaN
        largest = max(largest, float(np.abs(expected).max()))
    if not worst <= TOLERANCE * max(largest, 1.0):
        raise InputError(f"the export does not match the model: logits differ by up to {worst:.2g}")
