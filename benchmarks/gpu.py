"""The vectorised engine on a device: whether it agrees with the plain loop, what a round takes, and what makes it fast.

1. Every method: one round on few clients, the largest difference from the sequential engine on the host, relative to
   each tensor's largest entry; on a GPU also from clients one by one on that GPU. More than 1e-4 is marked.
2. Seconds of a round of 30 of 100 clients, 5 local epochs, batch 50, CIFAR-CNN on as many random images as CIFAR-10
   has, sizes by a Dirichlet draw; of an evaluation of all; 200 rounds extrapolated, or with --full measured.
3. FedAvg's round by the engine's options, with the accuracy that each reaches on scikit-learn's digits.
4. A training step's convolutions of several clients: grouped, channels-last, and unfolded into one product.

    python benchmarks/gpu.py [--device cuda] [--small] [--full] [--methods fedavg,fedpac] [--out gpu.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import conv2d

import idiolect.data
from idiolect import methods, models
from idiolect.core import tree
from idiolect.core.errors import IdiolectError
from idiolect.core.method import SGD, Task, Training
from idiolect.core.option_spec import Spec
from idiolect.data import FederatedData
from idiolect.engines import Sequential
from idiolect.engines.vectorised import Vectorised
from idiolect.engines.vectorised import engine as graphs_user
from idiolect.engines.vectorised.graphs import UnfoldMode
from idiolect.simulation import Engine, Job, Record, State, fit
from idiolect.training import Preprocessing

AGREED, SEVERAL = 1e-4, 200  # relative difference; rounds of a paper's table
OPTIONS: list[dict[str, Any]] = [
    {}, {"convolution": "unfold"}, {"precision": "tf32"}, {"precision": "bf16"},
    {"graphs": True}, {"graphs": True, "convolution": "unfold"}, {"graphs": True, "precision": "bf16"},
]  # fmt: skip


class Size(NamedTuple):
    """How large the second part is."""

    model: str
    shape: tuple[int, int, int]
    clients: int
    share: float
    train: int
    test: int
    epochs: int
    batch: int
    rounds: int


LARGE = Size("cifar_cnn", (3, 32, 32), 100, 0.3, 50_000, 10_000, 5, 50, 6)
SMALL = Size("small_cnn", (1, 8, 8), 6, 0.5, 180, 36, 1, 10, 3)


def about(device: torch.device) -> dict[str, str]:
    """Device, torch and driver."""
    found = {"device": platform.processor() or platform.machine(), "torch": torch.__version__}
    if device.type == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.split()
        found |= {
            "device": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda),
            "driver": driver[0] if driver else "unknown", "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        }  # fmt: skip
    return found


def federation(size: Size, spread: float = 1.0) -> FederatedData:
    """Random images, as many of them to a client as a Dirichlet draw says: speed does not see what is on them."""
    host = np.random.default_rng(0)
    draw = torch.Generator().manual_seed(0)
    shares = host.dirichlet([spread] * size.clients)
    train = np.maximum(4, np.floor(shares * size.train).astype(int))
    test = np.maximum(1, np.floor(shares * size.test).astype(int))
    ends = np.cumsum(np.stack([train, test], 1).ravel())
    numbers = np.split(np.arange(ends[-1]), ends[:-1])
    return FederatedData(
        name="random", x_R=torch.randint(256, (int(ends[-1]), *size.shape), dtype=torch.uint8, generator=draw),
        y_R=torch.randint(10, (int(ends[-1]),), generator=draw), train=tuple(map(torch.from_numpy, numbers[::2])),
        test=tuple(map(torch.from_numpy, numbers[1::2])), classes=10, class_names=tuple("0123456789"),
        mean=(0.5,) * size.shape[0], std=(0.3,) * size.shape[0], shifts=("",) * size.clients,
    )  # fmt: skip


def job(name: str, options: dict[str, Any], size: Size, data: FederatedData, lr: float = 0.01) -> Job:
    """A method on a federation."""
    network = models.build(size.model, data.shape, data.classes)
    training = Training(size.epochs, size.batch, SGD(lr=lr))
    task = Task(network, data.classes, data.clients, training, Preprocessing(data.mean, data.std))
    return Job(name, partial(methods.build, name, methods.settle(name, options), task), data, 0)


@contextmanager
def one_by_one() -> Iterator[None]:
    """Inside, a vectorised engine with chunk=1 runs its clients as the sequential engine does, on its device."""

    def alone(value: Any, axis: Any) -> Any:
        if axis is None:
            return value
        return tree.rows(value, 0) if axis == 0 else type(value)(*map(alone, value, axis))

    def plain(function: Callable[..., Any], axes: Any) -> Callable[..., Any]:
        return lambda *a: tree.map(lambda leaf: leaf.detach()[None], function(*map(alone, a, axes)))

    user: Any = graphs_user
    vmap_of, user.vmap_of = user.vmap_of, plain
    try:
        yield
    finally:
        user.vmap_of = vmap_of


# --- 1. agreement


def gap(a: State, b: State) -> float:
    """The largest difference, relative to its tensor's largest entry."""
    pairs = zip(tree.leaves((a.server, *a.clients)), tree.leaves((b.server, *b.clients)), strict=True)
    return max(float((u - v).abs().amax() / v.abs().amax().clamp(min=1e-6)) for u, v in pairs if u.numel())


def agreement(device: torch.device, names: Sequence[str], every: bool) -> list[dict[str, Any]]:
    """One round of each method, and of each variant too with ``every``."""
    size, rows = SMALL._replace(epochs=2), []
    data = federation(size)
    for name in names:
        entry = methods.get(name)
        for title, options in entry.forms.items() if every else [(entry.title, {})]:
            this = job(name, options, size, data)
            ours = run(this, Vectorised(device=str(device)), size)[0]
            row = {"method": title, "to sequential": gap(ours, run(this, Sequential(), size)[0])}
            if device.type == "cuda":
                with one_by_one():
                    alone = run(this, Vectorised(device=str(device), chunk=1), size)[0]
                row["to one by one"] = gap(ours, alone)
            row["agrees"] = all(v <= AGREED for v in row.values() if isinstance(v, float))
            rows.append(row)
    return rows


def run(this: Job, engine: Engine, size: Size, rounds: int = 1, **how: Any) -> tuple[State, list[Record]]:
    """Rounds of a job."""
    records: list[Record] = []
    with engine:
        end = fit(
            this, engine, rounds=rounds, participation=size.share,
            on_round=lambda state, new, seconds: records.extend(new), **how,
        )  # fmt: skip
    return end, records


# --- 2. and 3. seconds


def seconds(this: Job, engine: Engine, size: Size, rounds: int) -> tuple[float, float]:
    """The median seconds of a round, of which the first is not counted, and the seconds of an evaluation."""
    clock = [time.perf_counter()]
    with engine:
        fit(
            this, engine, rounds=rounds + 1, participation=size.share, evaluate_every=10**6,
            on_round=lambda *_: clock.append(time.perf_counter()),
        )  # fmt: skip
    spent = np.diff(clock)
    one = statistics.median(spent[1:-1])
    return one, max(0.0, spent[-1] - one)  # the last round is measured too


def speed(device: torch.device, size: Size, full: bool) -> list[dict[str, Any]]:
    """A round of three methods, and its ratio to that of clients one by one."""
    data, rows = federation(size), []
    for name in ("fedavg", "pfedfda", "fedpac"):
        this = job(name, {}, size, data)
        engine = Vectorised(device=str(device))
        one, evaluation = seconds(this, engine, size, size.rounds)
        row = {"method": methods.get(name).title, "s per round": one, "s per evaluation": evaluation}
        row |= {f"{SEVERAL} rounds, s": SEVERAL * one, "padding": engine.padding}
        if full:
            start = time.perf_counter()
            run(this, Vectorised(device=str(device)), size, SEVERAL, evaluate_every=10**6)
            row["measured, s"] = time.perf_counter() - start
        row["sequential on the host / this"] = seconds(this, Sequential(), size, 2)[0] / one
        if device.type == "cuda":
            with one_by_one():
                row["one by one here / this"] = seconds(this, Vectorised(device=str(device), chunk=1), size, 2)[0] / one
        rows.append(row)
    return rows


def variants(device: torch.device, size: Size, rounds: int) -> list[dict[str, Any]]:
    """FedAvg by the engine's options: seconds, and accuracy on digits, the mean over clients."""
    random, digits = (
        federation(size),
        idiolect.data.build(idiolect.data.load("digits"), Spec.parse("dirichlet:alpha=0.3"), clients=10),
    )
    learnable = size._replace(model="small_cnn", epochs=2, batch=20, share=1.0)
    rows: list[dict[str, Any]] = []
    for options in OPTIONS:
        title = ", ".join(f"{k}={v}" for k, v in options.items()) or "defaults"
        try:
            fast, right = (Vectorised(device=str(device), **options) for _ in range(2))
            one, _ = seconds(job("fedavg", {}, size, random), fast, size, size.rounds)
            this = job("fedavg", {}, learnable, digits, lr=0.1)
            _, records = run(this, right, learnable, rounds, evaluate_every=rounds)
        except IdiolectError as error:
            rows.append({"options": title, "note": str(error)})
            continue
        accuracy = statistics.mean(r.value for r in records if r.stage == "personalised" and r.metric == "accuracy")
        row: dict[str, Any] = {"options": title, "s per round": one, "accuracy": accuracy}
        first = rows[0] if rows else row
        row |= {"round / defaults": one / first["s per round"], "accuracy - defaults": accuracy - first["accuracy"]}
        rows.append(row)
    return rows


# --- 4. convolutions


def convolutions(device: torch.device, size: Size, clients: int) -> list[dict[str, Any]]:
    """Forward and backward of each of the network's convolutions, of all clients together, in milliseconds."""
    body, _ = models.NETWORKS[size.model](size.shape, 10)
    rows, x = [], torch.zeros(1, *size.shape)
    for layer in body.children():
        if isinstance(layer, torch.nn.Conv2d):
            images = torch.rand(clients, size.batch, *x.shape[1:], device=device)
            weights = torch.rand(clients, *layer.weight.shape, device=device)
            row: dict[str, Any] = {"layer": f"{layer.in_channels} -> {layer.out_channels}, {tuple(x.shape[2:])}"}
            for name, step in steps(images, weights, layer.padding).items():
                row[name + ", ms"] = milliseconds(step, device)
            rows.append(row)
        if isinstance(layer, torch.nn.Flatten):
            break
        x = layer(x)
    return rows


def steps(images: torch.Tensor, weights: torch.Tensor, padding: Any) -> dict[str, Callable[[], Any]]:
    """The same gradients, of inputs and weights, in three ways."""
    clients = len(images)
    together, stacked = images.transpose(0, 1).flatten(1, 2), weights.flatten(0, 1)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return conv2d(x, w, padding=padding).square().sum()

    def grouped(layout: torch.memory_format) -> Any:
        x, w = (a.contiguous(memory_format=layout).requires_grad_() for a in (together, stacked))
        return torch.autograd.grad(conv2d(x, w, padding=padding, groups=clients).square().sum(), [x, w])

    def mapped(unfold: bool) -> Any:
        with UnfoldMode() if unfold else nullcontext():
            return torch.func.vmap(torch.func.grad(loss, (0, 1)))(images, weights)

    return {
        "vmap": partial(mapped, False), "grouped": partial(grouped, torch.contiguous_format),
        "grouped, channels-last": partial(grouped, torch.channels_last), "unfold": partial(mapped, True),
    }  # fmt: skip


def milliseconds(step: Callable[[], Any], device: torch.device) -> float:
    """The median of ten, after two."""
    spent = []
    for _ in range(12):
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent.append(1e3 * (time.perf_counter() - start))
    return statistics.median(spent[2:])


# --- report


def table(title: str, rows: list[dict[str, Any]]) -> str:
    """Markdown."""
    head = list(dict.fromkeys(k for row in rows for k in row))

    def cell(value: Any) -> str:
        return f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = [head, ["---"] * len(head), *([cell(row.get(k, "")) for k in head] for row in rows)]
    return "\n".join([f"### {title}", "", *("| " + " | ".join(line) + " |" for line in lines), ""])


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="few and small clients: whether everything runs")
    parser.add_argument("--full", action="store_true", help=f"measure {SEVERAL} rounds of each method")
    parser.add_argument("--methods", default=",".join(sorted(methods.ours())), help="of the first part")
    parser.add_argument("--out", type=Path, help="a file for the numbers as JSON")
    given = parser.parse_args(arguments)
    try:
        device = Vectorised(device=given.device).device
    except IdiolectError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    size = SMALL if given.small else LARGE
    found: dict[str, Any] = {"about": about(device), "size": size._asdict()}
    print(" ".join(f"{k}: {v}" for k, v in found["about"].items()), flush=True)
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "Agreement": lambda: agreement(device, given.methods.split(","), not given.small),
        "Seconds": lambda: speed(device, size, given.full),
        "Options": lambda: variants(device, size, 2 if given.small else 20),
        "Convolutions": lambda: convolutions(device, size, 3 if given.small else 30),
    }
    for title, part in parts.items():
        found[title] = part()
        print(table(title, found[title]), flush=True)
        if given.out:  # after each part, should the next one fail
            given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
