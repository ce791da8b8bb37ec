"""A method whose every number is known, and that fails on demand."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from idiolect.core.method import Data, Down, Method, Reduced, Up, reduce

Where = tuple[str, int, int]  # phase, round, client
NEVER = ("", 0, 0)


def build(*, fails: Where = NEVER, diverges: Where = NEVER, wait: float = 0.0, ballast: int = 0) -> Method:
    """server: (rounds, sum of ids); client: how often it took part (first of ``ballast`` numbers); upload: its id."""

    def due(where: Where, phase: str, round: int, client: int) -> bool:
        return where == (phase, round, client)

    def client_of(down: Down) -> int:
        return int(down.own)

    def init(key: torch.Tensor) -> Any:
        return torch.zeros(2, dtype=torch.int64)

    def init_client(key: torch.Tensor, id: torch.Tensor) -> Any:
        return torch.zeros(ballast + 1, dtype=torch.int64) if ballast else torch.tensor(0)

    def send(server: Any, ids: torch.Tensor) -> Down:
        return Down(server, ids)

    def local(down: Down, client: Any, data: Data, key: torch.Tensor) -> Any:
        time.sleep(wait)
        round, id = int(down.shared[0]) + 1, client_of(down)
        if due(fails, "exit", round, id):
            os._exit(1)
        if due(fails, "local", round, id):
            raise ValueError("boom")
        client = client + 1
        count = client.flatten()[0].double()
        return client, Up(down.own), {"count": count * (float("nan") if due(diverges, "local", round, id) else 1)}

    def aggregate(server: Any, up: Reduced, ids: torch.Tensor) -> Any:
        round = int(server[0]) + 1
        if due(fails, "aggregate", round, 0):
            raise ValueError("boom")
        if due(diverges, "aggregate", round, 0):
            return torch.tensor([float("inf"), 0]), {}
        info = {"uploaded": up.value, "pair": 10 * up.value[:, None] + up.value}
        return torch.stack([server[0] + 1, server[1] + up.value.sum()]), info

    def personalise(down: Down, client: Any, data: Data, key: torch.Tensor) -> Any:
        if due(fails, "personalise", int(down.shared[0]), client_of(down)):
            raise ValueError("boom")
        return client

    def predict(down: Down, client: Any, x_B: torch.Tensor) -> torch.Tensor:
        round, id = int(down.shared[0]), client_of(down)
        if due(fails, "predict", round, id):
            raise ValueError("boom")
        logp = torch.tensor([0.5, 0.25, 0.25]).log().expand(len(x_B), 3)
        return logp * (float("nan") if due(diverges, "predict", round, id) else 1)

    return Method(init, init_client, send, local, reduce.each(), aggregate, personalise, predict)
