"""Law 9: the README's code and commands run, and the documents' figures are those of the results files."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from exitpoll.cli.main import app, main
from tests.tiny import write_toy_folder

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULTS = json.loads((ROOT / "experiments" / "results" / "defaults.json").read_text())


def blocks(text):
    """Code that can be run: its language and itself, in the order of the document."""
    return re.findall(r"```(bash|python)\n(.*?)```", text, flags=re.S)


@pytest.fixture
def runs(tmp_path, monkeypatch, encoder_folder, model_folder, capsys):
    """A folder in which the documents' encoder and dataset are tiny ones, to run a document's code in."""
    write_toy_folder(tmp_path / "trec", train=640, others=320)
    (tmp_path / "questions.csv").write_text("text\ngood film\nbad plot\n")
    shutil.copytree(model_folder, tmp_path / "quickstart" / "model")
    monkeypatch.chdir(tmp_path)

    def execute(text):
        text = text.replace("google-bert/bert-base-uncased", str(encoder_folder))
        text = text.replace("--latency-ms 5", "--latency-ms 500")  # a busy machine may be slow even at tiny models
        for language, code in blocks(text):
            if language == "python":
                exec(compile(code, "a document", "exec"), {})
                continue
            for command in code.splitlines():
                assert command.startswith(("exitpoll ", "make ", "pip install ", "#", " ")) or not command, command
                if command.startswith("exitpoll "):
                    monkeypatch.setattr(sys, "argv", shlex.split(command))
                    main()
        return capsys.readouterr().out

    return execute


def test_the_code_of_readme_and_docs_runs(runs, tmp_path):
    printed = runs(README)
    assert "of 6 layers" in printed
    assert "[{'label':" in printed
    assert "best accuracy in % on 320 texts" in printed
    assert "promised: answers that differ" in printed
    assert (tmp_path / "trec-bert" / "policy.json").exists()
    for path in tmp_path.glob("*.safetensors"):
        path.unlink()  # the next document records its own
    printed = runs((ROOT / "docs" / "decisions.md").read_text(encoding="utf-8"))
    assert "ms a text on average" in printed
    assert "Estimate(value=" in printed
    shutil.rmtree(tmp_path / "trec-bert" / "onnx-int8")  # the next document exports it again
    printed = runs((ROOT / "docs" / "engine.md").read_text(encoding="utf-8"))
    assert "accuracy of all layers on 320 texts: " in printed
    assert "Prediction(label=" in printed
    assert (tmp_path / "answers.parquet").exists()


def test_the_code_of_the_shorter_documents_runs(runs, tmp_path):
    printed = runs((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert "report.html" in printed
    assert (tmp_path / "trec-bert" / "report" / "report.html").exists()
    printed = runs((ROOT / "docs" / "encoders.md").read_text(encoding="utf-8"))
    assert "'albert'" in printed
    printed = runs((ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))
    assert "policy: patience" in printed


def test_make_targets_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    lines = [line for _, code in blocks(README) for line in code.splitlines()]
    named = {line.split()[1] for line in lines if line.startswith("make ")}
    assert named
    assert named <= targets


def test_the_table_is_what_the_experiment_wrote():
    [row] = re.findall(r"^\| accuracy, % \|(.*)\|$", README, flags=re.M)
    measured = DEFAULTS["trec mean head_learning_rate=0.001 weights=uniform"]["test_scores"]
    assert [float(cell) for cell in row.split("|")] == [round(100 * score, 1) for score in measured]


def block(document, name):
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    [content] = re.findall(rf"<!-- {name} -->\n(.*?)\n<!-- /{name} -->", text, flags=re.S)
    return content


def test_the_table_behind_the_defaults_is_what_the_experiment_wrote():
    table = runpy.run_path(str(ROOT / "experiments" / "defaults.py"))["table"]
    assert block("training.md", "defaults") == table(DEFAULTS)


def test_the_stated_costs_are_what_the_benchmarks_wrote():
    step, loss = (
        json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
        for name in ("training_step", "objective_cost")
    )
    stated = block("training.md", "cost")
    assert f"{step['ours_over_plain']:.2f} ×" in stated
    assert f"{100 * max(loss['share_of_a_step'].values()):.1f} %" in stated
    assert step["within_bar"]
    assert loss["within_bar"]


def results(folder, name):
    return json.loads((ROOT / folder / "results" / f"{name}.json").read_text())


def test_the_tables_of_decisions_are_what_the_experiments_wrote():
    for name, rows in (("guarantee", results("experiments", "guarantee")["results"]),
                       ("strategies", results("experiments", "strategies"))):  # fmt: skip
        table = runpy.run_path(str(ROOT / "experiments" / f"{name}.py"))["table"]
        assert block("decisions.md", name) == table(rows)


def test_the_promise_of_the_readme_is_what_the_experiment_wrote():
    words = runpy.run_path(str(ROOT / "experiments" / "strategies.py"))["promise_in_words"]
    [stated] = re.findall(r"<!-- promise -->\n(.*?)\n<!-- /promise -->", README, flags=re.S)
    assert stated == words(results("experiments", "strategies")["trec"])


def test_the_stated_cost_of_deciding_is_what_the_benchmark_wrote():
    found = results("benchmarks", "decisions")
    stated, cost, micro = block("decisions.md", "cost"), found["sweep"], found["one_text_microseconds"]
    assert (
        f"{cost['curves']} curves with {cost['thresholds']:,} thresholds take {cost['total_seconds']:.1f} s" in stated
    )
    assert f"{cost['seconds']['asking strategies']:.1f} s of" in stated
    assert f"{100 * cost['share_of_plain_loop']:.1f} %" in stated
    assert f"{min(micro.values()):.0f} µs" in stated
    assert f"{max(micro.values()):.0f} µs" in stated
    assert all(found["within_bar"].values())


def test_the_figures_of_the_engine_are_what_the_benchmark_wrote():
    tables = runpy.run_path(str(ROOT / "benchmarks" / "engine_tables.py"))
    tasks = results("benchmarks", "engine")["tasks"]
    for name in ("kept", "limit", "plain", "short"):
        assert block("performance.md", name) == tables[f"{name}_table"](tasks)
    assert block("performance.md", "scale") == tables["scale_in_words"](results("benchmarks", "scale"))
    [stated] = re.findall(r"<!-- clock -->\n(.*?)\n<!-- /clock -->", README, flags=re.S)
    assert stated == tables["clock_in_words"](tasks)


def test_an_engine_that_never_leaves_costs_what_plain_transformers_does():
    """Law 3, on the clock, as the benchmark measured it."""
    timings = [each for task in results("benchmarks", "engine")["tasks"].values() for each in task["timings"]]
    found = [
        each["against_plain"] for each in timings if (each["runtime"], each["way"]) == ("torch", "engine, all layers")
    ]
    assert len(found) == 8
    assert min(found) > 0.95


def test_the_quickstart_of_the_readme_is_what_it_came_to():
    words = runpy.run_path(str(ROOT / "experiments" / "quickstart.py"))["in_words"]
    [stated] = re.findall(r"<!-- quickstart -->\n(.*?)\n<!-- /quickstart -->", README, flags=re.S)
    assert stated == words(results("experiments", "quickstart"))


def test_every_verb_shows_an_example(capsys):
    for words in ([], *([name] for name in app if not name.startswith("-"))):
        app([*words, "--help"], result_action="return_value")
        assert "Example: exitpoll" in capsys.readouterr().out, words


def test_no_code_goes_untested_for_its_language():
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        languages = set(re.findall(r"^```(\w*)$", document.read_text(encoding="utf-8"), flags=re.M)) - {""}
        assert languages <= {"bash", "python", "json", "text"}, document


def test_links_within_the_project_lead_somewhere():
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert target.startswith("https://") or (document.parent / target).exists(), (document, target)


def test_the_page_of_results_is_what_the_runs_came_to(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "experiments")
    script = runpy.run_path(str(ROOT / "experiments" / "reproduce_page.py"))
    found = script["read_results"]()
    for name, words in script["BLOCKS"].items():
        assert block("results.md", name) == words(found)
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    pictures = set(re.findall(r"\]\((figures/[^)]+)\)", page))
    runs = set(re.findall(r"\]\(https://github.com/exitpoll/exitpoll/blob/main/(experiments/[^)]+)\)", page))
    assert len(pictures | runs) > 20
    assert [name for name in pictures if not (ROOT / "docs" / name).exists()] == []
    assert [name for name in runs if not (ROOT / name).exists()] == []
    assert {cell.run for cell in found.cells} == {Path(name).stem for name in runs}
