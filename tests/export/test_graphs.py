"""An export says what the model says, shares what the model shares, and is refused when it is broken."""

from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest
import torch

from exitpoll import EarlyExitModel, Engine, InputError, Policy, Texts, load_model
from exitpoll.decide.certificate import Source
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.record import exit_logits, record_in_memory
from exitpoll.engine.torch_runtime import loaded_model
from exitpoll.export import graphs as exporting
from exitpoll.export import merge as assembling
from exitpoll.export.graphs import export, probe_texts
from exitpoll.export.merge import assemble
from exitpoll.export.quantize import quantize
from exitpoll.models.fingerprint import fingerprint_of
from tests.samples import certified
from tests.tiny import save_tiny, tiny_tokenizer, toy_texts

TEXTS = toy_texts(40, 5)


@pytest.fixture(scope="module")
def model(model_folder):
    return EarlyExitModel.from_pretrained(model_folder)


@pytest.fixture(scope="module")
def int8(stages_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    quantize(stages_folder, folder, TEXTS)
    assemble(folder)
    return folder


@pytest.fixture
def copied(exported_folder, tmp_path):
    return shutil.copytree(exported_folder, tmp_path / "copy")


def logits_of(ready, texts=TEXTS):
    return record_in_memory(ready, texts, batch_size=8).logits


def test_an_export_says_what_the_model_says(model, model_folder, exported_folder):
    ours, theirs = (logits_of(each) for each in (load_model(model_folder), load_model(exported_folder)))
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_what_is_known_of_an_export(model, exported_folder):
    ready = load_model(exported_folder, "onnx")
    assert ready.source == Source(fingerprint=fingerprint_of(model), runtime="onnx float32")
    assert ready.label_names == ["bad", "good", "so-so"]
    assert ready.runtime.exit_layers == (1, 2, 3)
    assert not ready.runtime.shares_layers


def test_pairs_and_long_texts_are_tokenized_as_in_training(model, model_folder, exported_folder):
    theirs, ours = load_model(exported_folder).tokenize, load_model(model_folder).tokenize
    long = " ".join(["good film"] * 200)
    for texts in (["good film"], [("good film", "the plot")], [long], [(long, "plot"), ("plot", long), (long, long)]):
        expected = ours(Texts.of(texts))
        for name, column in theirs(Texts.of(texts)).items():
            assert column == expected[name]


def test_layers_are_translated_once(model, tmp_path, monkeypatch):
    translated = []
    original = exporting._translate
    monkeypatch.setattr(exporting, "_translate", lambda stage: translated.append(stage.file) or original(stage))
    seen = []
    export(model, tiny_tokenizer(), tmp_path, on_progress=lambda progress: seen.append((progress.done, progress.total)))
    assert translated == ["embedding.onnx", "context.onnx", "layer-01.onnx", "head-01.onnx"]
    assert seen[-1] == (8, 8)


@pytest.mark.parametrize(
    ("name", "settings", "layers", "heads"),
    [
        ("albert", {}, 1, 3),
        ("albert with groups", {}, 2, 3),
        ("bert", {"shared_head": True}, 3, 1),
        ("bert", {"exits": [2]}, 2, 1),
    ],
)
def test_what_shares_weights_shares_a_file(name, settings, layers, heads, tmp_path):
    save_tiny(name, tmp_path / "encoder")
    model = EarlyExitModel.from_encoder(tmp_path / "encoder", labels=3, **settings)
    (tmp_path / "out").mkdir()
    ready = export(model, tiny_tokenizer(), tmp_path / "out")
    manifest = Manifest.load(tmp_path / "out")
    assert (len(set(manifest.layers)), len(set(manifest.heads))) == (layers, heads)
    assert ready.runtime.shares_layers == (name == "albert")
    expected = logits_of(loaded_model(model, tiny_tokenizer()))
    np.testing.assert_allclose(logits_of(ready), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "modernbert with mean pooling"])
def test_a_classifier_keeps_its_head(name, tmp_path):
    save_tiny(name, tmp_path / "classifier", classifier=True)
    model = EarlyExitModel.from_classifier(tmp_path / "classifier", shared_head=True)
    (tmp_path / "out").mkdir()
    ready = export(model, tiny_tokenizer(), tmp_path / "out")
    np.testing.assert_allclose(logits_of(ready), logits_of(loaded_model(model, tiny_tokenizer())), atol=1e-4)


def test_an_export_that_says_something_else_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "_says_the_same", lambda graph, stage: True)
    monkeypatch.setattr(exporting, "_exchange_weights", lambda graph, number, stage: graph)  # all layers are the first
    with pytest.raises(InputError, match="the export does not say what the model says: logits differ by up to"):
        export(model, tiny_tokenizer(), tmp_path)


class TestAssembling:
    def test_one_file_says_what_the_layers_say(self, stages_folder, exported_folder):
        assert sorted(path.name for path in exported_folder.glob("layer*")) == ["layers-1.onnx"]
        assert list(Manifest.load(exported_folder).branches) == [0, 1, 2]
        np.testing.assert_allclose(
            logits_of(load_model(exported_folder)), logits_of(load_model(stages_folder)), atol=1e-5
        )

    @pytest.mark.parametrize(("most", "files"), [(1, 3), (10**9, 1)])
    def test_large_models_take_more_files(self, stages_folder, tmp_path, monkeypatch, most, files):
        monkeypatch.setattr(assembling, "MOST_BYTES", most)
        folder = shutil.copytree(stages_folder, tmp_path / "onnx")
        ready = assemble(folder)
        assert len(list(folder.glob("layers-*.onnx"))) == files
        np.testing.assert_allclose(logits_of(ready), logits_of(load_model(stages_folder)), atol=1e-5)

    def test_layers_that_share_weights_are_one_branch(self, tmp_path):
        save_tiny("albert", tmp_path / "encoder")
        model = EarlyExitModel.from_encoder(tmp_path / "encoder", labels=3)
        expected = logits_of(export(model, tiny_tokenizer(), tmp_path))
        ready = assemble(tmp_path)
        assert ready.runtime.shares_layers
        assert list(Manifest.load(tmp_path).branches) == [0, 0, 0]
        np.testing.assert_allclose(logits_of(ready), expected, atol=1e-5)


class TestInt8:
    def test_it_says_nearly_the_same(self, exported_folder, int8):
        whole, small = (logits_of(load_model(each)) for each in (exported_folder, int8))
        assert 0 < np.abs(whole - small).mean() < 0.1 * np.abs(whole).mean()
        assert (whole.argmax(-1) == small.argmax(-1)).mean() > 0.9

    def test_what_a_text_is_answered_does_not_depend_on_its_company(self, int8):
        ready = load_model(int8, "onnx-int8")
        together = logits_of(ready)
        alone = np.concatenate([exit_logits(ready.runtime, ready.tokenize(Texts([text]))) for text in TEXTS.first])
        np.testing.assert_allclose(together, alone, atol=1e-5)

    def test_it_is_smaller_and_has_another_name(self, exported_folder, int8):
        assert load_model(int8).runtime.name == "onnx int8"
        assert load_model(int8).runtime.fingerprint == load_model(exported_folder).runtime.fingerprint
        sizes = [(folder / "layers-1.onnx").stat().st_size for folder in (exported_folder, int8)]
        assert sizes[1] < sizes[0]

    def test_ranges_can_be_measured_on_random_words(self, stages_folder, exported_folder, tmp_path):
        ready = quantize(stages_folder, tmp_path, Texts(probe_texts(tiny_tokenizer(), 64)))
        assert (logits_of(ready).argmax(-1) == logits_of(load_model(exported_folder)).argmax(-1)).mean() > 0.9


class TestOpening:
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
        assert {each.depth for each in Engine.load(folder, "onnx")(TEXTS.first)} == {1}
        assert {each.depth for each in Engine.load(folder, "torch")(TEXTS.first)} == {3}

    @pytest.mark.parametrize("threads", [1, 2])
    def test_threads(self, exported_folder, threads):
        engines = [Engine.load(exported_folder, threads=threads) for _ in range(2)]
        assert engines[0](TEXTS.first) == engines[1](TEXTS.first)
        assert engines[0].runtime.threads == threads

    def test_a_policy_for_another_runtime_is_refused(self, exported_folder, model):
        certificate = certified(fingerprint=fingerprint_of(model), runtime="torch float32")
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
        with pytest.raises(InputError, match="threads 0 must be between 1 and 256"):
            load_model(exported_folder, threads=0)
        with pytest.raises(InputError, match="is for ONNX Runtime on the CPU"):
            load_model(exported_folder, device="cuda")

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("layers-1.onnx", None, "layers-1.onnx' is missing; export the model anew"),
            ("layers-1.onnx", b"junk", "layers-1.onnx' cannot be loaded"),
            ("head-01.onnx", b"", "head-01.onnx' cannot be loaded"),
            ("tokenizer.json", b"{}", "tokenizer.json' cannot be read"),
            ("exported.json", b"[", "exported.json' is broken"),
            ("exported.json", b"{}", "is an export of version None"),
            ("exported.json", b'{"version": 1}', "is an export of version 1; this exitpoll reads version 2"),
            ("exported.json", b'{"version": 2}', "is not what exitpoll export writes"),
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
        ("name", "values"),
        [
            ("exit_layers", [[3, 2, 1], [1, 1, 3], [0, 1, 3], [1, 2], ["1", "2", "3"], [1.0, 2.0, 3.0], [], None, [1, 2, 9]]),
            ("layers", [[], None, [1, 2, 3], ["layers-1.onnx"], ["../layers-1.onnx"] * 3]),
            ("heads", [["head-01.onnx"], None, ["/elsewhere/x.onnx"] * 3, ["layers-1.onnx"] * 3]),
            ("branches", [[], None, [0, 1], [0, 1, 3], [0, 1, -1], ["0", "1", "2"]]),
            ("label_names", ["abc", [1, 2, 3], [], None, ["a", "b"]]),
            ("max_length", [-5, 2, "x", None]),
            ("padding", [[], {}, {"input_ids": "x"}, {"input_ids": 0, "other": 1}]),
            ("truncation_side", ["middle", None]),
            ("precision", ["int4", None]),
            ("embedding", [None, "layers-1.onnx"]),
            ("context", [None, "head-01.onnx"]),
        ],
    )
    def test_a_manifest_that_was_tampered_with(self, copied, name, values):
        manifest = json.loads((copied / "exported.json").read_text())
        for value in values:
            (copied / "exported.json").write_text(json.dumps({**manifest, name: value}))
            with pytest.raises(InputError, match="export the model anew"):
                load_model(copied)

    def test_without_onnxruntime(self, exported_folder, monkeypatch):
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(InputError, match=r"running an exported model needs more packages: .*exitpoll\[onnx\]"):
            load_model(exported_folder)


def test_exporting_without_its_packages(model, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="exporting needs more packages"):
        export(model, tiny_tokenizer(), tmp_path)


def test_a_manifest_survives_its_file(exported_folder, tmp_path):
    manifest = Manifest.load(exported_folder)
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    assert json.loads((tmp_path / "exported.json").read_text())["version"] == 2


def test_weights_of_other_precisions_are_exported_in_float32(model_folder, tmp_path):
    model = EarlyExitModel.from_pretrained(model_folder, dtype=torch.bfloat16)
    ready = export(model, tiny_tokenizer(), tmp_path)
    assert ready.runtime.name == "onnx float32"
    assert logits_of(ready, Texts(TEXTS.first[:4])).dtype == np.float32
