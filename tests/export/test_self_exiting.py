"""The self-exiting graph exits where the trace predicts, with the answers that it predicts: law 10."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from exitpoll import Policy, Texts
from exitpoll.data.batching import padded_columns
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.strategies import STRATEGIES
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.record import record_in_memory
from exitpoll.export.self_exiting import SelfExitingGraph
from tests.laws.test_live import mixed_policy, some_texts
from tests.tiny import LAYERS

TEXTS = some_texts(24)
FAMILIES = ("albert", "bert", "deberta-v3", "distilbert", "modernbert", "mpnet")


@pytest.fixture(scope="module")
def recorded(tiny_models):
    """A function that returns the parts of an export, the export and its trace of the texts."""

    def make(name, **options):
        tiny = tiny_models(name, **options)
        loaded = tiny.load("onnx")
        return tiny.graphs, loaded, record_in_memory(loaded, Texts(TEXTS), batch_size=7)

    return make


def build(folder, policy):
    model = SelfExitingGraph(folder, Manifest.load(folder), policy).build()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(session, loaded, texts=TEXTS, **more):
    """Run texts in one batch: outputs by name."""
    columns = padded_columns(loaded.tokenize(Texts(texts)), loaded.runtime.padding)
    outputs = session.run(None, columns | {"with_exit_logits": np.array(True)} | more)
    return dict(zip([tensor.name for tensor in session.get_outputs()], outputs, strict=True))


def check(outputs, policy, trace, rows=None):
    """Compare with the replay of the trace."""
    decided = policy.decide(trace)
    rows = np.arange(len(trace)) if rows is None else rows
    np.testing.assert_array_equal(outputs["depth"], decided.depth[rows])
    if policy.problem_type == REGRESSION:
        np.testing.assert_allclose(outputs["value"], decided.answer[rows], atol=1e-4)
    else:
        np.testing.assert_array_equal(outputs["label"], decided.answer[rows])
        np.testing.assert_allclose(outputs["probability"], decided.probability[rows], atol=1e-4)
    passed = np.asarray(trace.exit_layers)[None] <= outputs["depth"][:, None]  # (texts, exits)
    assert np.isnan(outputs["exit_logits"][~passed]).all()
    np.testing.assert_allclose(outputs["exit_logits"][passed], np.asarray(trace.logits)[rows][passed], atol=1e-4)
    at_exit = outputs["exit_logits"][np.arange(len(rows)), outputs["exit_number"]]
    np.testing.assert_array_equal(outputs["logits"], at_exit)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_exits_where_the_trace_predicts(recorded, name):
    folder, loaded, trace = recorded("bert")
    policy = mixed_policy(name, trace)
    session = build(folder, policy)
    check(run(session, loaded), policy, trace)
    for row in range(5):
        check(run(session, loaded, [TEXTS[row]]), policy, trace, np.array([row]))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_exits_where_the_trace_predicts(recorded, family):
    folder, loaded, trace = recorded(family)
    policy = mixed_policy("max_prob", trace)
    session = build(folder, policy)
    check(run(session, loaded), policy, trace)
    order = np.random.default_rng(0).permutation(len(TEXTS))[:6]
    check(run(session, loaded, [TEXTS[row] for row in order]), policy, trace, order)


@pytest.mark.parametrize("rules", [{}, {"max_depth": 1}, {"fallback": "head"}, {"answer": "head"}])
def test_exits_depth_cap_and_answers_follow_the_policy(recorded, rules):
    folder, loaded, trace = recorded("bert", exits=(1, 3))
    policy = Policy("soft_votes", 0.6, {"k": 0.5}, **rules)
    check(run(build(folder, policy), loaded), policy, trace)


@pytest.mark.parametrize("layers", [(1, 3), (2, 3), (3,)])
def test_exits_that_are_not_asked_are_passed_in_one_branch(recorded, layers):
    """Their logits are there on request, and texts leave where the policy says."""
    folder, loaded, trace = recorded("bert")
    policy = replace(mixed_policy("max_prob", trace), exit_layers=layers)
    session = build(folder, policy)
    check(run(session, loaded), policy, trace)
    states = {tensor.name for tensor in session.get_outputs() if tensor.name.startswith("hidden_")}
    assert states == {f"hidden_{layer - 1}" for layer in layers[:-1]}


@pytest.mark.parametrize("problem_type", [MULTI_LABEL, REGRESSION])
def test_other_problem_types(recorded, problem_type):
    options = {"labels": ("a",)} if problem_type == REGRESSION else {}
    folder, loaded, trace = recorded("bert", problem_type=problem_type, **options)
    name = "patience" if problem_type == REGRESSION else "max_prob"
    settings = {"within": 1.0} if problem_type == REGRESSION else {}
    scores = np.unique(Policy(name, None, settings, problem_type=problem_type).opinion(trace.logits).score[:, :-1])
    policy = Policy(name, float(scores[len(scores) // 2 :][:2].mean()), settings, problem_type=problem_type)
    check(run(build(folder, policy), loaded), policy, trace)


def test_levels_and_depth_cap_are_inputs_with_defaults(recorded):
    folder, loaded, trace = recorded("bert")
    policy = mixed_policy("max_prob", trace)
    session = build(folder, policy)
    never = np.full(LAYERS, np.inf, dtype=np.float32)
    assert run(session, loaded, levels=never)["depth"].tolist() == [LAYERS] * len(TEXTS)
    assert run(session, loaded, levels=-never)["depth"].tolist() == [1] * len(TEXTS)
    capped = run(session, loaded, max_depth=np.array(2, dtype=np.int64))
    check(capped, Policy("max_prob", policy.threshold, max_depth=2), trace)


def test_a_policy_that_never_exits_early_answers_as_the_last_head(recorded):
    folder, loaded, trace = recorded("bert")
    check(run(build(folder, Policy()), loaded), Policy(), trace)


@pytest.mark.parametrize("family", ["albert", "bert"])
def test_every_weight_is_in_the_file_once(recorded, family):
    folder, _, trace = recorded(family)
    model = SelfExitingGraph(folder, Manifest.load(folder), mixed_policy("max_prob", trace)).build()
    weights = [tensor for path in folder.glob("*.onnx") for tensor in onnx.load(path).graph.initializer]
    total = sum(len(tensor.raw_data) for tensor in weights)
    assert sum(len(tensor.raw_data) for tensor in _initializers(model.graph)) <= total + 2_000  # constants


def _initializers(graph):
    """Return the initializers of a graph and of all branches inside."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [*graph.initializer, *(tensor for branch in inner for tensor in _initializers(branch))]


@pytest.mark.parametrize("layers", [None, (1, LAYERS)])
def test_every_tensor_has_the_shape_that_is_declared(recorded, layers):
    folder, _, _ = recorded("bert")
    policy = Policy("max_prob", 0.5, exit_layers=layers)
    onnx.checker.check_model(SelfExitingGraph(folder, Manifest.load(folder), policy).build(), full_check=True)
