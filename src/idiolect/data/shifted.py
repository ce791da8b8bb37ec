"""All clients' samples in one tensor, shifted; if this takes long, the result is cached on disk."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache as cached
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from idiolect.core import keys, option_spec, tree
from idiolect.core.errors import InputError
from idiolect.core.tree import Tree
from idiolect.data import new_clients, plan, shifts
from idiolect.data.datasets import cache
from idiolect.data.datasets.dataset import Source
from idiolect.data.plan import View
from idiolect.data.shifts import Images, Who

# R samples of all clients, N samples of one client

_WORTH_KEEPING = 2.0  # seconds that shifts took
_KEPT = 4e9  # bytes of all settings' shifted samples


def fill(
    x_R: Tree, y_R: Tensor, ends: Sequence[int], source: Source, views: Sequence[View], seed: int
) -> tuple[str, ...]:
    """Put all clients' samples in place, shifted, and return what was done to each client."""
    steps = list({id(s): s for view in views for _, s in view.steps}.values())
    several = isinstance(source.x_R, dict)
    images = not several and source.x_R.dtype == torch.uint8 and source.x_R.ndim == 4
    for step in steps:
        if several:
            raise InputError(f"shift {step.text} is for samples of one tensor, and these have several: leave it out")
        if source.targets is not None and step.function in shifts.OF_LABELS:
            raise InputError(
                f"shift {step.text} changes classes, and this target is {source.targets.what}: leave it out"
            )
        takes = inspect.signature(step.function, eval_str=True).parameters["x_N"].annotation
        if not images and takes == Images:
            raise InputError(f"shift {step.text} changes images, and these samples are numbers: leave it out")
    place = cache.place(f"shifts-{_digest(source, views, seed)}") if steps else None
    if place and (entry := cache.load(place)):
        x_R.copy_(entry.tensors["x"])
        y_R.copy_(entry.tensors["y"])
        with suppress(OSError):
            place.touch()  # used now
        return tuple(json.loads(entry.about["says"]))
    if not steps:  # at once: a call for each client would cost more than its samples
        row_R = torch.from_numpy(np.concatenate([view.row_N[view.at_N] for view in views]))
        tree.map(lambda all_R, own_R: torch.index_select(all_R, 0, row_R, out=own_R), source.x_R, x_R)
        torch.index_select(source.y_R, 0, row_R, out=y_R)
        return ("",) * len(views)
    begun = time.monotonic()
    places = {id(s): {k: i for i, k in enumerate(sorted(s.members))} for s in steps}
    says = []
    for view, start, end in zip(views, [0, *ends], ends, strict=False):
        if not view.steps:
            row_N = torch.from_numpy(view.row_N[view.at_N])
            torch.index_select(source.x_R, 0, row_N, out=x_R[start:end])
            torch.index_select(source.y_R, 0, row_N, out=y_R[start:end])
            says.append("")
            continue
        row_N = torch.from_numpy(view.row_N)
        x_N, y_N, steps_so_far = source.x_R[row_N].numpy(), source.y_R[row_N].numpy(), []
        for path, step in view.steps:
            who = Who(
                view.client, places[id(step)][view.client], source.classes,
                lambda *more, path=path: keys.generator(seed, "shift", "common", *path, *more),
            )  # fmt: skip
            rng = keys.generator(seed, "shift", view.client, *path)
            x_N, y_N, words = step.function(x_N, y_N, who, rng, **step.options)
            steps_so_far.append(words)
        x_R[start:end] = torch.from_numpy(np.ascontiguousarray(x_N[view.at_N]))
        y_R[start:end] = torch.from_numpy(np.ascontiguousarray(y_N[view.at_N]))
        says.append(",".join(filter(None, steps_so_far)))
    if place and time.monotonic() - begun > _WORTH_KEEPING:
        cache.save(place, {"x": x_R, "y": y_R}, {"says": json.dumps(says)})
        cache.trim(place, "shifts-", _KEPT)
    return tuple(says)


def _digest(source: Source, views: Sequence[View], seed: int) -> str:
    """What determines the shifted samples: the samples before, the plan, and the code."""
    digest = hashlib.blake2b(digest_size=16)
    for view in views:
        steps = [(path, step.text, sorted(step.members)) for path, step in view.steps]
        digest.update(json.dumps([view.client, len(view.row_N), steps, seed]).encode())
        digest.update(view.at_N.data)
        if not view.condition:  # further conditions begin with the same samples
            row_N = torch.from_numpy(view.row_N)
            digest.update(source.x_R[row_N].numpy().data)
            digest.update(source.y_R[row_N].numpy().data)
    digest.update(f"{source.classes} {source.x_R.dtype} {tuple(source.x_R.shape[1:])}".encode())
    digest.update(_code())
    return digest.hexdigest()


@cached
def _code() -> bytes:
    """The source text of all code that makes shifted samples, and the versions of the libraries that it uses."""
    ours = [Path(inspect.getfile(module)) for module in (keys, option_spec, new_clients, plan)]
    files = [Path(__file__), *ours, *sorted(Path(inspect.getfile(shifts)).parent.glob("*.py"))]
    packages = [version(name).encode() for name in ("numpy", "scipy", "pillow")]
    return b"".join([*(file.read_bytes() for file in files), *packages])
