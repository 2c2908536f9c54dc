"""ExitClassifier behaves as a classifier of scikit-learn, on texts."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from exitpoll import Engine, ExitClassifier, InputError
from tests.tiny import WORDS, toy_rows

TEXTS, LABELS = (list(column) for column in zip(*toy_rows(400, seed=1), strict=True))
NEW, GOLD = (list(column) for column in zip(*toy_rows(60, seed=2), strict=True))
QUICK = {"epochs": 1, "batch_size": 64, "training": {"logs_per_epoch": 1}}


@pytest.fixture(scope="module")
def fitted(encoder_folder):
    """An estimator that was fitted on enough texts to let some of them leave early."""
    training = {"logs_per_epoch": 1, "head_learning_rate": 3e-3}
    estimator = ExitClassifier(
        encoder_folder, max_disagreement=0.3, batch_size=16, learning_rate=2e-4, training=training
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="no text will leave early")
        return estimator.fit(TEXTS, LABELS)


@pytest.fixture
def quick(encoder_folder):
    """A function that makes an estimator that trains in no time, and never lets texts leave early."""
    defaults = QUICK | {"speedup": 1.0, "max_disagreement": None}
    return lambda **options: ExitClassifier(encoder_folder, **defaults | options)


def test_predictions(fitted):
    classes, shares, depths = fitted.predict(NEW), fitted.predict_proba(NEW), fitted.predict_depth(NEW)
    assert fitted.classes_.tolist() == ["bad", "good", "so-so"]
    assert classes.tolist() == fitted.classes_[shares.argmax(axis=1)].tolist()
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert fitted.score(NEW, GOLD) == np.mean(classes == np.array(GOLD)) > 0.4
    assert set(depths) <= {1, 2, 3}
    assert fitted.decision_depth_ == depths.mean() < 3
    assert (fitted.predict([]).shape, fitted.predict_proba([]).shape) == ((0,), (0, 3))
    assert np.isnan(fitted.decision_depth_)


def test_the_model_is_one_of_exitpoll(fitted):
    engine = Engine.load(fitted.folder_)
    assert [prediction.label for prediction in engine(NEW)] == fitted.predict(NEW).tolist()
    assert engine.policy.certificate.guarantee.at_most == 0.3
    assert fitted.engine_.explain(NEW[0]).prediction.label == fitted.predict(NEW[:1])[0]
    assert "the test split is the calibration split" in (Path(fitted.folder_) / "training.json").read_text()


@pytest.mark.parametrize(
    "classes",
    [
        ["no", "yes"],
        [3, 7],
        [False, True],
        [1.0, 2.0],
        np.array(["", "x"], dtype=object),  # the name of a class may be empty
    ],
)
def test_labels_come_back_as_they_were(quick, classes):
    y = np.array(classes)[np.arange(40) % 2]
    estimator = quick().fit(TEXTS[:40], y if classes[0] != 3 else y.tolist())
    assert estimator.classes_.tolist() == list(classes)
    predicted = estimator.predict(TEXTS[:4])
    assert predicted.dtype.kind == y.dtype.kind
    assert set(predicted.tolist()) <= set(classes)


def test_parameters():
    estimator = ExitClassifier("encoder", epochs=2, max_disagreement=0.1)
    assert clone(estimator).get_params() == estimator.get_params()
    assert estimator.set_params(epochs=5).epochs == 5
    with pytest.raises(ValueError, match="Invalid parameter 'nonsense'"):
        estimator.set_params(nonsense=1)
    with pytest.raises(NotFittedError):
        estimator.predict(NEW)
    with pytest.raises(NotFittedError):
        estimator.decision_depth_  # noqa: B018


def test_in_a_pipeline_and_in_searches(quick):
    lower = FunctionTransformer(lambda texts: [text.lower() for text in texts])
    steps = Pipeline([("lower", lower), ("classify", quick())])
    texts = [text.upper() for text in TEXTS[:60]]
    search = GridSearchCV(steps, {"classify__epochs": [1, 2]}, cv=2).fit(texts, LABELS[:60])
    assert search.best_params_["classify__epochs"] in (1, 2)
    assert set(search.predict(texts)) <= set(LABELS)
    assert cross_val_score(quick(), np.array(TEXTS[:60]), LABELS[:60], cv=2).shape == (2,)


def test_the_same_seed_gives_the_same_model(quick):
    first, again = (quick(random_state=7).fit(TEXTS[:40], LABELS[:40]).predict_proba(NEW) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    drawn = np.random.RandomState(7)
    others = [quick(random_state=drawn).fit(TEXTS[:40], LABELS[:40]).predict_proba(NEW) for _ in range(2)]
    assert np.abs(others[0] - others[1]).max() > 1e-6


def test_the_random_generators_of_the_process_stay_as_they_were(quick):
    np.random.seed(3)  # noqa: NPY002
    expected = np.random.rand()  # noqa: NPY002
    np.random.seed(3)  # noqa: NPY002
    quick().fit(TEXTS[:40], LABELS[:40])
    assert np.random.rand() == expected  # noqa: NPY002


def test_too_few_texts_for_a_guarantee(encoder_folder):
    estimator = ExitClassifier(encoder_folder, **QUICK)
    with pytest.warns(UserWarning, match=r"no text will leave early: 8 texts are too few to guarantee .* 149 or more"):
        estimator.fit(TEXTS[:40], LABELS[:40])
    assert set(estimator.predict_depth(NEW)) == {3}


# ---- folders and pickles --------------------------------------------------------------------------------------------


def test_a_pickle_holds_the_path_of_the_folder_alone(fitted):
    content = pickle.dumps(fitted)
    assert fitted.folder_.encode() in content
    assert len(content) < 2000
    again = pickle.loads(content)
    np.testing.assert_allclose(again.predict_proba(NEW), fitted.predict_proba(NEW), atol=1e-6)
    assert again.get_params() == fitted.get_params()


def test_a_temporary_folder_goes_with_its_last_estimator(quick):
    estimator = quick().fit(TEXTS[:40], LABELS[:40])
    folder, content, twin = Path(estimator.folder_), pickle.dumps(estimator), copy.deepcopy(estimator)
    expected = estimator.predict(NEW)
    del estimator
    gc.collect()
    assert twin.predict(NEW).tolist() == expected.tolist()
    del twin
    gc.collect()
    assert not folder.parent.exists()
    with pytest.raises(InputError, match="of this ExitClassifier, is gone; fit it again, with a folder="):
        pickle.loads(content).predict(NEW)


def test_a_folder_that_was_named(quick, tmp_path):
    folder = tmp_path / "model"
    estimator = quick(folder=folder).fit(TEXTS[:40], LABELS[:40])
    content, expected = pickle.dumps(estimator), estimator.predict_proba(NEW)
    assert estimator.folder_ == str(folder)
    estimator.fit(TEXTS[:40], LABELS[:40])  # it may replace its own model
    del estimator
    gc.collect()
    np.testing.assert_allclose(pickle.loads(content).predict_proba(NEW), expected, atol=1e-6)
    with pytest.raises(InputError, match="exists already"):
        quick(folder=folder).fit(TEXTS[:40], LABELS[:40])
    quick(folder=folder, overwrite=True, random_state=1).fit(TEXTS[:40], LABELS[:40])
    with pytest.raises(InputError, match="holds another model by now than this ExitClassifier was fitted with"):
        pickle.loads(content).predict(NEW)
    shutil.rmtree(folder)


# ---- texts ----------------------------------------------------------------------------------------------------------


def test_containers(fitted):
    pandas = pytest.importorskip("pandas")
    expected = fitted.predict(NEW).tolist()
    for given in (np.array(NEW), pandas.Series(NEW), (text for text in NEW), pandas.DataFrame({"text": NEW})):
        assert fitted.predict(given).tolist() == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("good film", "give a list of texts, not one text"),
        (b"good film", "give a list of texts, not one text"),
        ({"text": "good"}, "give a list of texts, not dict"),
        ([{"text": "good"}], "text 0 is empty, or neither a text nor a pair of texts"),
        ([b"good"], "text 0 is empty, or neither a text nor a pair of texts"),
        (np.zeros((2, 3)), "text 0 is empty, or neither a text nor a pair of texts"),
        ([("a", "b")], "text 0: a pair of texts, where the model was trained on single texts"),
    ],
)
def test_what_is_no_texts_is_refused(fitted, given, message):
    with pytest.raises(InputError, match=message):
        fitted.predict(given)


def test_pairs(quick):
    pairs = [(text, "with a cast") for text in TEXTS[:40]]
    assert set(quick().fit(np.array(pairs), LABELS[:40]).predict(pairs)) <= set(LABELS)


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        ({}, ["good"] * 40, "40 texts of 1 class are too few: a classifier needs two classes"),
        ({}, LABELS[:39], "inconsistent numbers of samples"),
        ({}, None, "requires y to be passed"),
        ({}, np.linspace(0, 1, 40), "Unknown label type: continuous"),
        ({"max_disagreement": 0.02}, LABELS[:40], "name one goal: max_disagreement, or speedup"),
        ({"speedup": None}, LABELS[:40], "name one goal: max_disagreement, or speedup"),
        ({"speedup": -1}, LABELS[:40], "speedup -1"),
        ({"calibration_share": 1.5}, LABELS[:40], "calibration_share 1.5 must be between 0 and 1"),
        ({"training": {"epochs": 3}}, LABELS[:40], "training has no epochs; it has: "),
        ({"training": "fast"}, LABELS[:40], "training 'fast' must be settings by name"),
        ({"epochs": 0}, LABELS[:40], "epochs 0 must be at least 1"),
    ],
)
def test_what_cannot_be_fitted_is_refused(quick, options, labels, message):
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(TEXTS[:40], labels)


# ---- the checks of scikit-learn -------------------------------------------------------------------------------------

NO_FEATURES = "texts have no features"
NUMBERS = "about arrays of numbers, which are turned into texts here before the estimator sees them"
LEFT_OUT = {
    "check_n_features_in": NO_FEATURES,
    "check_n_features_in_after_fitting": NO_FEATURES,
    "check_classifiers_train": "asks for a high accuracy on points in a plane",
    "check_array_api_input": NUMBERS,
    "check_classifier_data_not_an_array": NUMBERS,
    "check_complex_data": NUMBERS,
    "check_dtype_object": NUMBERS,
    "check_estimator_sparse_array": NUMBERS,
    "check_estimator_sparse_matrix": NUMBERS,
    "check_estimator_sparse_tag": NUMBERS,
    "check_estimators_dtypes": NUMBERS,
    "check_estimators_empty_data_messages": NUMBERS,
    "check_estimators_nan_inf": NUMBERS,
    "check_f_contiguous_array_estimator": NUMBERS,
    "check_fit1d": NUMBERS,
    "check_fit2d_1feature": NUMBERS,
    "check_fit2d_1sample": NUMBERS,
    "check_fit2d_predict1d": NUMBERS,
    "check_positive_only_tag_during_fit": NUMBERS,
    "check_readonly_memmap_input": NUMBERS,
}


class OnNumbers(ExitClassifier):
    """The estimator behind a function that makes texts of rows of numbers, which is what scikit-learn checks with."""

    def fit(self, X, y):  # noqa: N803
        return super().fit(_in_words(X), y)

    def predict(self, X):  # noqa: N803
        return super().predict(_in_words(X))

    def predict_proba(self, X):  # noqa: N803
        return super().predict_proba(_in_words(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        return tags


def _in_words(rows):
    from sklearn.utils import check_array

    return [" ".join(WORDS[int(10 * abs(number)) % len(WORDS)] for number in row[:6]) for row in check_array(rows)]


@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(encoder_folder):
    """All checks that apply to texts; `LEFT_OUT` lists the others."""
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    if not hasattr(checks, "estimator_checks_generator"):
        pytest.skip("this scikit-learn has no tags that say what the input is")
    ran = set()
    for estimator, check in checks.estimator_checks_generator(OnNumbers(encoder_folder, **QUICK)):
        if check.func.__name__ not in LEFT_OUT:
            check(estimator)
            ran.add(check.func.__name__)
    assert {"check_estimator_cloneable", "check_estimators_pickle", "check_dict_unchanged"} <= ran
    assert len(ran) > 20
