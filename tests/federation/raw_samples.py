"""Photographs and reviews of sites, for backbones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

SITES = ("north", "south")


def photos(folder: Path, names: Sequence[str] = SITES, rows: int = 18) -> dict[str, Path]:
    """A folder for each site, with reddish and bluish noise in folders of classes."""
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        for i in range(rows):
            place = folder / name / ("red" if i % 2 else "blue") / f"{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 150, (16, 16, 3)) + 90 * np.eye(3, dtype=int)[0 if i % 2 else 2]
            Image.fromarray(pixels.astype(np.uint8)).save(place)
    return {name: folder / name for name in names}


def reviews(folder: Path, names: Sequence[str] = SITES, rows: int = 18) -> dict[str, Path]:
    """A table for each site, with texts in "say" beside a column of numbers."""
    for k, name in enumerate(names):
        rng = np.random.default_rng(k)
        label = np.array(["good", "bad"])[np.arange(rows) % 2]
        words = {"good": ["good", "very", "film"], "bad": ["bad", "not", "dog"]}
        texts = [" ".join(rng.choice(words[y], rng.integers(1, 12))) for y in label]
        pd.DataFrame({"say": texts, "age": rng.integers(20, 80, rows), "label": label}).to_csv(
            folder / f"{name}.csv", index=False
        )
    return {name: folder / f"{name}.csv" for name in names}
