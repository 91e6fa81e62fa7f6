"""A server of a tuned model, with FastAPI.

python examples/serving.py                                              # as it is: nothing is tuned yet
python cli.py tune --model examples/serving.py:build --study serving
python cli.py export serving -o best.yaml
python examples/serving.py --tuned best.yaml
curl -X POST localhost:8000/predict -H 'content-type: application/json' -d '{"points": [[0.1, 0.2, 0.3, 0.4]]}'
"""

from __future__ import annotations

import argparse

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from torch import nn

import autotune

BATCH, FEATURES = 8, 4


def build(seed: int = 0) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """The model and its inputs, as `tune --model` asks for them."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 128), nn.GELU(), nn.Linear(128, 3), nn.Softmax(dim=1))
    return model.eval(), (torch.randn(BATCH, FEATURES),)


class Query(BaseModel):
    """Up to BATCH points of FEATURES numbers each."""

    points: list[list[float]]


def serve(tuned: str) -> FastAPI:
    """The application; the model is compiled before the first request, not by it."""
    model, example = build()
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    model = autotune.load(tuned).apply(model)
    device = next(model.parameters()).device
    app = FastAPI()

    def answer(points: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            result: torch.Tensor = model(points.to(device)).cpu()
        return result

    answer(example[0])

    @app.post("/predict")
    def predict(query: Query) -> list[list[float]]:
        """Three probabilities for each point."""
        if not 0 < len(query.points) <= BATCH or any(len(point) != FEATURES for point in query.points):
            raise HTTPException(422, f"1 to {BATCH} points of {FEATURES} numbers each, please")
        # Always the shape that was tuned: another one would be compiled while a client waits.
        points = torch.zeros(BATCH, FEATURES)
        points[: len(query.points)] = torch.tensor(query.points)
        return answer(points)[: len(query.points)].tolist()

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--tuned", default="best.yaml")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    uvicorn.run(serve(options.tuned), port=options.port)
