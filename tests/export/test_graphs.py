"""An export has the logits of its model, shares the weights that the model shares, and is refused when it is broken."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from exitpoll import EarlyExitModel, Engine, InputError, Policy, Texts, errors, load_model
from exitpoll.decide.certificate import Source
from exitpoll.engine import onnx_session
from exitpoll.engine.loading import source_of
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.record import exit_logits
from exitpoll.export import graphs, join
from exitpoll.export.graphs import export_graphs, random_texts
from exitpoll.export.join import fits_one_file, join_parts
from exitpoll.export.quantize import quantize
from exitpoll.models.fingerprint import fingerprint_of
from tests import exports
from tests.exports import TinyModel, write_manifest
from tests.samples import certified
from tests.tiny import CONFIGS, tiny_tokenizer, toy_texts

TEXTS = toy_texts(40, 5)


@pytest.fixture(scope="module")
def model(model_folder):
    return EarlyExitModel.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def int8(graphs_folder, tmp_path_factory):
    parts, folder = tmp_path_factory.mktemp("parts"), tmp_path_factory.mktemp("int8")
    quantize(graphs_folder, parts, TEXTS)
    join_parts(parts, folder, None, TEXTS)
    return folder


@pytest.fixture
def copied(exported_folder, tmp_path):
    return shutil.copytree(exported_folder, tmp_path / "copy")


def logits_of(loaded, texts=TEXTS):
    return exports.logits_of(loaded, texts)


def test_an_export_has_the_logits_of_its_model(model_folder, exported_folder):
    expected, exported = (logits_of(load_model(folder)) for folder in (model_folder, exported_folder))
    np.testing.assert_allclose(exported, expected, atol=1e-5)


def test_what_is_known_of_an_export(model, exported_folder):
    loaded, manifest = load_model(exported_folder, "onnx"), Manifest.load(exported_folder)
    assert (
        loaded.source == Source(fingerprint=manifest.fingerprint, runtime="onnx float32") == source_of(exported_folder)
    )
    assert manifest.model_fingerprint == fingerprint_of(model, tiny_tokenizer())
    assert loaded.label_names == ["bad", "good", "so-so"]
    assert loaded.runtime.exit_layers == (1, 2, 3)
    assert not loaded.runtime.shares_layers


def test_pairs_and_long_texts_are_tokenized_as_in_training(model_folder, exported_folder):
    tokenize, tokenize_exported = load_model(model_folder).tokenize, load_model(exported_folder).tokenize
    long = " ".join(["good film"] * 200)
    for texts in (["good film"], [("good film", "the plot")], [long], [(long, "plot"), ("plot", long), (long, long)]):
        expected = tokenize(Texts.of(texts))
        for name, column in tokenize_exported(Texts.of(texts)).items():
            assert column == expected[name]


def test_layers_that_differ_in_weights_alone_are_translated_once(trained_export):
    assert trained_export.translated == ["embedding.onnx", "context.onnx", "layer-01.onnx", "head-01.onnx"]
    assert [(progress.done, progress.total) for progress in trained_export.progress][-1] == (8, 8)


HALF = {"exits": (2,), "dtype": torch.bfloat16}


@pytest.mark.parametrize(
    ("name", "settings", "layers", "heads"),
    [
        ("albert", {}, 1, 3),
        ("albert with groups", {}, 2, 3),
        ("bert", {"shared_head": True}, 3, 1),
        ("bert", HALF, 2, 1),
    ],
)
def test_what_shares_weights_shares_a_file(name, settings, layers, heads, tiny_models):
    tiny = tiny_models(name, **settings)
    loaded, manifest = load_model(tiny.graphs), Manifest.load(tiny.graphs)
    assert (len(set(manifest.layers)), len(set(manifest.heads))) == (layers, heads)
    assert loaded.runtime.shares_layers == (name == "albert")
    np.testing.assert_allclose(logits_of(loaded), logits_of(tiny.load("torch")), atol=1e-4)


def test_weights_of_other_precisions_are_exported_in_float32(tiny_models):
    tiny = tiny_models("bert", **HALF)
    loaded = load_model(tiny.graphs)
    assert loaded.runtime.name == "onnx float32"
    assert Manifest.load(tiny.graphs).model_fingerprint == fingerprint_of(tiny.model, tiny_tokenizer())
    assert logits_of(loaded, Texts(TEXTS.first[:4])).dtype == np.float32


@pytest.mark.parametrize(("name", "like"), [("bert", "bert"), ("modernbert with mean pooling", "modernbert")])
def test_a_classifier_keeps_its_head(name, like, tiny_models):
    tiny = tiny_models(name, like, classifier=True, shared_head=True)
    np.testing.assert_allclose(logits_of(load_model(tiny.graphs)), logits_of(tiny.load("torch")), atol=1e-4)


def test_heads_that_pool_by_attention(tiny_models, tmp_path):
    tiny = tiny_models("bert", pooling="attention")
    exported = logits_of(load_model(tiny.graphs))
    np.testing.assert_allclose(exported, logits_of(tiny.load("torch")), atol=1e-4)
    assert not np.allclose(exported, logits_of(load_model(tiny_models("bert").graphs)), atol=1e-2)  # it is no mean
    in_int8 = logits_of(quantize(tiny.graphs, tmp_path, TEXTS))
    assert (in_int8.argmax(axis=-1) == exported.argmax(axis=-1)).mean() > 0.9


def test_an_export_with_other_logits_is_refused(model, graphs_folder, tmp_path, monkeypatch):
    import onnx

    monkeypatch.setattr(graphs, "_translate", lambda spec: onnx.load(graphs_folder / spec.file))
    monkeypatch.setattr(graphs, "_outputs_match", lambda graph, spec: True)
    monkeypatch.setattr(graphs, "_with_weights", lambda graph, number, spec: graph)  # all layers are the first
    with pytest.raises(InputError, match="the export does not match the model: logits differ by up to"):
        export_graphs(model, tiny_tokenizer(), tmp_path)


def test_exporting_without_its_packages(model, tmp_path, monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="exporting needs more packages"):
        export_graphs(model, tiny_tokenizer(), tmp_path)


class TestJoining:
    def test_the_graph_has_the_logits_of_its_parts(self, graphs_folder, exported_folder):
        assert sorted(path.name for path in exported_folder.glob("*.onnx")) == ["model.onnx"]
        assert load_model(exported_folder).runtime.exits_by_itself
        np.testing.assert_allclose(
            logits_of(load_model(exported_folder)), logits_of(load_model(graphs_folder)), atol=1e-5
        )

    def test_large_models_stay_in_parts(self, graphs_folder, monkeypatch):
        assert fits_one_file(graphs_folder)
        monkeypatch.setattr(join, "MOST_BYTES", 1000)
        assert not fits_one_file(graphs_folder)

    def test_layers_that_share_weights_stay_in_parts_unless_asked_for(self, tiny_models, tmp_path):
        tiny = tiny_models("albert")
        assert load_model(tiny.exported).runtime.shares_layers
        assert not fits_one_file(tiny.graphs)
        assert fits_one_file(tiny.graphs, shared_layers=True)
        joined = join_parts(tiny.graphs, tmp_path, None, TEXTS)
        np.testing.assert_allclose(logits_of(joined), logits_of(load_model(tiny.graphs)), atol=1e-5)

    def test_the_policy_does_not_count_for_the_fingerprint(self, graphs_folder, exported_folder, tmp_path):
        joined = join_parts(graphs_folder, tmp_path, Policy("max_prob", 0.9), TEXTS)
        assert joined.runtime.fingerprint == load_model(exported_folder).runtime.fingerprint
        assert joined.runtime.fingerprint != load_model(graphs_folder).runtime.fingerprint  # int8 may round differently


class TestInt8:
    def test_a_rounding_that_flips_in_one_graph_is_no_error(self, tmp_path, monkeypatch):
        """In a model of many layers some texts have other logits than with layers in graphs of their own."""
        sizes = {"num_hidden_layers": 12, "hidden_size": 128, "intermediate_size": 512}
        monkeypatch.setitem(CONFIGS, "deep bert", ("bert", CONFIGS["bert"][1] | sizes))
        deep, parts, texts = TinyModel(tmp_path, "deep bert"), tmp_path / "int8", toy_texts(60, 3)
        with torch.no_grad():
            for parameter in deep.model.encoder.parameters():
                parameter.mul_(0.2 if parameter.ndim > 1 else 1)  # about as large as in a model of this width
        parts.mkdir()
        separate = logits_of(quantize(deep.graphs, parts, TEXTS), texts)
        joined = logits_of(join_parts(parts, tmp_path, None, texts), texts)
        assert np.median(np.abs(joined - separate).max(axis=(1, 2))) < 1e-4

    @pytest.mark.parametrize("precision", ["float32", "int8"])
    def test_wrong_layers_are_refused_in_any_precision(self, graphs_folder, tmp_path, monkeypatch, precision):
        parts, folder = graphs_folder, tmp_path / "joined"
        folder.mkdir()
        if precision == "int8":
            parts = tmp_path / "int8"
            parts.mkdir()
            quantize(graphs_folder, parts, TEXTS)

        class Swapped(join.SelfExitingGraph):
            def __init__(self, folder, manifest, policy, stops):
                first, second, *others = manifest.layers
                super().__init__(folder, replace(manifest, layers=[second, first, *others]), policy, stops)

        monkeypatch.setattr(join, "SelfExitingGraph", Swapped)
        message = (
            rf"does not match its parts: logits differ by .* % of their standard deviation, where .* is usual for "
            rf"{precision}, .* answers differ"
        )
        with pytest.raises(InputError, match=message):
            join_parts(parts, folder, None, TEXTS)

    def test_logits_are_nearly_the_same(self, exported_folder, int8):
        float32, quantized = (logits_of(load_model(folder)) for folder in (exported_folder, int8))
        assert 0 < np.abs(float32 - quantized).mean() < 0.1 * np.abs(float32).mean()
        assert (float32.argmax(-1) == quantized.argmax(-1)).mean() > 0.9

    def test_logits_do_not_depend_on_batch_composition(self, int8):
        loaded = load_model(int8, "onnx-int8")
        together = logits_of(loaded)
        alone = np.concatenate([exit_logits(loaded.runtime, loaded.tokenize(Texts([text]))) for text in TEXTS.first])
        np.testing.assert_allclose(together, alone, atol=1e-5)

    def test_it_is_smaller_and_has_another_name(self, exported_folder, int8):
        assert load_model(int8).runtime.name == "onnx int8"
        assert load_model(int8).runtime.fingerprint != load_model(exported_folder).runtime.fingerprint
        sizes = [(folder / "model.onnx").stat().st_size for folder in (exported_folder, int8)]
        assert sizes[1] < sizes[0]

    def test_ranges_can_be_measured_on_random_texts(self, graphs_folder, exported_folder, tmp_path):
        quantized = quantize(graphs_folder, tmp_path, Texts(random_texts(tiny_tokenizer(), 64)))
        assert (logits_of(quantized).argmax(-1) == logits_of(load_model(exported_folder)).argmax(-1)).mean() > 0.9

    def test_without_texts(self, graphs_folder, tmp_path):
        with pytest.raises(InputError, match="there are no texts to measure the ranges of activations on"):
            quantize(graphs_folder, tmp_path, Texts([]))


class TestLoading:
    def test_a_trained_folder_is_searched_for_exports(self, model_folder, exported_folder, tmp_path):
        folder = shutil.copytree(model_folder, tmp_path / "model")
        shutil.copytree(exported_folder, folder / "onnx")
        assert load_model(folder).runtime.name == "torch float32"
        assert load_model(folder, "onnx").runtime.name == "onnx float32"
        with pytest.raises(InputError, match=r"has no export for onnx-int8; make one: exitpoll export .* --int8"):
            load_model(folder, "onnx-int8")

    def test_the_policy_of_the_export_counts(self, model_folder, exported_folder, tmp_path):
        folder = shutil.copytree(model_folder, tmp_path / "model")
        shutil.copytree(exported_folder, folder / "onnx")
        Policy("max_prob", 0.0).save(folder / "onnx" / "policy.json")
        assert {prediction.depth for prediction in Engine.load(folder, "onnx")(TEXTS.first)} == {1}
        assert {prediction.depth for prediction in Engine.load(folder, "torch")(TEXTS.first)} == {3}

    @pytest.mark.parametrize("threads", [1, 2])
    def test_threads(self, exported_folder, threads):
        engines = [Engine.load(exported_folder, threads=threads) for _ in range(2)]
        assert engines[0](TEXTS.first) == engines[1](TEXTS.first)
        assert engines[0].runtime.threads == threads

    @pytest.mark.parametrize(
        ("limit", "threads"), [("max 100000", 8), ("150000 100000", 2), ("1 100000", 1), (None, 8)]
    )
    def test_a_container_may_limit_the_threads(self, exported_folder, tmp_path, monkeypatch, limit, threads):
        monkeypatch.setattr(onnx_session.os, "sched_getaffinity", lambda process: range(8))
        monkeypatch.setattr(onnx_session, "CPU_LIMIT", tmp_path / "cpu.max")
        if limit is not None:
            (tmp_path / "cpu.max").write_text(limit + "\n")
        assert load_model(exported_folder).runtime.threads == threads

    def test_a_policy_for_another_runtime_is_refused(self, exported_folder, model):
        certificate = certified(fingerprint=fingerprint_of(model, tiny_tokenizer()), runtime="torch float32")
        with pytest.raises(InputError, match="calibrated for runtime torch float32, and this is runtime onnx float32"):
            Engine.load(exported_folder, policy=Policy("votes", 1, certificate=certificate))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("onnx-int8",), "was exported for onnx, not onnx-int8"),
            (("torch",), "was exported for onnx, not torch"),
            (("tensorrt",), "runtime 'tensorrt' is unknown; choose one of: torch, onnx, onnx-int8"),
        ],
    )
    def test_other_runtimes(self, exported_folder, arguments, message):
        with pytest.raises(InputError, match=message):
            load_model(exported_folder, *arguments)

    def test_threads_and_devices(self, exported_folder):
        for threads in (0, 257, "2", 1.5, True):
            with pytest.raises(InputError, match=r"threads .* must be an integer, between 1 and 256"):
                load_model(exported_folder, threads=threads)
        assert load_model(exported_folder, threads=np.int64(2)).runtime.threads == 2
        with pytest.raises(InputError, match="is for ONNX Runtime on the CPU"):
            load_model(exported_folder, device="cuda")

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("model.onnx", None, "changed or missing after the export: '.*model.onnx'; export the model again"),
            ("model.onnx", b"junk", "changed or missing after the export: '.*model.onnx'; export"),
            ("tokenizer.json", b"{}", "changed or missing after the export: '.*tokenizer.json'; export"),
            ("exported.json", b"[", "exported.json' is broken"),
            ("exported.json", b"{}", "is an export of version None"),
            ("exported.json", b'{"version": 1}', "is an export of version 1; this exitpoll reads version 4"),
            ("exported.json", b'{"version": 4}', "is not what exitpoll export writes"),
            ("training.json", b"[", "training.json' is broken"),
        ],
    )
    def test_broken_files(self, copied, file, content, message):
        (copied / file).unlink(missing_ok=True)
        if content is not None:
            (copied / file).write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_model(copied)

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("model.onnx", b"junk", "model.onnx' cannot be loaded"),
            ("tokenizer.json", b"{}", "tokenizer.json' cannot be read"),
        ],
    )
    def test_broken_files_with_their_own_hashes(self, copied, file, content, message):
        (copied / file).write_bytes(content)
        Manifest.load(copied).save(copied)
        with pytest.raises(InputError, match=message):
            load_model(copied)

    @pytest.mark.parametrize("file", ["model.onnx", "tokenizer.json"])
    def test_a_flipped_bit(self, copied, file):
        content = bytearray((copied / file).read_bytes())
        content[len(content) // 2] ^= 1
        (copied / file).write_bytes(content)
        with pytest.raises(
            InputError, match=f"changed or missing after the export: '.*{file}'; export the model again"
        ):
            Engine.load(copied)

    def test_files_are_not_read_if_that_is_not_wanted(self, copied):
        content = bytearray((copied / "tokenizer.json").read_bytes())
        (copied / "tokenizer.json").write_bytes(content + b" ")
        with pytest.raises(InputError, match="changed or missing after the export"):
            load_model(copied)
        assert len(Engine.load(copied, verify=False)(TEXTS.first)) == 40

    def test_swapped_heads(self, tiny_models, tmp_path):
        copied = shutil.copytree(tiny_models("albert").exported, tmp_path / "copy")
        (copied / "head-01.onnx").rename(copied / "x")
        (copied / "head-02.onnx").rename(copied / "head-01.onnx")
        (copied / "x").rename(copied / "head-02.onnx")
        with pytest.raises(InputError, match=r"changed or missing after the export: '.*head-01.onnx', '.*head-02.onnx"):
            Engine.load(copied)

    @pytest.mark.parametrize(
        ("name", "value"),
        [("max_length", 9), ("heads", ["head-02.onnx", "head-01.onnx", "head-03.onnx"]), ("truncation_side", "left")],
    )
    def test_a_changed_manifest(self, copied, name, value):
        manifest = json.loads((copied / "exported.json").read_text())
        (copied / "exported.json").write_text(json.dumps({**manifest, name: value}))
        with pytest.raises(InputError, match=r"exported.json' was changed after the export; export the model again"):
            Engine.load(copied)

    def test_a_policy_is_for_one_export(self, copied):
        """A manifest that is consistent in itself, but not that of the export that was calibrated."""
        certificate = certified(**asdict(source_of(copied)))
        Policy("votes", 1, certificate=certificate).save(copied / "policy.json")
        Engine.load(copied)
        replace(Manifest.load(copied), max_length=9).save(copied)
        with pytest.raises(InputError, match=r"the policy was calibrated for fingerprint .* record and calibrate"):
            Engine.load(copied)

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            (
                "exit_layers",
                [[3, 2, 1], [1, 1, 3], [0, 1, 3], [1, 2], ["1", "2", "3"], [1.0, 2.0, 3.0], [], None, [1, 2, 9]],
            ),
            ("layers", [[], None, [1, 2, 3], ["model.onnx"], ["../model.onnx"] * 3]),
            ("heads", [["head-01.onnx"], None, ["/elsewhere/x.onnx"] * 3, ["model.onnx"] * 3]),
            ("graph", [None, "tokenizer.json", "../model.onnx", 5]),
            ("parts", [{}, None, {"tokenizer.json": "0"}]),
            ("label_names", ["abc", [1, 2, 3], [], None, ["a", "b"]]),
            ("max_length", [-5, 2, "x", None]),
            ("padding", [[], {}, {"input_ids": "x"}, {"input_ids": 0, "other": 1}]),
            ("truncation_side", ["middle", None]),
            ("precision", ["int4", None]),
            ("embedding", [None, "model.onnx"]),
            ("context", [None, "head-01.onnx"]),
        ],
    )
    def test_a_manifest_that_was_tampered_with(self, copied, name, values):
        manifest = json.loads((copied / "exported.json").read_text())
        for value in values:
            write_manifest(copied, {**manifest, name: value})
            with pytest.raises(InputError, match="export the model again"):
                load_model(copied)

    def test_without_onnxruntime(self, exported_folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(InputError, match=r"running an exported model needs more packages: .*exitpoll\[onnx\]"):
            load_model(exported_folder)


def test_a_manifest_survives_its_file(exported_folder, tmp_path):
    manifest = Manifest.load(exported_folder)
    folder = shutil.copytree(exported_folder, tmp_path / "copy")
    manifest.save(folder)
    assert Manifest.load(folder) == manifest
    assert json.loads((folder / "exported.json").read_text())["version"] == 4
