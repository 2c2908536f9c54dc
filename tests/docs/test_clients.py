"""The examples of clients of other servers run as they stand in the documentation, and read the engine's answers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from contextlib import redirect_stdout
from io import StringIO

import pytest

from exitpoll import Engine
from tests.docs.conftest import ROOT
from tests.server.conftest import listening_to
from tests.web.javascript import NODE, PACKAGES

pytest.importorskip("uvicorn", reason="the extra server is not installed")
pytest.importorskip("prometheus_client", reason="the extra server is not installed")

PAGE = (ROOT / "docs" / "how-to" / "serve-clients.md").read_text(encoding="utf-8")
TEXTS = ["Who was Galileo ?", "How far is it to Aspen ?"]
ADDRESS = "127.0.0.1:8000"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.S)


def commands(path):
    """The curl commands that ask for a path."""
    return [line for block in blocks("bash") for line in block.splitlines() if f"{ADDRESS}{path} " in line]


@pytest.fixture(scope="module")
def served(prepared):
    """The address of a server, and its model."""
    from exitpoll.server.service import Service

    engine = Engine.load(prepared / "trec-bert")
    with listening_to(Service(engine.model, folder=prepared / "trec-bert", name="trec-bert")) as port:
        yield f"127.0.0.1:{port}", engine


def ask(command, served):
    """Run a curl command, and read what it prints."""
    if shutil.which("curl") is None:
        pytest.skip("there is no curl")
    done = subprocess.run(
        ["sh", "-c", command.replace(ADDRESS, served[0])], capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def output_of(package, served):
    """Run the example in Python that imports a package, and return what it prints."""
    pytest.importorskip(package, reason=f"{package} is not installed")
    [code] = [block for block in blocks("python") if re.search(rf"^(from|import) {re.escape(package)}\b", block, re.M)]
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code.replace(ADDRESS, served[0]), "serve-clients.md", "exec"), {})
    return printed.getvalue()


def test_there_is_an_example_for_every_path_that_predicts():
    assert len(commands("/predict")) == len(commands("/classify")) + len(commands("/v1/classify")) == 2
    assert (len(blocks("python")), len(blocks("js"))) == (3, 1)


def test_text_embeddings_inference(served):
    single, several = (ask(command, served) for command in commands("/predict"))
    rows = served[1](TEXTS)
    assert [row["label"] for row in (single[0], several[0][0], several[1][0])] == [
        row.label for row in (rows[0], *rows)
    ]
    assert {row["label"]: row["score"] for row in single} == pytest.approx(rows[0].probabilities, abs=1e-5)
    raw = dict(zip(rows[1].label_names, rows[1].logits.tolist(), strict=True))
    assert {row["label"]: row["score"] for row in several[1]} == pytest.approx(raw, abs=1e-4)


def test_vllm(served):
    single, several = (ask(commands(path)[0], served) for path in ("/classify", "/v1/classify"))
    expected = served[1](TEXTS)
    assert [(row["label"], row["depth"]) for row in single["data"]] == [(expected[0].label, expected[0].depth)]
    rows = Engine(served[1].model)(TEXTS)  # by the policy that the name of the model asks for: full
    assert [(row["label"], row["depth"]) for row in several["data"]] == [(row.label, row.depth) for row in rows]


def test_huggingface_hub(served, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # its client asks this server only
    [expected] = served[1](TEXTS[:1])
    first, *others = output_of("huggingface_hub", served).splitlines()
    assert first.split()[0] == expected.label
    assert float(first.split()[1]) == pytest.approx(expected.probabilities[expected.label], abs=1e-5)
    assert len(others) == len(expected.label_names) - 1


def test_openai(served):
    [expected] = served[1](TEXTS[:1])
    names, line = output_of("openai", served).splitlines()
    assert "trec-bert:full" in names
    assert line.split()[0] == expected.label
    assert line.endswith(f"after {expected.depth} layers")


def test_tritonclient(served):
    pytest.importorskip("tritonclient.http", reason="tritonclient and geventhttpclient are not installed")
    expected = served[1](TEXTS)
    labels, depths = [row.label for row in expected], [row.depth for row in expected]
    assert output_of("tritonclient", served) == f"{labels} after {depths} layers\n"


@pytest.mark.skipif(
    NODE is None or not (PACKAGES / "@huggingface" / "inference").is_dir(), reason="there is no @huggingface/inference"
)
def test_javascript(served, tmp_path):
    [code] = blocks("js")
    (tmp_path / "node_modules").symlink_to(PACKAGES)
    (tmp_path / "ask.mjs").write_text(code.replace(ADDRESS, served[0]))
    done = subprocess.run([NODE, "ask.mjs"], capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    [expected] = served[1](TEXTS[:1])
    first = done.stdout.splitlines()[0].split()
    assert first[0] == expected.label
    assert float(first[1]) == pytest.approx(expected.probabilities[expected.label], abs=1e-5)
