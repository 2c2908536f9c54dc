"""A plain FastAPI server that collects requests for 2 ms, or up to 32 texts, and runs them as one batch in a thread.

python microbatch_server.py WORK --port 8000 [--exits MODEL [--runtime onnx]]

By default the batch runs through the full ONNX graph in WORK. With --exits it runs through the engine, with exits but
without refill: no text joins others that are half-way, and the next batch waits until this one has ended.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from full_graph import FullGraph
from pydantic import BaseModel

MOST_TEXTS = 32
WAIT = 0.002  # seconds
Text = str | tuple[str, str]
Predict = Callable[[Sequence[Text]], list[dict[str, Any]]]


class Request(BaseModel):
    """One text or pair, or several."""

    text: Text | None = None
    texts: list[Text] = []


class Batcher:
    """Collects texts into batches."""

    def __init__(self, predict: Predict) -> None:
        """Take the function that answers a batch."""
        self.predict = predict
        self.queue: asyncio.Queue[tuple[Text, asyncio.Future]] = asyncio.Queue()
        self.thread = ThreadPoolExecutor(1)

    async def answer(self, text: Text) -> dict[str, Any]:
        """Return the answer to a text, once its batch has run."""
        future = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((text, future))
        return await future

    async def run(self) -> None:
        """Run one batch after another."""
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.queue.get()]
            until = loop.time() + WAIT
            while len(batch) < MOST_TEXTS:
                try:
                    batch.append(await asyncio.wait_for(self.queue.get(), until - loop.time()))
                except TimeoutError:
                    break
            answers = await loop.run_in_executor(self.thread, self.predict, [text for text, _ in batch])
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.cancelled():
                    future.set_result(answer)


def with_exits(model: str, runtime: str | None) -> Predict:
    """Return a function that answers a batch with early exit."""
    from exitpoll import Engine

    engine = Engine.load(model, runtime, threads=1)

    def predict(texts: Sequence[Text]) -> list[dict[str, Any]]:
        return [{"label": str(found.label), "depth": found.depth} for found in engine(list(texts))]

    return predict


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--exits", metavar="MODEL")
    parser.add_argument("--runtime")
    chosen = parser.parse_args()
    predict = with_exits(chosen.exits, chosen.runtime) if chosen.exits else FullGraph(chosen.work).predict
    batcher = Batcher(predict)

    @asynccontextmanager
    async def batching(app: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(batcher.run())
        yield
        task.cancel()

    app = FastAPI(lifespan=batching)

    @app.post("/predict")
    async def answer(request: Request) -> dict[str, Any] | list[dict[str, Any]]:
        if request.text is not None:
            return await batcher.answer(request.text)
        return await asyncio.gather(*map(batcher.answer, request.texts))

    @app.get("/health")
    async def health() -> str:
        return "ok"

    uvicorn.run(app, host="127.0.0.1", port=chosen.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
