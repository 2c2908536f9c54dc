"""exitpoll bench: wall-clock time of a model against plain transformers."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

from exitpoll.cli.console import (
    print_as_json,
    progress_console,
    quieten_transformers,
    remark,
    save_figure,
    say,
    say_written,
    show,
    show_result,
)
from exitpoll.cli.groups import IN_DATA, IN_METHOD
from exitpoll.cli.options import AsJson, Data, Device, Numbers, OptionalOut, Reading, ReadingFlags, SplitName, Threads
from exitpoll.errors import InputError


def bench(
    model: str,
    /,
    *,
    data: Data,
    split: SplitName = "test",
    reading: ReadingFlags = None,
    texts: Annotated[int, IN_DATA] = 500,
    batch_sizes: Annotated[Numbers, IN_METHOD] = None,
    rounds: Annotated[int, IN_METHOD] = 5,
    threads: Threads = None,
    device: Device = "auto",
    compiled: Annotated[bool, IN_METHOD] = False,
    out: OptionalOut = None,
    as_json: AsJson = False,
) -> None:
    """Measure wall-clock time against plain transformers.

    The engine is timed in every runtime that the model folder has an export for, beside a static model, the full model
    in ONNX Runtime and batches that wait for their slowest text. What a runtime gains without exits and what early exit
    adds are stated apart, with their ranges over the rounds.

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
        device: Where to run torch: cpu, cuda, …; auto takes a GPU where there is one. On another device
            than the CPU, exports are not timed, which run on the CPU.
        compiled: Time torch.compile too, which needs a C++ compiler and takes minutes.
        out: The folder for bench.json and bench.png; none by default.
        as_json: Print the result as JSON.
    """
    from exitpoll.benchmark.timing import BATCH_SIZES, benchmark, load_in_runtimes
    from exitpoll.cli.tables import benchmark_table
    from exitpoll.data.bars import progress_bars
    from exitpoll.engine.inputs import read_texts
    from exitpoll.files import write_json
    from exitpoll.report.plots import draw_parts

    print_as_json(as_json)
    if texts < 1:
        raise InputError(f"texts {texts} must be at least 1")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    quieten_transformers()
    busy = _note_busy()
    models = load_in_runtimes(model, threads=threads, device=device)
    read = read_texts(models[0].loaded, data, split, **vars(reading or Reading()))
    chosen = list(read.texts)[:texts]
    with progress_bars(progress_console()) as on_progress:
        sizes = batch_sizes or BATCH_SIZES
        result = benchmark(models, chosen, batch_sizes=sizes, rounds=rounds, compiled=compiled, on_progress=on_progress)
    fingerprints = {entry.kind: entry.loaded.runtime.fingerprint for entry in models}
    about = {"fingerprints": fingerprints, "data": read.about["data"], "split": split}
    result = replace(result, about=about)
    written = []
    if out is not None:
        write_json(out / "bench.json", result.to_dict())
        written = ["bench.json", *save_figure(lambda: draw_parts(result), out / "bench.png")]
    show(benchmark_table(result))
    say(*map(str, result.gains))
    remark(*busy)
    show_result(result.to_dict())
    if out is not None:
        say_written(out, written)


def _note_busy() -> list[str]:
    """Warn if other processes use all cores, before the first is timed."""
    if not hasattr(os, "getloadavg"):
        return []
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores:
        return []
    busy = f"note: the machine was busy before (load {load:.1f} on {cores} cores)"
    return [f"{busy}: then several threads can be slower than one"]
