"""The number of threads given for a model is used for that model, and for nothing else in the process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from exitpoll import Engine, Policy
from exitpoll.benchmark.baselines import plain_transformers
from exitpoll.engine.loading import load_model
from tests.tiny import toy_texts

TEXTS = list(toy_texts(20, 3).first)
BEFORE, GIVEN = 2, 3  # threads of the process, and of the model


@pytest.fixture(autouse=True)
def threads_of_the_process():
    torch.set_num_threads(BEFORE)
    yield
    torch.set_num_threads(1)  # as in conftest


@pytest.fixture
def used(monkeypatch):
    """The numbers of threads with which embeddings, layers and heads were run."""
    numbers = []
    linear = torch.nn.functional.linear

    def noted(*arguments, **named):
        numbers.append(torch.get_num_threads())
        return linear(*arguments, **named)

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    return numbers


def in_a_new_thread():
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.get_num_threads).result()


def test_threads_are_those_of_the_model_alone(model_folder, used):
    engine = Engine.load(model_folder, policy=Policy("max_prob", 0.4), threads=GIVEN)
    assert (engine.runtime.threads, torch.get_num_threads()) == (GIVEN, BEFORE)
    for _ in engine.stream(TEXTS, 4):
        assert torch.get_num_threads() == BEFORE  # also while a job is running
    assert set(used) == {GIVEN}
    assert (torch.get_num_threads(), in_a_new_thread()) == (BEFORE, BEFORE)


def test_without_threads_the_model_uses_those_of_the_process(model_folder, used):
    engine = Engine.load(model_folder)
    for threads in (1, BEFORE):
        torch.set_num_threads(threads)
        engine(TEXTS)
        assert engine.runtime.threads == torch.get_num_threads() == threads
    assert set(used) == {1, BEFORE}


def test_threads_are_restored_after_an_error(model_folder):
    runtime = load_model(model_folder, threads=GIVEN).runtime
    with pytest.raises(IndexError, match="out of range"):
        runtime.embed({"input_ids": [[10**9]], "token_type_ids": [[0]]})  # not in the vocabulary
    assert (torch.get_num_threads(), in_a_new_thread()) == (BEFORE, BEFORE)


def test_threads_of_python_may_share_models_with_other_numbers_of_threads(model_folder, used):
    engines = [Engine.load(model_folder, threads=threads) for threads in (1, GIVEN)]
    expected = engines[0](TEXTS)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(engine, TEXTS, 2) for engine in engines * 6]
        assert all(
            prediction.label == other.label
            for job in jobs
            for prediction, other in zip(job.result(), expected, strict=True)
        )
        assert {job.result() for job in [pool.submit(torch.get_num_threads) for _ in range(16)]} == {BEFORE}
    assert set(used) == {1, GIVEN}
    assert (torch.get_num_threads(), in_a_new_thread()) == (BEFORE, BEFORE)


def test_baselines_in_torch_use_the_threads_of_the_model(model_folder, used):
    plain_transformers(load_model(model_folder, threads=GIVEN))(TEXTS, 8)
    assert set(used) == {GIVEN}
    assert torch.get_num_threads() == BEFORE
