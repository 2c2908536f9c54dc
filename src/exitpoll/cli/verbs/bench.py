"""exitpoll bench: wall-clock time of a model against what one would run instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from exitpoll.cli.app import Numbers, Reading, Split, try_to_draw
from exitpoll.cli.console import console, errors, quieten_transformers, say
from exitpoll.errors import InputError


def bench(
    model: str,
    /,
    *,
    data: str,
    split: Split = "test",
    reading: Annotated[Reading | None, Parameter(name="*")] = None,
    texts: int = 500,
    batch_sizes: Numbers = None,
    rounds: int = 5,
    threads: int | None = None,
    compiled: bool = False,
    out: Path | None = None,
) -> None:
    """Time a calibrated model, and its exports, beside what one would run instead: wall-clock speed-up, in ratios.

    Example: exitpoll bench trec-bert --data trec

    Args:
        model: The model folder, with its policy.json; exports in it are timed too.
        data: The texts: a file, a folder, a known task or a hub dataset.
        split: Which split of the data; all takes a file as it is.
        reading: Which columns to read.
        texts: Time at most this many texts.
        batch_sizes: Most texts in a call; 1, 8, 32 and 128 by default.
        rounds: How often each way is timed.
        threads: How many threads to use.
        compiled: Time a compiled encoder too, which needs a C++ compiler and takes its time.
        out: The folder for bench.json and bench.png; none by default.
    """
    from exitpoll.benchmark.timing import BATCH_SIZES, benchmark, load_in_runtimes
    from exitpoll.cli.progress import progress_bars
    from exitpoll.cli.tables import benchmark_table
    from exitpoll.engine.inputs import read_texts
    from exitpoll.files import write_json
    from exitpoll.report.plots import draw_parts, save

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
    drawn = try_to_draw(lambda: save(draw_parts(result), out / "bench.png"))
    write_json(out / "bench.json", replace(result, about=about).to_dict())
    say(f"wrote {out}/bench.json{drawn or ' and bench.png'}")
