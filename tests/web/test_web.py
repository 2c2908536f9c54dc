"""An export runs unchanged in onnxruntime-node and onnxruntime-web, and answers as the engine does; so does the page.

These tests need Node.js with onnxruntime-node, and a Chromium with onnxruntime-web: NODE_PATH names the folder of the
packages, or npm install onnxruntime-node onnxruntime-web.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from exitpoll import Engine, Policy, Texts
from exitpoll.export.graphs import random_texts
from exitpoll.export.join import join_parts
from exitpoll.export.quantize import quantize
from tests.report.browser import AXE, ROOT, start
from tests.tiny import WORDS, tiny_tokenizer, toy_texts
from tests.web.javascript import HERE, PACKAGES, needs_node, needs_package, needs_web, run_node, serve, write_site

TEXTS = list(toy_texts(6, 4).first)
RUN_IN_BROWSER = """(async () => {
    const ort = await import("/runtime/ort.wasm.bundle.min.mjs");
    const { predict } = await import("/demo/exits.mjs");
    ort.env.wasm.numThreads = 1;
    const manifest = await (await fetch("/model/exported.json")).json(), answers = [];
    const session = await ort.InferenceSession.create("/model/model.onnx", { logSeverityLevel: 3 });
    for (const texts of batches) answers.push(await predict(ort, session, manifest, texts));
    return answers;
})()"""
LOOKS = {"wide": {}, "phone": {"width": 375, "height": 800}, "dark": {"dark": True}}
MIXED = [
    *("", " ", "good film", "GOOD Film", "goodness!", "the  film\twas\ngood\r", "unknownword", "the unknown film"),
    *("café", "CAFÉ naïve", "cafe\u0301", "Straße", "İstanbul", "ΣΊΣΥΦΟΣ", "ёлка Й", "Ångström", "ñandú"),
    *("don't", "it's-a (very) good_film...", "“good” — film…", "¿good?", "$5+3=8", "<b>film</b>", "a~b^c|d`e", "100%"),
    *("中文", "好film好", "日本語テスト", "한국어", "电影,好！", "𠀀𪜀", "豈", "ไทย", "हिन्दी", "العربية"),
    *("😀 film", "👩‍👩‍👧", "a\u200bb", "a\u00a0b", "a\u0085b", "soft\u00adhyphen", "\ufeffgood", "\ufffd\x00good"),
    *("[MASK] film [SEP]", "[mask]", "q" * 100, "q" * 101, "film " * 40, "½ ² Ⅳ ﬁlm", "a\u2028b"),
]


def word_pieces(more: Iterable[str] = ()) -> Tokenizer:
    """A tokenizer in the manner of BERT, with the vocabulary of the tiny models and more pieces."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *more]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


@pytest.fixture(scope="module", params=["float32", "int8", "exit 0"])
def export(request, graphs_folder, tiny_models, tmp_path_factory):
    """An export with a policy by which texts leave at different exits, and what the engine answers."""
    parts, folder = graphs_folder, tmp_path_factory.mktemp("web")
    if request.param == "exit 0":
        parts = tiny_models("bert", exit_zero="ngrams").graphs
    if request.param == "int8":
        parts = tmp_path_factory.mktemp("int8")
        quantize(graphs_folder, parts, Texts(random_texts(tiny_tokenizer(), 8)))
    first = Engine.load(parts, policy=Policy("max_prob", 0.0))(TEXTS)
    policy = Policy("max_prob", float(np.median([row.probability for row in first])))
    policy.save(folder / "policy.json")
    loaded = join_parts(parts, folder, policy, toy_texts(8, 1))
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode_batch(TEXTS)
    predictions = Engine(loaded, policy)(TEXTS)
    assert len({row.depth for row in predictions[1:]}) > 1
    return SimpleNamespace(folder=folder, ids=[text.ids for text in tokens], predictions=predictions)


def batches(export):
    """A batch of one text, and one of five."""
    return [export.ids[:1], export.ids[1:]]


def check(export, answers):
    """Compare the answers to both batches with the engine's."""
    names = json.loads((export.folder / "exported.json").read_text())["label_names"]
    rows = {name: answers[0][name] + answers[1][name] for name in ("label", "probability", "depth")}
    assert [names[number] for number in rows["label"]] == [row.label for row in export.predictions]
    assert rows["depth"] == [row.depth for row in export.predictions]
    assert rows["probability"] == pytest.approx([row.probability for row in export.predictions], abs=1e-5)


@needs_package
def test_it_answers_in_node_as_in_the_engine(export):
    given = json.dumps({"folder": str(export.folder), "batches": batches(export)})
    check(export, json.loads(run_node(HERE / "run_in_node.mjs", given)))


@pytest.fixture(scope="module")
def site(export, tmp_path_factory):
    with serve(write_site(tmp_path_factory.mktemp("site"), export.folder)) as address:
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with start(tmp_path_factory.mktemp("profile")) as started:
        yield started


@needs_web
def test_it_answers_in_a_browser_as_in_the_engine(export, site, browser):
    browser.open(f"{site}/demo/exits.mjs")
    browser.run(f"batches = {json.dumps(batches(export))}")
    check(export, browser.run(RUN_IN_BROWSER))


@needs_node
def test_it_tokenizes_as_the_tokenizers_of_python():
    letters = {letter for text in MIXED for letter in text.lower()} - set("w中好")
    inner = [f"##{letter}" for letter in letters if letter.isalnum() and letter not in "kz"]
    tokenizer, length = word_pieces(["cafe", "na", "##ness", *letters, *inner]), 30
    tokenizer.enable_truncation(length)
    given = {"specification": json.loads(tokenizer.to_str()), "length": length, "texts": MIXED}
    ids = json.loads(run_node(HERE / "tokenize_in_node.mjs", json.dumps(given)))
    encoded = [text.ids for text in tokenizer.encode_batch(MIXED)]
    assert dict(zip(MIXED, ids, strict=True)) == dict(zip(MIXED, encoded, strict=True))
    assert len(MIXED) >= 50
    assert max(map(len, ids)) == length


@pytest.fixture(scope="module")
def small_model(graphs_folder, tmp_path_factory):
    """A model that reads words in pieces and asks two of its three exits, and what it answers."""
    folder = tmp_path_factory.mktemp("page")
    first = Engine.load(graphs_folder, policy=Policy("max_prob", 0.0))(TEXTS)
    threshold = float(np.median([row.probability for row in first]))
    policy = Policy("max_prob", threshold, exit_layers=(1, 3))
    policy.save(folder / "policy.json")
    predictions = Engine(join_parts(graphs_folder, folder, policy, toy_texts(8, 1)), policy)(TEXTS)
    word_pieces().save(str(folder / "tokenizer.json"))
    return SimpleNamespace(folder=folder, first=first, predictions=predictions)


@pytest.fixture(scope="module")
def page(small_model, tmp_path_factory):
    with serve(write_site(tmp_path_factory.mktemp("site"), small_model.folder)) as address:
        yield f"{address}/demo/"


class TestPage:
    READY = """new Promise((done) => setInterval(() => {
        const status = document.getElementById("status").textContent;
        if (!status.startsWith("Loading")) done(status);
    }, 20))"""
    ANSWERED = """new Promise((done) => {
        document.getElementById("text").value = %s;
        document.getElementById("run").click();
        setInterval(() => {
            const status = document.getElementById("status").textContent;
            if (/ layers run |failed/.test(status)) done(status);
        }, 20);
    })"""
    ROWS = "[...document.querySelectorAll('.exit')].map((row) => [...row.children].map((cell) => cell.textContent))"

    @needs_web
    @pytest.mark.parametrize("depth", [1, 3])
    def test_it_shows_what_every_exit_answers(self, small_model, page, browser, depth):
        number = [row.depth for row in small_model.predictions].index(depth)
        browser.open(f"{page}?model=/model")
        assert browser.run(self.READY) == "Ready."
        status = browser.run(self.ANSWERED % json.dumps(TEXTS[number]))
        first, last = (
            [row.label, "", f"{100 * row.probability:.1f} %"]
            for row in (small_model.first[number], small_model.predictions[number])
        )
        others = [["not run", "", ""]] * 2 if depth == 1 else [["not asked", "", ""], last]
        assert browser.run(self.ROWS) == [[f"layer {layer}", *row] for layer, row in enumerate([first, *others], 1)]
        assert browser.run("document.querySelectorAll('.exit.left').length") == 1
        assert status.startswith(f"{last[0]}, {last[2]} · {depth} of 3 layers run · ")

    @needs_web
    @pytest.mark.parametrize("look", LOOKS)
    def test_no_error_no_other_server_and_nothing_overflows(self, page, browser, look):
        browser.open(f"{page}?model=/model", **LOOKS[look])
        assert browser.run(self.READY) == "Ready."
        assert " layers run " in browser.run(self.ANSWERED % '"a good film"')
        browser.run("Promise.all(document.getAnimations().map((animation) => animation.finished))")
        assert browser.console == []
        assert all(request.startswith(("http://127.0.0.1:", "data:", "blob:")) for request in browser.requests)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")

    @needs_web
    @pytest.mark.skipif(not AXE.is_file(), reason="there is no axe-core")
    @pytest.mark.parametrize("look", LOOKS)
    def test_it_is_accessible(self, page, browser, look):
        browser.open(f"{page}?model=/model", **LOOKS[look])
        assert browser.run(self.READY) == "Ready."
        assert " layers run " in browser.run(self.ANSWERED % '"a good film"')
        browser.run("Promise.all(document.getAnimations().map((animation) => animation.finished))")
        browser.run(AXE.read_text(encoding="utf-8"))
        assert browser.run("axe.run().then((result) => result.violations.map((rule) => rule.id))") == []

    @needs_web
    def test_without_a_model_it_says_how_to_make_one(self, page, browser):
        browser.open(page)
        assert browser.run(self.READY) == "There is no model to run: /demo/model/exported.json cannot be read (404)."
        assert "exitpoll export MODEL" in browser.run("document.getElementById('help').innerText")


@needs_package
def test_the_code_of_the_guide_runs(export, tmp_path):
    [code] = re.findall(r"```js\n(.*?)```", (ROOT / "docs/how-to/browser.md").read_text(encoding="utf-8"), flags=re.S)
    (tmp_path / "classify.mjs").write_text(code, encoding="utf-8")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    (tmp_path / "trec-bert").mkdir()
    onnx = shutil.copytree(export.folder, tmp_path / "trec-bert" / "onnx")
    word_pieces().save(str(onnx / "tokenizer.json"))
    answers = run_node(tmp_path / "classify.mjs").split("\n")
    assert re.fullmatch(r"\S+ 0\.\d+ after layer [0-3]", answers[0])
