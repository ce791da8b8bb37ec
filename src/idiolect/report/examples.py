"""Examples of clients' samples for the page of ``describe``: images, texts cut to a line, and windows as lines."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from idiolect.core.objectives import number
from idiolect.data import FederatedData
from idiolect.data.text.tokens import lengths, unit
from idiolect.report.figures import Figure
from idiolect.report.figures.colours import PALETTE, PLAIN
from idiolect.report.figures.vega_lite import tooltip
from idiolect.report.formatting import short

Kind = Literal["images", "texts", "windows", ""]
HEADINGS: dict[Kind, str] = {
    "images": "What some clients see: ten training images each",
    "texts": "What some clients read: the beginnings of ten training texts each",
    "windows": "What some clients measure: ten training windows each, a line for each channel",
}
_SHOWN = 10
_LETTERS = 140  # of a text
_CHANNELS = 12
_POINTS = 96  # of a line
_WIDTH, _HEIGHT = 120, 64  # of a drawing, px
_BINS = 30


def kind_of(data: FederatedData) -> Kind:
    """What can be shown of the samples; "" for tables and the like."""
    if data.has_images and len(data.shape) == 3:
        return "images"
    if data.tokens is not None:
        return "texts"
    is_window = not isinstance(data.x_R, dict) and data.x_R.is_floating_point() and len(data.shape) == 2
    return "windows" if is_window else ""


def of_client(data: FederatedData, client: int, name: str) -> dict[str, Any]:
    """The first training samples of a client, with their classes, numbers or labels."""
    rows = data.train[client][:_SHOWN].tolist()
    show = {"images": _image, "texts": _text, "windows": _drawing}[kind_of(data)]
    shift = data.shifts[client]
    labels = [_goal(data, row) for row in rows]
    kinds: dict[str, Any] = dict.fromkeys(HEADINGS)
    return {
        **kinds,
        "who": f"{name} · {short(shift)}" if shift else name,
        kind_of(data): [{"data": show(data, row), "label": label} for row, label in zip(rows, labels, strict=True)],
    }


def _goal(data: FederatedData, row: int) -> str:
    """The class of a sample, its numbers, or the labels that it has."""
    if data.targets is None:
        return data.class_names[int(data.y_R[row])]
    pairs = list(zip(data.targets.names, data.targets.value_RD[row].tolist(), strict=True))
    if data.task == "multilabel":
        return ", ".join(name for name, value in pairs if value) or "no label"
    return ", ".join(number(value) for _, value in pairs)


def _image(data: FederatedData, row: int) -> str:
    from PIL import Image

    x_HWC = data.x_R[row].permute(1, 2, 0).numpy()
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(x_HWC[..., 0] if x_HWC.shape[2] == 1 else x_HWC)).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _text(data: FederatedData, row: int) -> str:
    """The beginning of a text, on one line; characters that a browser does not show are left out."""
    assert data.tokens is not None
    whole = data.tokens.encoder.decode(data.x_R[row].tolist())
    line = "".join(c for c in " ".join(whole.split()) if c.isprintable())
    return line if len(line) <= _LETTERS else line[: _LETTERS - 1].rstrip() + "…"


def _drawing(data: FederatedData, row: int) -> list[dict[str, str]]:
    """A line for each channel of a window, from its smallest value to its largest."""
    x_CT = data.x_R[row][:_CHANNELS].double().numpy()
    x_CT = x_CT[:, np.linspace(0, x_CT.shape[1] - 1, min(_POINTS, x_CT.shape[1])).round().astype(int)]
    low, high = np.nanmin(x_CT), np.nanmax(x_CT)
    across = np.linspace(1, _WIDTH - 1, x_CT.shape[1])
    down_CT = 1 + (_HEIGHT - 2) * (1 - (x_CT - low) / (high - low if high > low else 1))
    return [
        {
            "points": " ".join(f"{x:.1f},{y:.1f}" for x, y in zip(across, down_T, strict=True)),
            "colour": PALETTE[c % len(PALETTE)],
        }
        for c, down_T in enumerate(down_CT)
    ]


def training_lengths(data: FederatedData) -> np.ndarray[Any, np.dtype[np.int64]]:
    """How many tokens each training text has, in ascending order."""
    rows = torch.cat([*data.train[: data.trained]])
    return np.sort(lengths(data.x_R[rows]).numpy())


def spread_of_lengths(length_R: Sequence[int] | np.ndarray[Any, Any]) -> str:
    """The lengths in words."""
    low, quarter, middle, three, high = np.percentile(length_R, [0, 25, 50, 75, 100])
    return f"{low:,.0f} to {high:,.0f}, median {middle:,.0f}; half of the texts {quarter:,.0f} to {three:,.0f}"


def figure_of_lengths(data: FederatedData) -> Figure:
    """How many training texts have how many tokens."""
    assert data.tokens is not None
    length_R, kind = training_lengths(data), unit(data.tokens.encoder)
    most = int(length_R[-1])
    width = max(1, -(-most // _BINS))
    count_B = np.bincount((length_R - 1).clip(0) // width)
    values = [
        {"from": k * width + 1, "to": min((k + 1) * width, most), "end": (k + 1) * width + 1, "texts": int(n)}
        for k, n in enumerate(count_B)
    ]
    full = int((length_R == data.x_R.shape[1]).sum())
    return Figure(
        "lengths",
        f"Half of the texts have at most {np.median(length_R):,.0f} {kind}",
        f"Training texts by their number of {kind}. {full:,} of {len(length_R):,} have {data.x_R.shape[1]:,}, the "
        "most that a sample holds: longer ones are cut.",
        {
            "data": {"values": values},
            "height": 200,
            "mark": {"type": "bar", "color": PLAIN, "binSpacing": 0},
            "encoding": {
                "x": {"field": "from", "type": "quantitative", "title": kind, "bin": {"binned": True, "step": width}},
                "x2": {"field": "end"},
                "y": {"field": "texts", "type": "quantitative", "title": "training texts"},
                "tooltip": tooltip("from", "to", "texts"),
            },
        },
    )
