"""Every method out of the lab: bundle, join, predict, export, with what each costs; and how fast predictions are.

The table of methods compares the predictions of a client that joins from a bundle with the records of the simulator's
new client, and ONNX with PyTorch. The ratios are those of ``idiolect predict`` to a plain PyTorch loop over the same
samples. The plain loop does what an engineer needs at least: it lists the folder, takes the columns by their names, and
writes labels and probabilities with the same precision; it checks nothing and holds all samples in memory.

    python benchmarks/deploy.py [--methods pfedfda,fedpac] [--rows 1000000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.nn.functional import nll_loss

import idiolect as idl
from idiolect import methods
from idiolect.core.method import Data
from idiolect.deploy.bundle import Bundle, Personal, log_probabilities
from idiolect.deploy.export import export
from idiolect.deploy.predict import predict


def table(names: list[str], folder: Path) -> None:
    """A row for each method."""
    study = idl.Study(
        dataset="digits", clients=6, new_clients=1, rounds=3, local_epochs=2, batch_size=10, lr=0.05, methods=names
    )
    run = idl.run(study, folder / "run")
    data, records, new = study.federation(), run.records, 5
    row_N, test = data.train[new], data.test[new]
    print("| method | bundle, kB | joins by | join, s | loss: bundle less simulator | ONNX less PyTorch |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names:
        bundle = run.bundle(name, folder / name)
        size = sum(path.stat().st_size for path in bundle.folder.iterdir()) / 1e3
        begun = time.perf_counter()
        down = bundle.model().down
        rows = Data(data.x_R, data.y_R, row_N, torch.ones(len(row_N)))
        client = bundle.method.personalise(down, bundle.fresh, rows, bundle.key())
        took = time.perf_counter() - begun
        logp_NC = log_probabilities(Personal(down, client), bundle.method, data.x_R[test])
        r = records[(records["method"] == name) & (records["stage"] == "new") & (records["metric"] == "loss")]
        apart = float(nll_loss(logp_NC.double(), data.y_R[test])) - float(r["value"].iloc[0])
        ready = run.bundle(name, folder / f"{name}-new", client=str(new))
        onnx = export(ready, folder / f"{name}.onnx", x_R=data.x_R[test]).difference
        joins = bundle.about.revealed.joins_by if bundle.about.revealed else ""
        print(f"| {name} | {size:.0f} | {joins} | {took:.2f} | {apart:+.1e} | {onnx:.1e} |", flush=True)


def ratios(count: int, folder: Path) -> None:
    """Predictions of a table by idiolect, and by a loop that reads the same file with pandas."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 12)).astype(np.float32)
    source = idl.data.from_frame(
        pd.DataFrame(x, columns=[f"c{k}" for k in range(12)]).assign(y=(x[:, 0] > 0).astype(int), h=np.arange(300) % 3),
        target="y", client_column="h",
    )  # fmt: skip
    run = idl.run(idl.Study(data=source, methods=["fedper"], rounds=2), folder / "table")
    bundle: Bundle = run.bundle("fedper", folder / "b", client="0")
    names = [column.name for column in bundle.about.inputs.columns]
    frame = pd.DataFrame(rng.normal(size=(count, 12)).astype(np.float32), columns=names)
    model, method = bundle.model(), bundle.predicting
    for kind in ("csv", "parquet"):
        path = folder / f"new.{kind}"
        frame.to_csv(path, index=False) if kind == "csv" else frame.to_parquet(path)

        def ours(path: Path = path) -> Any:
            return predict(bundle, path, folder / "p.parquet")

        def plain(path: Path = path) -> None:
            read = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
            x_N = torch.from_numpy(np.require(read[names].to_numpy(np.float32), requirements="W"))
            with torch.no_grad():
                p_NC = torch.cat(
                    [method.predict(model.down, model.client, x_B) for x_B in torch.split(x_N, 4096)]
                ).exp()
            made = pd.DataFrame(p_NC.numpy(), columns=["p_0", "p_1"])
            made.insert(0, "label", np.array(["0", "1"])[p_NC.argmax(1).numpy()])
            made.to_parquet(folder / "q.parquet")

        _compare(f"{count:,} rows of a {kind} file, written as parquet", ours, plain)

    site = idl.load(folder / "b")

    def in_memory() -> None:
        with torch.no_grad():
            x_N = torch.from_numpy(frame[names].to_numpy(np.float32).copy())
            p_NC = torch.cat([method.predict(model.down, model.client, x_B) for x_B in torch.split(x_N, 4096)]).exp()
            p_NC.double().numpy()  # as scikit-learn's classifiers

    _compare(f"{count:,} rows of a DataFrame, predict_proba", lambda: site.predict_proba(frame), in_memory, turns=64)


def ratios_of_images(count: int, folder: Path) -> None:
    """Predictions of images by idiolect, and by a loop that decodes the same files with Pillow."""
    rng = np.random.default_rng(0)
    source = idl.data.from_arrays(rng.integers(0, 256, (300, 1, 28, 28), np.uint8), np.arange(300) % 10)
    study = idl.Study(data=source, clients=3, methods=["fedper"], rounds=1, local_epochs=1, model="fmnist_cnn")
    bundle: Bundle = idl.run(study, folder / "images").bundle("fedper", folder / "i", client="0")
    model, method = bundle.model(), bundle.predicting
    x_N = rng.integers(0, 256, (count, 28, 28), np.uint8)
    (folder / "png").mkdir()
    for k, image in enumerate(x_N):
        Image.fromarray(image).save(folder / "png" / f"{k:06}.png")

    def inference(x_N: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return torch.cat([method.predict(model.down, model.client, x_B) for x_B in torch.split(x_N, 256)]).exp()

    def ours() -> Any:
        return predict(bundle, folder / "png", folder / "p.parquet")

    def plain() -> None:
        paths = sorted((folder / "png").glob("*.png"))
        p_NC = inference(torch.from_numpy(np.stack([np.asarray(Image.open(path)) for path in paths])[:, None]))
        made = pd.DataFrame(p_NC.numpy(), columns=[f"p_{k}" for k in range(10)])
        made.insert(0, "label", p_NC.argmax(1).numpy().astype(str))
        made.insert(0, "image", [str(path) for path in paths])
        made.to_parquet(folder / "q.parquet")

    _compare(f"{count:,} images of a folder, written as parquet", ours, plain)
    site = idl.load(folder / "i")
    _compare(
        f"{count:,} images of an array, predict_proba",
        lambda: site.predict_proba(x_N), lambda: inference(torch.from_numpy(x_N[:, None])),
    )  # fmt: skip


def _compare(what: str, ours: Callable[[], Any], plain: Callable[[], Any], turns: int = 16) -> None:
    """Takes turns; prints how fast ours is as a multiple of the plain loop's speed."""
    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for turn in range(turns):
        for name, function in (("ours", ours), ("plain", plain))[:: 1 if turn % 2 else -1]:
            begun = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - begun)
    ratio = statistics.median(p / o for p, o in zip(times["plain"], times["ours"], strict=True))
    print(f"{what}: {min(times['ours']):.2f} s; speed against a plain loop {ratio:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(sorted(methods.ours())))
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--images", type=int, default=4000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        table(args.methods.split(","), Path(folder))
        print()
        ratios(args.rows, Path(folder))
        ratios_of_images(args.images, Path(folder))


if __name__ == "__main__":
    main()
