"""exitpoll.pipeline answers as transformers' pipeline does, with the same structure, at full depth the same values."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification
from transformers import pipeline as transformers_pipeline
from transformers.pipelines.pt_utils import KeyDataset, KeyPairDataset

from exitpoll import EarlyExitModel, Engine, InputError, Policy, pipeline
from exitpoll.engine.torch_runtime import loaded_model
from tests.numbers_runtime import numbers_model
from tests.tiny import tiny_classifier, tiny_tokenizer

TEXTS = ["good film", "the plot was awful and the cast poor", "a very average film"]
PAIRS = [{"text": text, "text_pair": "with a great cast"} for text in TEXTS]
ROWS = [{"id": number, "one": text, "two": "the cast"} for number, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=["single_label_classification", "multi_label_classification", "regression"])
def both(request, tmp_path_factory):
    """The pipeline of transformers and that of exitpoll, for one classifier."""
    folder = tmp_path_factory.mktemp("classifier")
    classes = 1 if request.param == "regression" else 3
    tiny_classifier("bert", classes=classes, problem_type=request.param).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder)
    engine = Engine(loaded_model(EarlyExitModel.from_classifier(folder), tiny_tokenizer()))

    def make(**options):
        reference = transformers_pipeline("text-classification", theirs, tokenizer=tiny_tokenizer(), **options)
        return reference, pipeline(engine, **options)

    return make


def rounded(result):
    """Round the scores, and replace what is lazy by a list that says so."""
    if isinstance(result, dict):
        return {"label": result["label"], "score": pytest.approx(result["score"], abs=1e-4)}
    if isinstance(result, list):
        return [rounded(part) for part in result]
    return ("lazy", [rounded(part) for part in result])


def plain(result):
    if isinstance(result, dict | list):
        return result
    return ("lazy", list(result))


INPUTS = {
    "a text": lambda: TEXTS[0],
    "a list": lambda: TEXTS,
    "a list of one": lambda: TEXTS[:1],
    "a dict": lambda: PAIRS[0],
    "a dict of one text": lambda: {"text": TEXTS[0]},
    "a list of dicts": lambda: PAIRS,
    "a generator": lambda: (text for text in TEXTS),
    "a generator of dicts": lambda: (pair for pair in PAIRS),
    "a column of a dataset": lambda: KeyDataset(ROWS, "one"),
    "two columns of a dataset": lambda: KeyPairDataset(ROWS, "one", "two"),
}
CALLS = [
    {},
    {"top_k": 1},
    {"top_k": 2, "batch_size": 2},
    {"top_k": None},
    {"function_to_apply": "sigmoid"},
    {"function_to_apply": "Softmax", "top_k": None},
    {"function_to_apply": "none", "batch_size": 3, "truncation": True, "padding": True},
]


@pytest.mark.parametrize("name", INPUTS)
def test_the_same_as_in_transformers(both, name):
    theirs, ours = both()
    for options in CALLS:
        expected, result = theirs(INPUTS[name](), **options), ours(INPUTS[name](), **options)
        assert plain(result) == rounded(expected), options


@pytest.mark.parametrize("options", [{"top_k": None}, {"top_k": 2, "function_to_apply": "none", "batch_size": 2}])
def test_options_of_the_pipeline(both, options):
    theirs, ours = both(**options)
    for name in ("a text", "a dict", "a list", "a generator"):
        for more in ({}, {"top_k": 1}, {"function_to_apply": "softmax"}):
            assert plain(ours(INPUTS[name](), **more)) == rounded(theirs(INPUTS[name](), **more)), (name, more)


def test_containers_that_transformers_refuses():
    pandas = pytest.importorskip("pandas")
    classify = pipeline(Engine(numbers_model(), Policy("max_prob", 0.9)))
    expected = classify(TEXTS)
    series = pandas.Series(TEXTS, index=[2, 0, 1])
    for given in (np.array(TEXTS), tuple(TEXTS), series, pandas.DataFrame({"text": TEXTS, "id": [1, 2, 3]})):
        assert classify(given) == expected
    pairs = [("a", "b c"), ["d", "e"]]
    assert classify(pairs) == classify([{"text": first, "text_pair": second} for first, second in pairs])
    assert classify([]) == []


def test_generators_are_read_as_results_are_asked_for():
    read = []
    classify = pipeline(Engine(numbers_model(), Policy("max_prob", 0.9)))

    def source():
        for text in TEXTS * 4:
            read.append(text)
            yield text

    results = classify(source())
    assert isinstance(results, types.GeneratorType)
    assert read == []
    assert [next(results), next(results)] == classify(TEXTS[:2])
    assert len(read) == 2
    next(classify(source(), batch_size=5))
    assert len(read) == 2 + 5
    endless = iter(lambda: "good film", None)
    assert next(classify(endless)) == classify("good film")[0]


def test_datasets_are_read_again_and_have_a_length():
    classify = pipeline(Engine(numbers_model()))
    results = classify(KeyDataset(ROWS, "one"))
    assert len(results) == len(TEXTS)
    assert list(results) == list(results) == classify(TEXTS)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(TEXTS)

    assert list(classify(Stream())) == classify(TEXTS)
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"label": [0, 1, 0], "text": TEXTS})
    for given in (table, table["text"], table.to_iterable_dataset(), table.to_iterable_dataset()["text"]):
        assert list(classify(given)) == classify(TEXTS)


def test_texts_exit_early_with_the_answer_of_the_engine(tiny_models):
    engine = Engine(tiny_models("bert").load("torch"), Policy("votes", 2.0, {"k": 0.0}))
    texts = [" ".join(TEXTS[: number + 1]) for number in range(3)] + ["bad", "fine", "the plot", "it was great"]
    predictions = engine(texts)
    assert {prediction.depth for prediction in predictions} != {3}
    for top_k in (1, 2, None):
        results = pipeline(engine)(texts, top_k=top_k)
        assert [result[0]["label"] for result in results] == [prediction.label for prediction in predictions]
    for result, prediction in zip(results, predictions, strict=True):
        assert {row["label"]: row["score"] for row in result} == pytest.approx(prediction.probabilities)


def test_a_folder_and_its_export(model_folder, exported_folder):
    for folder, device in ((model_folder, torch.device("cpu")), (model_folder, -1), (exported_folder, None)):
        classify = pipeline(folder, device=device, policy=Policy("max_prob", 0.0), task="sentiment-analysis")
        assert classify("good film") == [{"label": "good", "score": pytest.approx(1, abs=0.7)}]
        assert "max_prob" in repr(classify)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"return_all_scores": True}, "the pipeline has no option return_all_scores; it has: top_k, function_to_apply"),
        ({"max_length": 12, "stride": 2}, "the pipeline has no option max_length, stride"),
        ({"top_k": 0}, "top_k 0 must be an integer, at least 1"),
        ({"top_k": "all"}, "top_k 'all' must be an integer"),
        ({"batch_size": 0}, "batch_size 0 must be an integer"),
        ({"function_to_apply": "tanh"}, "function_to_apply 'tanh' is unknown; choose one of: sigmoid, softmax, none"),
        ({"truncation": False}, "truncation cannot be turned off"),
    ],
)
def test_options_are_checked(options, message):
    engine = Engine(numbers_model())
    for call in (lambda: pipeline(engine, **options), lambda: pipeline(engine)(TEXTS, **options)):
        with pytest.raises(InputError, match=message):
            call()


def test_what_is_loaded_is_checked():
    with pytest.raises(InputError, match="'text-classification' is the task; name the model first"):
        pipeline("text-classification", "onnx")
    with pytest.raises(InputError, match="task 'ner' is unknown; choose one of: text-classification"):
        pipeline("somewhere", task="ner")
    with pytest.raises(InputError, match="an engine has its runtime, policy, threads and device already"):
        pipeline(Engine(numbers_model()), "onnx")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (b"good film", "give a text as str, not bytes"),
        ([b"good film"], "text 0 is empty, or neither a text nor a pair of texts: b'good film'"),
        ("", "text 0 is empty"),
        (["good", None], "text 1 is empty"),
        ({"good", "bad"}, "give a list of texts, not a set"),
        (7, "give a list of texts, not int"),
        (None, "give a list of texts, not NoneType"),
        ({"sentence": "good"}, "text 0 is a dict with sentence; give text and, for a pair, text_pair"),
        ([{"text": "good", "label": 1}], "text 0 is a dict with text, label; give text"),
        ([{}], "text 0 is a dict with no keys; give text"),
        (["good", ("a", "b")], "some texts are pairs and some are not"),
    ],
)
def test_inputs_are_checked(given, message):
    with pytest.raises(InputError, match=message):
        pipeline(Engine(numbers_model()))(given)


def test_the_text_of_a_generator_is_named():
    results = pipeline(Engine(numbers_model()))(text for text in ["good", "film", ""])
    assert [next(results), next(results)]
    with pytest.raises(InputError, match="text 2 is empty"):
        next(results)
