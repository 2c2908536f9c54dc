"""The self-exiting graph exits where the trace predicts, with the answers that it predicts: law 10."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

from exitpoll import Policy, Texts
from exitpoll.data.batching import padded_columns
from exitpoll.decide import formulas, steps
from exitpoll.decide.metrics import MULTI_LABEL, REGRESSION
from exitpoll.decide.operations import NUMPY
from exitpoll.decide.strategies import STATIC, STRATEGIES
from exitpoll.engine.manifest import Manifest
from exitpoll.engine.record import record_in_memory
from exitpoll.export.self_exiting import SelfExitingGraph
from tests.laws.test_live import mixed_policy, policy_for_values, settings_to_try, some_texts
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


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_for_several_labels(recorded, name):
    folder, loaded, trace = recorded("bert", problem_type=MULTI_LABEL)
    policy = between_scores(name, trace)
    check(run(build(folder, policy), loaded), policy, trace)


def between_scores(name, trace):
    """Return a policy whose threshold is in the widest gap between the scores in the middle."""
    if name == STATIC:
        return Policy(name, 1.5, problem_type=trace.problem_type)
    [settings, *_] = settings_to_try(name, LAYERS)
    policy = Policy(name, None, settings, problem_type=trace.problem_type)
    scores = np.unique(policy.opinion(np.asarray(trace.logits)).score[:, :-1])
    scores = scores[len(scores) // 4 : 3 * len(scores) // 4 + 2]
    if name == "hybrid" or len(scores) < 2:  # its members have thresholds of their own
        return replace(policy, threshold=0.0)
    widest = int(np.diff(scores).argmax())
    return policy.at(float(scores[widest : widest + 2].mean()))


@pytest.mark.parametrize("name", [name for name, row in STRATEGIES.items() if row.regression])
def test_every_strategy_for_values(recorded, name):
    folder, loaded, trace = recorded("bert", problem_type=REGRESSION, labels=("a",))
    policy = policy_for_values(name, trace)
    check(run(build(folder, policy), loaded), policy, trace)


@pytest.mark.parametrize("name", ["max_prob", "patience", "mean"])
@pytest.mark.parametrize("max_depth", [None, 2])
def test_a_head_that_gives_nan_never_lets_a_text_leave_early(recorded, tmp_path, name, max_depth):
    """Not at its exit and at none behind it, but where the depth cap says."""
    folder, loaded, trace = recorded("bert")
    policy = replace(mixed_policy(name, trace), max_depth=max_depth)
    broken = shutil.copytree(folder, tmp_path / "broken")
    spoil(broken / Manifest.load(broken).heads[1])
    logits = np.array(trace.logits)
    logits[:, 1] = np.nan
    expected = policy.decide(replace(trace, logits=logits)).depth
    outputs = run(build(broken, policy), loaded)
    np.testing.assert_array_equal(outputs["depth"], expected)
    assert (expected > 1).any()


def spoil(path):
    """Let a head give NaN for every text."""
    model = onnx.load(path)
    output = model.graph.output[0].name
    [last] = [node for node in model.graph.node if output in node.output]
    last.output[list(last.output).index(output)] = "sound"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(np.nan, np.float32), "nan"))
    model.graph.node.append(onnx.helper.make_node("Add", ["sound", "nan"], [output]))
    onnx.save(model, path)


def test_the_spread_of_values_far_from_zero_is_exact_in_32_bits():
    """The variance is no difference of two large numbers."""
    values = 50 + np.random.default_rng(0).normal(size=(200, LAYERS, 1)) * 0.05  # (texts, exits, 1)
    settings = {"coefficients": [[0.0, 0.0, 0.0, 1.0]] * LAYERS, "intercepts": [0.0] * LAYERS}
    expected = formulas.learned_distance(values, **settings).score
    memory: steps.Memory = {}
    for number in range(LAYERS):
        step = steps.learned_distance(NUMPY, values[:, number].astype(np.float32), memory, number, **settings)
        memory = step.memory
        np.testing.assert_allclose(step.score, expected[:, number], atol=1e-5)


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
def test_every_matrix_is_in_the_file_once(recorded, family):
    folder, _, trace = recorded(family)
    model = SelfExitingGraph(folder, Manifest.load(folder), mixed_policy("max_prob", trace)).build()
    weights = [tensor for path in folder.glob("*.onnx") for tensor in onnx.load(path).graph.initializer]
    assert _bytes_of_matrices(_initializers(model.graph)) <= _bytes_of_matrices(weights) + 2_000  # constants


def _bytes_of_matrices(tensors):
    """Count the bytes of what is no vector; a branch has vectors of its own, since it is slow to hand them to it."""
    return sum(len(tensor.raw_data) for tensor in tensors if len(tensor.dims) > 1)


def _initializers(graph):
    """Return the initializers of a graph and of all branches inside."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return [*graph.initializer, *(tensor for branch in inner for tensor in _initializers(branch))]


@pytest.mark.parametrize("layers", [None, (1, LAYERS)])
def test_every_tensor_has_the_shape_that_is_declared(recorded, layers):
    folder, _, _ = recorded("bert")
    policy = Policy("max_prob", 0.5, exit_layers=layers)
    onnx.checker.check_model(SelfExitingGraph(folder, Manifest.load(folder), policy).build(), full_check=True)
