"""exitpoll bench: wall-clock time of a model against plain transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.console import console, errors, quieten_transformers, save_figure, say_written
from exitpoll.cli.options import Data, Numbers, Reading
from exitpoll.engine.inputs import Split
from exitpoll.errors import InputError


def bench(
    model: str,
    /,
    *,
    data: Data,
    split: Split = "test",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    texts: int = 500,
    batch_sizes: Numbers = None,
    rounds: int = 5,
    threads: int | None = None,
    compiled: bool = False,
    out: Path | None = None,
) -> None:
    """Measure wall-clock time against plain transformers.

    The engine is timed in every runtime that the model folder has an export for, beside a static model, the full model
    in ONNX Runtime and batches that wait for their slowest text.

    Example: exitpoll bench trec-bert --data trec

    Args:
        model: The model folder, with its policy.json; exports in it are timed too.
        data: The data.
        split: Which split of the data; "all" reads a file as it is.
        reading: Which columns to read.
        texts: Time at most this many texts.
        batch_sizes: The batch sizes to time; 1, 8, 32 and 128 by default.
        rounds: How often everything is timed; the fastest round counts.
        threads: How many threads to use.
        compiled: Time torch.compile too, which needs a C++ compiler and takes minutes.
        out: The folder for bench.json and bench.png; none by default.
    """
    from exitpoll.benchmark.timing import BATCH_SIZES, benchmark, load_in_runtimes
    from exitpoll.cli.tables import benchmark_table
    from exitpoll.data.bars import progress_bars
    from exitpoll.engine.inputs import read_texts
    from exitpoll.files import write_json
    from exitpoll.report.plots import draw_parts

    if texts < 1:
        raise InputError(f"texts {texts} must be at least 1")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    quieten_transformers()
    models = load_in_runtimes(model, threads=threads)
    read = read_texts(models[0].loaded, data, split, **vars(reading or Reading()))
    chosen = list(read.texts)[:texts]
    with progress_bars(errors) as on_progress:
        sizes = batch_sizes or BATCH_SIZES
        result = benchmark(models, chosen, batch_sizes=sizes, rounds=rounds, compiled=compiled, on_progress=on_progress)
    console.print(benchmark_table(result))
    if out is None:
        return
    about = {"fingerprint": models[0].loaded.runtime.fingerprint, "data": read.about["data"], "split": split}
    figure = save_figure(lambda: draw_parts(result), out / "bench.png")
    write_json(out / "bench.json", replace(result, about=about).to_dict())
    say_written(out, ["bench.json", *figure])
