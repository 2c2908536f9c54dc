"""Serve a classifier with early exits over HTTP.

pip install fastapi uvicorn
EXITPOLL_MODEL=trec-bert uvicorn --factory --app-dir examples fastapi_app:create_app

curl localhost:8000/predict -H 'Content-Type: application/json' -d '{"texts": ["Who was Galileo ?"]}'
"""

from __future__ import annotations

import os
from dataclasses import asdict

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from exitpoll import Engine, InputError


class Question(BaseModel):
    """What a client sends."""

    texts: list[str] = Field(min_length=1, max_length=1024)


class Answer(BaseModel):
    """What a client gets for a text."""

    label: str
    probability: float
    depth: int  # layers that were run


def create_app(model: str | None = None) -> FastAPI:
    """Load a model once, and answer requests with it."""
    engine = Engine.load(model or os.environ["EXITPOLL_MODEL"])
    app = FastAPI(title="exitpoll")

    @app.post("/predict")
    def predict(question: Question) -> list[Answer]:  # not async: it runs in a thread, and threads may share an engine
        try:
            return [Answer(**asdict(prediction)) for prediction in engine(question.texts)]
        except InputError as error:
            raise HTTPException(422, str(error)) from error

    @app.get("/")
    def about() -> dict[str, object]:
        certificate = engine.policy.certificate
        guarantee = None if certificate is None else certificate.guarantee
        return {
            "labels": list(engine.model.label_names),
            "layers": engine.runtime.exit_layers[-1],
            "policy": engine.policy.name,
            "guarantee": None if guarantee is None else str(guarantee),
        }

    return app
