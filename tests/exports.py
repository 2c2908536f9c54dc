"""Tiny models of every family with their exports, which take seconds, so that tests can share them."""

from __future__ import annotations

import copy
import hashlib
import json
from functools import cached_property
from unittest import mock

import onnx
import torch

from exitpoll import EarlyExitModel, Texts
from exitpoll.engine.onnx_runtime import load_exported
from exitpoll.engine.record import record_in_memory
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.export import graphs
from exitpoll.export.graphs import _translate as translate
from exitpoll.export.join import fits_one_file, join_parts
from exitpoll.export.parts import HeadPart, ZeroHeadPart
from tests.tiny import save_tiny, tiny_tokenizer

NAMES = ("a", "b", "c")


class TinyModel:
    """A tiny model with random heads, and its export, which is made when it is first asked for."""

    def __init__(self, folder, name, *, classifier=False, dtype=torch.float32, base=None, **options):
        """Make the model.

        Args:
            folder: A folder to write to.
            name: A key of `tests.tiny.CONFIGS`.
            classifier: Whether to start from a classifier, and keep its head, rather than from an encoder.
            dtype: The weights are rounded to it, and exported from it.
            base: A model with an encoder of the same architecture; all its graphs but the heads are used again.
            options: Of `EarlyExitModel.from_encoder` or `from_classifier`.
        """
        save_tiny(name, folder / "encoder", classifier=classifier)
        torch.manual_seed(1)
        if classifier:
            self.model = EarlyExitModel.from_classifier(folder / "encoder", **options).eval()
        else:
            options = {"labels": NAMES, "max_length": 32, **options}
            self.model = EarlyExitModel.from_encoder(folder / "encoder", **options).eval()
        with torch.no_grad():
            for parameter in (*self.model.heads.parameters(), *self.model.attentions.parameters()):
                parameter.normal_(0, 0.5)  # logits large enough that texts differ
            for parameter in self.model.heads[0].head.parameters() if self.model.has_exit_zero else ():
                parameter.mul_(0.2)  # it reads vectors that are alike, and three times as wide
        self.model.to(dtype).to(torch.float32)
        self.folder, self.dtype, self.base = folder, dtype, base
        self.joined = {}  # exports, by policy
        self.translated = {}  # graphs as torch exports them, by file

    @cached_property
    def graphs(self):
        """The folder of the export with separate layers."""
        folder = self.folder / "graphs"
        folder.mkdir()
        with mock.patch.object(graphs, "_translate", self._translate):
            graphs.export_graphs(copy.deepcopy(self.model).to(self.dtype), tiny_tokenizer(), folder)
        return folder

    def _translate(self, spec):
        """Put the weights into a graph of the base, or translate; `export_graphs` checks the logits in both cases."""
        if self.base is None or isinstance(spec.module, HeadPart | ZeroHeadPart):
            self.translated[spec.file] = translate(spec)
            return self.translated[spec.file]
        assert self.base.graphs
        graph = copy.deepcopy(self.base.translated[spec.file])
        weights = dict(spec.module.named_parameters()) | dict(spec.module.named_buffers())
        for tensor in graph.graph.initializer:
            if tensor.name in weights:
                tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name].detach().numpy(), tensor.name))
        return graph

    @cached_property
    def exported(self):
        """The folder of the export as `exitpoll export` writes it."""
        if not fits_one_file(self.graphs):
            return self.graphs
        folder = self.folder / "onnx"
        folder.mkdir()
        join_parts(self.graphs, folder, None, Texts(["a text", "another that is longer than the first"]))
        return folder

    def with_policy(self, policy):
        """Load an export whose graph makes the decisions of a policy; it is made when it is first asked for."""
        key = json.dumps(policy.to_dict(), sort_keys=True)
        if key not in self.joined:
            folder = self.folder / f"joined-{len(self.joined)}"
            folder.mkdir()
            self.joined[key] = join_parts(self.graphs, folder, policy, Texts(["a text", "another"]))
        return self.joined[key]

    def load(self, runtime):
        """Load the model for torch or the export for ONNX Runtime."""
        return loaded_model(self.model, tiny_tokenizer()) if runtime == "torch" else load_exported(self.exported)


def logits_of(loaded, texts):
    """Compute the logits of all exits, (texts, exits, classes)."""
    return record_in_memory(loaded, texts, batch_size=8).logits


def write_manifest(folder, content):
    """Write a manifest, as one who knows how would: with a checksum that fits its content."""
    fields = {name: value for name, value in content.items() if name not in ("version", "checksum")}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    (folder / "exported.json").write_text(json.dumps({**content, "checksum": digest[:16]}))
