"""exitpoll serve: answer requests over HTTP."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from exitpoll.cli.console import flush, quieten_transformers, remark, say
from exitpoll.cli.options import Device, PolicyPath, RuntimeName, Threads
from exitpoll.errors import check_installed

IN_SERVER = Parameter(group=Group("Server", sort_key=6))
IN_LIMITS = Parameter(group=Group("Limits", sort_key=7))
KEY = "EXITPOLL_API_KEY"


def serve(
    model: str,
    /,
    *,
    runtime: RuntimeName = None,
    policy: PolicyPath = None,
    threads: Threads = None,
    device: Device = "auto",
    workers: Annotated[int | None, IN_SERVER] = None,
    host: Annotated[str, IN_SERVER] = "127.0.0.1",
    port: Annotated[int, IN_SERVER] = 8000,
    name: Annotated[str | None, IN_SERVER] = None,
    api_key: Annotated[str | None, IN_SERVER] = None,
    protect_metrics: Annotated[bool, IN_SERVER] = False,
    check: Annotated[bool, IN_SERVER] = False,
    max_body_bytes: Annotated[int, IN_LIMITS] = 2_000_000,
    max_texts: Annotated[int, IN_LIMITS] = 256,
    max_characters: Annotated[int, IN_LIMITS] = 500_000,
    max_queue: Annotated[int, IN_LIMITS] = 2_000_000,
    timeout: Annotated[float, IN_LIMITS] = 60.0,
    max_wait: Annotated[float, IN_LIMITS] = 0.02,
    body_timeout: Annotated[float, IN_LIMITS] = 30.0,
    header_timeout: Annotated[float, IN_LIMITS] = 10.0,
    drain_delay: Annotated[float, IN_LIMITS] = 0.0,
    drain_timeout: Annotated[float, IN_LIMITS] = 30.0,
    stall_timeout: Annotated[float, IN_LIMITS] = 30.0,
    audit: Annotated[float, IN_SERVER] = 0.0,
    audit_state: Annotated[Path | None, IN_SERVER] = None,
    brownout: Annotated[str | None, IN_SERVER] = None,
    step_back: Annotated[bool, IN_SERVER] = False,
    traces: Annotated[bool, IN_SERVER] = False,
) -> None:
    """Answer requests over HTTP: every text when it exits.

    Example: exitpoll serve trec-bert --runtime onnx --port 8000

    Args:
        model: The model folder, with its policy.json, and more policies in policies/.
        runtime: Run the export of the model folder for this runtime, with its own policies; by default
            the one that `adopt` found to be fastest, or torch.
        policy: Another default policy than the model's own.
        threads: How many threads to use in every model process: 1 by default, all cores without such processes.
        device: Where to run the model: cpu, cuda, cuda:1, mps …; auto takes a GPU where there is one.
        workers: How many processes run the model, each with a copy of it: by default one fewer than cores, at least 1
            and at most 8, and 1 on a GPU. 0 runs it in a thread of the server's own process.
        host: The address to listen at; 0.0.0.0 for all.
        port: The port; 0 for any that is free.
        name: The name of the model for clients; that of its folder by default.
        api_key: The key that requests must bear; by default that of the environment variable EXITPOLL_API_KEY.
        protect_metrics: Whether metrics need the key too.
        check: Load the model, predict one text, and end.
        max_body_bytes: Most bytes in the body of a request.
        max_texts: Most texts in a request.
        max_characters: Most characters in a text.
        max_queue: Most work under way, in layer-tokens; above it requests are refused with 429.
        timeout: Seconds after which a request is given up.
        max_wait: Seconds after its arrival that a text goes before all newer ones, however near their deadlines are. No
            text waits for company while the model is idle.
        body_timeout: Seconds for the body of a request to arrive.
        header_timeout: Seconds for the headers of a request to arrive; 0 for no limit.
        drain_delay: Seconds between the first failing readiness probe and the end of listening.
        drain_timeout: Seconds for requests under way to be answered when the server ends.
        stall_timeout: Seconds in one call of the model after which its process is killed and replaced; without such
            processes the liveness probe fails.
        audit: The share of texts that also run to full depth, when nothing else is due, to watch the guarantee.
        audit_state: The file that keeps the counts of these texts over restarts.
        brownout: A policy with a guarantee, and the share of --max-queue above which requests that name no policy get
            it: fast@0.8.
        step_back: When audits find the guarantee broken, answer requests that name no policy by the next more cautious
            policy that calibration certified, and at last by the full model.
        traces: Send a span for every request and text to a collector, as the environment variables OTEL_… say.
    """
    check_installed(("starlette", "uvicorn", "httptools", "prometheus_client"), "serve", "server")
    if find_spec("uvloop") is None and sys.platform != "win32":  # where there is none
        remark("serve without uvloop takes more time for every request: pip install 'exitpoll[server]'")
    from exitpoll.decide.policy import Policy
    from exitpoll.engine.engine import Engine
    from exitpoll.engine.loading import default_runtime, find_folder
    from exitpoll.server.run import bind, serve_forever
    from exitpoll.server.service import Service
    from exitpoll.server.settings import ServerSettings
    from exitpoll.server.tracing import Tracing
    from exitpoll.server.worker_pool import default_workers

    tracing = Tracing.by_environment() if traces else None
    key = api_key or os.environ.get(KEY) or None  # files of secrets end with a line break
    settings = ServerSettings(
        max_body_bytes,
        max_texts,
        max_characters,
        max_queue,
        timeout,
        body_timeout,
        drain_delay,
        drain_timeout,
        stall_timeout,
        key and key.strip(),
        protect_metrics,
        audit,
        audit_state,
        brownout,
        default_workers() if workers is None else workers,
        header_timeout,
        step_back,
        max_wait,
    )
    listener = None if check else bind(host, port)  # before the model is loaded, which takes time
    quieten_transformers()
    chosen = None if policy is None else Policy.load(policy)
    threads = 1 if settings.workers and threads is None else threads
    engine = Engine.load(model, runtime, policy=chosen, threads=threads, device=device)
    if workers is None and settings.workers and engine.runtime.device != "cpu":
        settings = replace(settings, workers=1)
    folder = find_folder(model, runtime or default_runtime(model))
    service = Service(
        engine.model,
        folder=folder if folder.is_dir() else None,
        policy=chosen if folder.is_dir() else engine.policy,
        settings=settings,
        costs=engine.costs,
        name=name or Path(model).resolve().name,
        tracing=tracing,
    )
    words = ", ".join(service.policies)
    if listener is None:
        [prediction] = engine(["a text"] if not engine.model.training.get("pairs") else [("a text", "another")])
        say(f"{service.name} can be served: {engine.model.description}; policies: {words}; {prediction!r}")
        return
    description = engine.model.description
    del engine  # and its weights, which model processes load themselves
    place = f"http://{host}:{listener.getsockname()[1]}"
    remark(f"serving {service.name} at {place} ({description}; policies: {words})")
    flush()
    serve_forever(service, listener)
