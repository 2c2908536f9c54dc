"""Engines in several processes: pickled by their folder, and refused in a fork where they would wait for ever."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from exitpoll import Engine, InputError, Policy, Texts, load_model, record
from tests.numbers_runtime import numbers_model
from tests.tiny import toy_texts

TEXTS = list(toy_texts(20, 3).first)
POLICY = Policy("max_prob", 0.36)


def in_a_fork(work):
    """Run a function in a fork of this process, and return what it returns, or its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            result = work()
        except InputError as error:
            result = error
        os.write(writer, pickle.dumps(result))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        content = file.read()
    os.waitpid(child, 0)
    return pickle.loads(content)


@pytest.fixture(params=["torch", "onnx"])
def folder(request, model_folder, exported_folder):
    return model_folder if request.param == "torch" else exported_folder


def test_a_pickled_engine_is_loaded_from_its_folder(folder, monkeypatch):
    engine = Engine.load(folder, policy=POLICY, threads=1)
    monkeypatch.chdir(folder.parent)
    relative = Engine.load(folder.name, policy=POLICY, threads=1)
    monkeypatch.undo()
    for other in (pickle.loads(pickle.dumps(engine)), pickle.loads(pickle.dumps(relative)), copy.deepcopy(engine)):
        assert other(TEXTS) == engine(TEXTS)
        assert (other.policy, other.runtime.threads) == (engine.policy, 1)
    assert len(pickle.dumps(engine)) < 5000


@pytest.mark.slow
def test_engines_are_sent_to_processes_that_are_spawned(exported_folder):
    engine = Engine.load(exported_folder, policy=POLICY, threads=2)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(engine, TEXTS).result() == engine(TEXTS)


def test_a_model_in_memory_cannot_be_pickled(tiny_models):
    tiny = tiny_models("bert")
    for what in (tiny.load("torch"), Engine(tiny.load("torch"))):
        with pytest.raises(InputError, match="made in memory cannot be pickled; save it"):
            pickle.dumps(what)


def test_a_fork_refuses_a_model_with_threads(folder, tmp_path):
    engine = Engine.load(folder, policy=POLICY, threads=2)
    engine(TEXTS)
    for work in (lambda: engine(TEXTS), lambda: record(engine.model, Texts(TEXTS), tmp_path / "t")):
        error = in_a_fork(work)
        assert isinstance(error, InputError)
        assert "was loaded before this process was forked" in str(error)
        assert "load it in the new process, give it threads=1, or start processes with spawn" in str(error)


def test_a_fork_may_use_a_model_with_one_thread(folder):
    others = Engine.load(folder, policy=POLICY, threads=2)
    others(TEXTS * 20)  # this process has threads, which its fork will not have
    engine = Engine.load(folder, policy=POLICY, threads=1)
    expected = engine(TEXTS)
    assert in_a_fork(lambda: engine(TEXTS)) == expected


def test_a_fork_may_load_a_model(folder):
    expected = Engine.load(folder, policy=POLICY, threads=1)(TEXTS)
    assert in_a_fork(lambda: Engine.load(folder, policy=POLICY, threads=1)(TEXTS)) == expected


def test_descriptions(model_folder, exported_folder):
    engine = Engine.load(model_folder, policy=POLICY, threads=2)
    described = f"'{model_folder}', torch float32, 3 exits up to layer 3, 3 labels, 2 threads on cpu"
    assert repr(engine) == f"Engine({described}, policy: max_prob)"
    assert repr(engine.model) == f"LoadedModel({described})"
    assert repr(Engine(numbers_model())) == (
        "Engine(numbers, 5 exits up to layer 6, 2 labels, 1 threads on cpu, policy: never exits early)"
    )
    assert "onnx float32" in repr(load_model(exported_folder))
