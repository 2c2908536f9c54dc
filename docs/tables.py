"""Write the tables, counts and measured numbers of the README and the documentation.

python docs/tables.py

They come from the tables of the source and from the results files of benchmarks and experiments, and stand between
comments: `<!-- name -->` … `<!-- /name -->`. A test fails if a page differs from what this script writes.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from pathlib import Path
from typing import Any

from exitpoll.data.tasks import TASKS, Task
from exitpoll.decide.metrics import METRICS
from exitpoll.decide.strategies import STRATEGIES, Strategy
from exitpoll.models import losses
from exitpoll.models.encoders import FAMILIES
from exitpoll.training.methods import METHODS, SCHEDULES
from exitpoll.training.objectives import OBJECTIVES

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # to import benchmarks and experiments, whose functions write the measured tables

BLOCK = re.compile(r"<!-- (?P<name>[a-z][a-z0-9 -]*) -->(?P<break>\n?).*?<!-- /(?P=name) -->", flags=re.S)
NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"),
)
CHECKPOINTS = {  # an example on the hub for every encoder
    "albert": "albert/albert-base-v2",
    "bert": "google-bert/bert-base-uncased",
    "camembert": "almanach/camembert-base",
    "deberta-v2": "microsoft/deberta-v3-base",
    "distilbert": "distilbert/distilbert-base-uncased",
    "electra": "google/electra-base-discriminator",
    "modernbert": "answerdotai/ModernBERT-base",
    "mpnet": "microsoft/mpnet-base",
    "roberta": "FacebookAI/roberta-base",
    "xlm-roberta": "FacebookAI/xlm-roberta-base",
}


# ---- Markdown -------------------------------------------------------------------------------------------------------


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    names = list(header)
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def in_words(things: Sized) -> str:
    """Return how many things there are, as a word where it is short."""
    return NUMBERS[len(things)] if len(things) < len(NUMBERS) else f"{len(things):,}"


def listed(names: Iterable[str], last: str = "and") -> str:
    """Return names as a list in a sentence."""
    *firsts, final = (f"`{name}`" for name in names)
    return f"{', '.join(firsts)} {last} {final}" if firsts else final


def summary(thing: object) -> str:
    """Return the first line of a docstring, without the full stop."""
    return (inspect.getdoc(thing) or "").split("\n")[0].rstrip(".")


# ---- from the tables of the source ----------------------------------------------------------------------------------


def strategies() -> str:
    """Return the table of strategies."""
    header = ("strategy", "score", "settings", "regression", "tested on")
    rows = (
        (f"`{name}`", row.about, _settings(row), "yes" if row.regression else "no", _tested_on(row))
        for name, row in STRATEGIES.items()
    )
    return table(header, rows)


def _settings(strategy: Strategy) -> str:
    """Return the settings of a strategy, each with its valid values."""
    return "; ".join(f"`{name}`: {setting.wanted}" for name, setting in strategy.settings.items()) or "–"


def _needs_no_search(strategy: Strategy) -> bool:
    """Return whether a guarantee for the strategy alone is tested on all texts."""
    return strategy.grid is not None and len(strategy.variants) == 1


def _tested_on(strategy: Strategy) -> str:
    """Return which texts a guarantee for the strategy alone is tested on."""
    return "all texts" if _needs_no_search(strategy) else "half of them"


def metrics() -> str:
    """Return the table of metrics."""
    rows = (
        (f"`{name}`", summary(row.score), ", ".join(row.problem_types) + (", two classes" * row.only_two_classes))
        for name, row in METRICS.items()
    )
    return table(("metric", "score", "for"), rows)


def objectives() -> str:
    """Return the table of objectives."""
    rows = (
        (
            f"`{name}`",
            summary(getattr(losses, name, row.bind)),
            "two-stage, heads or exit-zero" if row.needs_trained_last_head else "any",
        )
        for name, row in OBJECTIVES.items()
    )
    return table(("objective", "loss", "schedule"), rows)


def methods() -> str:
    """Return the table of methods."""
    header = ("`--method`", "objective", "weights of the exits", "λ", "schedule", "strategy", "paper")
    rows = (
        (
            *(f"`{name}`", f"`{row.objective}`", row.exit_weights, f"{row.diversity_weight:g}"),
            *(f"`{row.schedule}`", f"`{row.strategy}`", row.paper or "–"),
        )
        for name, row in METHODS.items()
    )
    return table(header, rows)


def schedules() -> str:
    """Return the table of schedules."""
    rows = ((f"`{name}`", ", then ".join(f"`{stage}`" for stage in stages)) for name, stages in SCHEDULES.items())
    return table(("`--schedule`", "stages"), rows)


def tasks() -> str:
    """Return the table of tasks."""
    rows = (
        (
            f"`{name}`",
            _dataset(row),
            ", ".join(f"`{column}`" for column in row.columns),
            f"`{row.metric}`",
            _held_out(row),
        )
        for name, row in TASKS.items()
    )
    return table(("task", "dataset on the hub", "texts", "metric", "splits of the hub"), rows)


def _dataset(task: Task) -> str:
    """Return the name of a task's dataset, with its configuration."""
    return task.hub if task.subset is None else f"{task.hub}, {task.subset}"


def _held_out(task: Task) -> str:
    """Return the splits that a task has on the hub."""
    return ", ".join(f"`{split}`" for split in task.splits.values())


def encoders() -> str:
    """Return the table of encoders."""
    rows = (
        (
            f"`{name}`",
            f"`{row.layer.__name__}`",
            "yes" if row.pool is not None else "no",
            f"`{CHECKPOINTS[name]}`" if name in CHECKPOINTS else "–",
        )
        for name, row in sorted(FAMILIES.items())
    )
    return table(("type", "a layer is run by", "`--pooling pooler`", "for example"), rows)


def command_line() -> str:
    """Return the help of all verbs."""
    from exitpoll.cli.app import app

    text = app.generate_docs(output_format="markdown", heading_level=1)
    verbs = text[re.search(r"^## exitpoll ", text, flags=re.M).start() :]  # type: ignore[union-attr]
    return re.sub(r"[ \t]+$", "", verbs.replace("```console", "```text"), flags=re.M).strip()


def packages() -> str:
    """Return the table of packages with their docstrings, in the order of the import contracts, lowest first."""
    source = ROOT / "src" / "exitpoll"
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    names = [name.strip().removeprefix("exitpoll.") for layer in reversed(layers) for name in layer.split("|")]
    rows = []
    for name in names:
        path, title = source / name / "__init__.py", f"`{name}/`"
        if not path.exists():
            path, title = source / f"{name}.py", f"`{name}.py`"
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        rows.append((title, docstring.split("\n")[0]))
    return table(("in `src/exitpoll/`", "what it holds"), rows)


# ---- measured -------------------------------------------------------------------------------------------------------


def results(folder: str, name: str) -> Any:
    """Read a results file of the benchmarks or experiments."""
    return json.loads((ROOT / folder / "results" / f"{name}.json").read_text(encoding="utf-8"))


def engine(name: str) -> Callable[[], str]:
    """Return a writer of one of the tables on the engine."""

    def write() -> str:
        from benchmarks import engine_tables

        return getattr(engine_tables, name)(results("benchmarks", "engine")["tasks"])

    return write


def limits() -> str:
    """Return how close the engine comes to static graphs."""
    from benchmarks.engine_tables import limits_table

    return limits_table(results("benchmarks", "limits")["tasks"])


def limits_bars() -> str:
    """Write which bars of the engine are reached."""
    from benchmarks.engine_tables import limits_bars_table

    return limits_bars_table(results("benchmarks", "limits")["tasks"])


def one_text() -> str:
    """Return where the time of one short text goes."""
    from benchmarks.engine_tables import one_text_table

    found = results_if_measured("one_text")
    return "Not measured yet: run `python benchmarks/one_text.py`." if found is None else one_text_table(found)


def start() -> str:
    """Return what a process pays before its first answer."""
    from benchmarks.engine_tables import start_table

    found = results_if_measured("start")
    return "Not measured yet: run `python benchmarks/start.py trec-bert`." if found is None else start_table(found)


def gains() -> str:
    """Return the table of the README's first screen."""
    from benchmarks.engine_tables import gains_table

    return gains_table(results("benchmarks", "engine"), results("experiments", "quickstart"))


def scale() -> str:
    """Describe how time and memory grow with the size of a file."""
    from benchmarks.engine_tables import scale_in_words

    return scale_in_words(results("benchmarks", "scale"))


def quickstart() -> str:
    """Describe the result of the quickstart."""
    from experiments.quickstart import in_words as describe

    return describe(results("experiments", "quickstart"))


def guarantee_of_trec() -> str:
    """Describe the guarantee for TREC, and what was measured on its test questions."""
    from benchmarks.engine_tables import guarantee_in_words

    measured = results("benchmarks", "engine")
    return guarantee_in_words(measured["tasks"]["trec"], measured["max_disagreement"])


def learned_and_hybrid() -> str:
    """Return the comparison of learned and hybrid strategies with published ones."""
    from experiments.strategies import table as strategies_table

    return strategies_table(results("experiments", "strategies"))


def exit_zero() -> str:
    """Return the speed-up with an exit before the first layer and without."""
    from experiments.exit_zero import table as exit_zero_table

    return exit_zero_table(results("experiments", "exit_zero"))


def exit_zero_clock() -> str:
    """Return what an exit before the first layer gains on the clock."""
    from experiments.exit_zero_clock import table as clock_table

    return clock_table(results("experiments", "exit_zero"))


def adopt() -> str:
    """Return what adopt gains on classifiers of plain transformers."""
    from experiments.adopt import table as adopt_table

    return adopt_table(results("experiments", "adopt"))


def adopt_in_short() -> str:
    """Return the same for the README."""
    from experiments.adopt import short_table

    return short_table(results("experiments", "adopt"))


def live_shift() -> str:
    """Describe what a server finds when texts of another domain come."""
    from experiments.live_shift import in_words as describe

    return describe(results("experiments", "live_shift"))


def image_size() -> str:
    """Describe how large the packages of a server are."""
    from experiments.image_size import in_words as describe

    return describe(results("experiments", "image_size"))


def heads() -> str:
    """Return which heads learn a frozen classifier best."""
    from experiments.heads import table as heads_table

    return heads_table(results("experiments", "heads"))


def guarantee_by_simulation() -> str:
    """Return how often guarantees are broken in a simulation."""
    from experiments.guarantee import table as guarantee_table

    return guarantee_table(results("experiments", "guarantee")["results"])


def pooling_and_learning_rate() -> str:
    """Return the scores of all exits by pooling and learning rate."""
    from experiments.defaults import table as defaults_table

    return defaults_table(results("experiments", "defaults"))


def exits_of_trec() -> str:
    """Return the accuracy of every exit on TREC."""
    scores = results("experiments", "defaults")["trec mean head_learning_rate=0.001 weights=uniform"]["test_scores"]
    header = ("exit after layer", *(str(layer) for layer in range(1, len(scores) + 1)))
    return table(header, [("accuracy, %", *(f"{100 * score:.1f}" for score in scores))])


def cost_of_training() -> str:
    """Return what exits add to a training step."""
    step, loss = results("benchmarks", "training_step"), results("benchmarks", "objective_cost")
    share = 100 * max(loss["share_of_a_step"].values())
    exits = "a training step with 12 exits, against plain fine-tuning with one head through `Trainer`"
    losses_of_all = "the ensemble loss and its gradient (12 exits, up to 150 classes), of a training step"
    rows = [(exits, f"{step['ours_over_plain']:.2f} ×", "1.15 ×"), (losses_of_all, f"{share:.1f} %", "2 %")]
    return table(("what", "measured", "at most"), rows)


def cost_of_deciding() -> str:
    """Describe how long a sweep takes, and a decision."""
    measured = results("benchmarks", "decisions")
    sweep, one = measured["sweep"], measured["one_text_microseconds"]
    fastest, slowest = min(one, key=one.get), max(one, key=one.get)
    asking, share = sweep["seconds"]["asking strategies"], 100 * sweep["share_of_plain_loop"]
    return (
        f"On a trace of 100,000 texts × 12 exits × 6 classes, {sweep['curves']} curves with {sweep['thresholds']:,} "
        f"thresholds take {sweep['total_seconds']:.1f} s\n"
        f"on two cores, {asking:.1f} s of them to ask and fit the strategies. The sweep itself takes {share:.1f} %\n"
        "of the time of a plain NumPy loop over thresholds and exits that is given the same scores. Deciding for one\n"
        f"text at its sixth exit takes {one[fastest]:.0f} µs (`{fastest}`) to {one[slowest]:.0f} µs (`{slowest}`)."
    )


def serving(function: str, name: str = "serving") -> Callable[[], str]:
    """Return a function that returns a table of servers, or, where they were not measured, how to measure them."""

    def write() -> str:
        from benchmarks import serving_tables

        return getattr(serving_tables, function)(results_if_measured(name))

    return write


def of_all_loads(function: str) -> Callable[[], str]:
    """Return a function that returns a table of servers under several kinds of load."""

    def write() -> str:
        from benchmarks import serving_tables

        return getattr(serving_tables, function)({name: results_if_measured(name) for name in serving_tables.LOADS})

    return write


def reliability() -> str:
    """Describe what the reliability tests of the server came to."""
    from benchmarks import soak_tables

    return soak_tables.reliability_table(results_if_measured("soak"))


def results_if_measured(name: str) -> dict | None:
    """Read the results of a benchmark, if there are any."""
    exists = (ROOT / "benchmarks" / "results" / f"{name}.json").exists()
    return results("benchmarks", name) if exists else None


LEAST = {  # ratios to reach when scaling out
    "2 processes over 1": 1.7,
    "2 processes over 2 threads": 1.0,
    "2 Ray workers over 1": 1.6,
    "2 Ray workers over 2 processes": 0.9,  # Ray may cost 10 %
    "predictor over engine": 0.95,
}


def scale_out() -> str:
    """Return how much faster several workers are, and what Ray adds, beside what was to be reached."""
    rows = [
        (what, f"{found['rows']:,} texts", *_against_least(what, values))
        for found in (results("benchmarks", "processes"), results("benchmarks", "cluster"))
        for what, values in found["ratios"].items()
    ]
    added = results_if_measured("ray_overhead")
    if added is not None:
        predictor, proxy = added["predictor"], added["proxy"]
        name, latency = "predictor over engine", proxy["the proxy adds, ms"]
        batches = f"batches of {predictor['rows']:,} rows"
        rows.append(("`Predictor` over the engine", batches, *_against_least(name, predictor[name])))
        medians = " → ".join(f"{milliseconds['p50']:.1f}" for milliseconds in proxy["milliseconds"].values())
        what = f"milliseconds of a request that Ray Serve adds to `exitpoll serve` ({medians})"
        rows.append((what, f"{proxy['requests']} requests, one after another", _with_range(latency), "–"))
    what = "texts a second, net of start-up, and what Ray adds"
    return table((what, "measured on", "median (range over rounds)", "to reach"), rows)


def _against_least(name: str, values: Sequence[float]) -> tuple[str, str]:
    """Write a ratio, with a remark if its median misses what was to be reached, and that."""
    missed = ", missed" if values[0] < LEAST[name] else ""
    return f"{_with_range(values)} ×{missed}", f"≥ {LEAST[name]:g}"


def _with_range(values: Sequence[float]) -> str:
    """Write a median with the smallest and the largest value."""
    median, low, high = values
    return f"{median:.2f} ({low:.2f} … {high:.2f})"


def kills() -> str:
    """Return what was killed, how often, and how often nothing was lost or doubled and no process left."""
    if not (ROOT / "benchmarks" / "results" / "kills.json").exists():
        return "Not run yet: run `python scripts/kill_workers.py` and `python scripts/kill_ranks.py`."
    found = results("benchmarks", "kills")
    rows = ((name, str(outcome["of"]), str(outcome["passed"])) for name, outcome in found.items())
    return table(("killed with -9, at random moments", "times", "same result, no process left"), rows)


# ---- pages ----------------------------------------------------------------------------------------------------------

BLOCKS: dict[str, Callable[[], str]] = {
    "count strategies": lambda: in_words(STRATEGIES),
    "count encoders": lambda: in_words(FAMILIES),
    "count tasks": lambda: in_words(TASKS),
    "count methods": lambda: in_words(METHODS),
    "list methods": lambda: listed(METHODS),
    "list strategies without search": lambda: listed(
        (name for name, row in STRATEGIES.items() if _needs_no_search(row)), "or"
    ),
    "strategies": strategies,
    "metrics": metrics,
    "objectives": objectives,
    "methods": methods,
    "schedules": schedules,
    "tasks": tasks,
    "encoders": encoders,
    "command line": command_line,
    "packages": packages,
    "gains": gains,
    "scale": scale,
    "quickstart": quickstart,
    "guarantee of trec": guarantee_of_trec,
    "adopt": adopt,
    "adopt in short": adopt_in_short,
    "live shift": live_shift,
    "image size": image_size,
    "heads": heads,
    "learned and hybrid": learned_and_hybrid,
    "exit zero": exit_zero,
    "exit zero clock": exit_zero_clock,
    "guarantee by simulation": guarantee_by_simulation,
    "pooling and learning rate": pooling_and_learning_rate,
    "exits of trec": exits_of_trec,
    "cost of training": cost_of_training,
    "cost of deciding": cost_of_deciding,
    "clock": engine("clock_in_words"),
    "engine against full depth": engine("exits_table"),
    "engine against layers": engine("kept_table"),
    "engine against static graphs": limits,
    "bars of the engine": limits_bars,
    "engine against plain": engine("plain_table"),
    "engine on short texts": engine("short_table"),
    "share of the layers": engine("limit_table"),
    "capacity of servers": serving("capacity_table"),
    "capacity in words": serving("capacity_in_words"),
    "latency of servers": serving("latency_table"),
    "bars of serving": of_all_loads("bars_table"),
    "loads of servers": of_all_loads("loads_table"),
    "reliability of the server": reliability,
    "a billion texts": serving("replicas_table", "queueing"),
    "simulated server": serving("validation_table", "queueing"),
    "scale out": scale_out,
    "one text": one_text,
    "start": start,
    "kills": kills,
}


def pages() -> Iterator[Path]:
    """Iterate over the pages; results.md is written by experiments/reproduce_page.py."""
    yield ROOT / "README.md"
    yield ROOT / "CONTRIBUTING.md"
    yield from sorted(path for path in (ROOT / "docs").rglob("*.md") if path.name != "results.md")


def filled(text: str) -> str:
    """Return a page with its blocks written."""

    def write(block: re.Match[str]) -> str:
        name, ending = block["name"], block["break"]
        if name not in BLOCKS:
            raise SystemExit(f"no block is called '{name}'; there are: {', '.join(BLOCKS)}")
        return f"<!-- {name} -->{ending}{BLOCKS[name]()}{ending}<!-- /{name} -->"

    return BLOCK.sub(write, text)


def main() -> None:
    """Write all pages."""
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
