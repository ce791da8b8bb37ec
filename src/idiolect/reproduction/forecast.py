"""What a recipe would run, and how long that takes here, as measured on synthetic samples.

The speed of a method on this machine is measured once and kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Group
from rich.table import Table

from idiolect import data, methods
from idiolect.core import files
from idiolect.core.errors import IdiolectError, InputError, RunError
from idiolect.core.method import Down
from idiolect.core.processor import cores
from idiolect.core.terminal import Text
from idiolect.data import FederatedData
from idiolect.data.datasets import cache
from idiolect.engines.threads import OneThread
from idiolect.report.tables import duration
from idiolect.reproduction.parts import Part, diverged, parts
from idiolect.reproduction.recipes import Cell, Recipe
from idiolect.runs import environment
from idiolect.runs.store import seconds_of_rounds
from idiolect.simulation import Job, begin
from idiolect.simulation.client_runner import Site
from idiolect.simulation.rounds import share_of
from idiolect.studies.config import Study

_ROWS, _TESTED = 100, 32  # synthetic samples that a method is timed on, at most
_UNIT = "processor seconds in whole batches"  # of the kept speeds; those in another unit are measured again


class Speed(NamedTuple):
    """Seconds of one client on one core that does nothing else, per training sample that it uses."""

    training: float
    """A round of ``local``."""
    personalised: float
    """An evaluation with ``personalise``."""
    received: float
    """An evaluation without ``personalise``."""


class Planned(NamedTuple):
    """One run that cells ask for."""

    name: str
    """The cells' conditions."""
    method: str
    seed: int
    rounds: int
    done: int
    """Rounds on disk."""
    seconds: float | None
    """Seconds that the rest would take; None if unknown."""
    folder: str
    note: str
    """What would prevent it from running."""


def forecast(
    cells: Sequence[Cell],
    out: Path,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    workers: int | None = None,
    patience: float = float("inf"),
    known: Callable[[Cell], Collection[int]] = lambda c: (),
) -> list[Planned]:
    """The runs of some cells, each once.

    The time of a run that has started follows from its rounds so far. For another run, one round of one client is timed
    with its method on synthetic samples, on one core; workers share a round evenly.

    Args:
        cells: of a recipe.
        out, rounds, seeds: as for ``reproduce``.
        workers: how many share a round; None for one per core.
        patience: seconds after which no more speeds are measured; runs with unknown speed have no time then.
        known: seeds for which a cell needs no run.
    """
    several = workers or cores()
    speeds = _Speeds(patience)
    found: dict[Path, Planned] = {}
    for c in cells:
        if c.study is None:
            found[Path(c.slug)] = Planned(c.slug, "", 0, 0, 0, 0.0 if c.value else None, "", c.absent or "computed")
        needed = [seed for seed in seeds if seed not in known(c)]
        for part in parts(c, out, rounds=rounds, seeds=needed):
            if part.folder not in found:
                try:
                    found[part.folder] = _planned(part, several, speeds)
                except IdiolectError as error:  # a broken folder, or one with another study: the others run
                    found[part.folder] = _named(part, 0, None, str(error))
    speeds.keep()
    return list(found.values())


class _Speeds:
    """The speed of methods on this machine, from before or measured now."""

    def __init__(self, patience: float) -> None:
        self._ends = time.monotonic() + patience
        place = cache.place("speeds")
        self._path, self._new = place and place.with_suffix(".json"), False
        self._here = {"machine": environment.machine()} | environment.versions()
        self._known: dict[str, list[float]] = {}
        with suppress(OSError, ValueError, KeyError, TypeError):  # a broken file is measured again
            kept = json.loads(self._path.read_bytes()) if self._path else {}
            if kept.get("here") == self._here:
                self._known = {str(k): [float(s) for s in v] for k, v in kept[_UNIT].items() if len(v) == 3}

    def of(self, study: Study, about: dict[str, Any]) -> Speed | None:
        """The speed of a study's one method; None if unknown and the time for measuring is used up."""
        use = study.methods[0]
        batches = (study.local_epochs, study.batch_size, study.drop_last, study.augment)
        like = str([use.name, use.options, study.model, about["shape"], about["classes"], *batches, study.precision])
        if like not in self._known and time.monotonic() < self._ends:
            self._known[like], self._new = list(_speed(study, about)), True
        return Speed(*self._known[like]) if like in self._known else None

    def keep(self) -> None:
        """Keep the speeds for the next time; if that fails, they are measured again."""
        if self._path and self._new:
            with suppress(OSError, RunError, InputError):
                files.write(self._path, json.dumps({"here": self._here, _UNIT: self._known}))


def _planned(part: Part, workers: int, speeds: _Speeds) -> Planned:
    study, done = part.study, part.done
    use, note = study.methods[0], ""
    seconds: float | None = 0.0
    if diverged(part.folder):
        note = f"{use.label} diverged with seed {study.seeds[0]} and is not tried again until {part.folder} is deleted"
    elif done < study.rounds:
        if done:
            seconds = float(np.mean(seconds_of_rounds(part.folder))) * (study.rounds - done)
        else:
            about = data.describe(str(study.dataset))
            speed = speeds.of(study, about)
            seconds = None if speed is None else _cost(study, about, speed) / workers
        if not data.at_hand(str(study.dataset), study.data_dir):
            note = "its data are not on this machine and would be downloaded"
    return _named(part, done, seconds, note)


def _named(part: Part, done: int, seconds: float | None, note: str) -> Planned:
    study, folder = part.study, str(part.folder)
    return Planned(study.name, study.methods[0].label, study.seeds[0], study.rounds, done, seconds, folder, note)


def _cost(study: Study, about: dict[str, Any], speed: Speed) -> float:
    """Seconds on one core: of training, of every evaluation at each of the protocol's stages, and of new clients."""
    protocol, clients = study.protocol, study.clients or 100
    joining = _joining(study.new_clients, clients)
    trained = clients - joining
    rows = _training_rows(study, about, clients) * (1 - protocol.validation)
    used = _used(study, rows)
    taking_part = share_of(trained, study.participation)
    turns = study.rounds * taking_part + (trained - taking_part) * protocol.full_last_round
    evaluations = study.rounds // study.evaluation + bool(study.rounds % study.evaluation)
    measured = taking_part if protocol.clients == "participants" else trained
    each = {
        "personalised": rows * speed.personalised,
        "received": rows * speed.received,
        "trained": used * speed.training + rows * speed.received,
    }
    evaluation = measured * sum(each[stage] for stage in protocol.stages)
    return turns * used * speed.training + evaluations * evaluation + joining * rows * speed.personalised


def _joining(new: int | str | None, clients: int) -> int:
    """The number of new clients; each name counts as one."""
    if isinstance(new, str):
        return round(clients * float(new[:-1]) / 100) if new.endswith("%") else len(new.split("+"))
    return new or 0


def _used(study: Study, rows: float) -> float:
    """Training samples of a client that an epoch uses."""
    return _whole(rows, study.batch_size) if study.drop_last else rows


def _whole(rows: float, size: int) -> float:
    """Samples in whole batches; all of them if they are fewer than one batch."""
    return rows - rows % size if rows >= size else rows


def _training_rows(study: Study, about: dict[str, Any], clients: int) -> float:
    """Training samples of a client on average, without reading the data."""
    total = about["rows"]
    options = study.partition.options
    if study.sizes:
        rows = sum(study.sizes) / len(study.sizes)
    elif study.partition.name in ("dominant", "pathological"):
        rows = 600.0
    else:
        of_all = min(options.get("rows") or total / clients, total / clients)
        rows = of_all * (1 - options.get("test_fraction", 0.2))
    if study.keep is not None:
        rows = min(rows, study.keep) if isinstance(study.keep, int) else rows * study.keep
    return float(rows)


def _speed(study: Study, about: dict[str, Any]) -> Speed:
    """The time of a round and of an evaluation on synthetic samples, in whole batches as most of a client's are."""
    shape, classes = tuple(about["shape"]), int(about["classes"])
    trained = int(_whole(_ROWS, study.batch_size))
    count = trained + _TESTED
    draw = torch.Generator().manual_seed(0)
    rows = torch.arange(2 * count).view(2, count)
    made_up = FederatedData(
        name="random", x_R=torch.randint(256, (2 * count, *shape), dtype=torch.uint8, generator=draw),
        y_R=torch.arange(2 * count) % classes, classes=classes,
        train=tuple(r[:trained] for r in rows), test=tuple(r[trained:] for r in rows),
        class_names=tuple(map(str, range(classes))), mean=(0.5,) * shape[0], std=(0.3,) * shape[0], shifts=("", ""),
    )  # fmt: skip
    use = study.methods[0]
    site = Site(Job(use.label, partial(methods.build, use.name, use.options, study.task(made_up)), made_up, 0))
    state = begin(site.method, 2, 0)
    sent = site.method.send(state.server, torch.tensor([0]))
    own = Down(sent.shared, sent.own)

    def timed(phase: Any) -> float:
        best = float("inf")
        for number in (1, 2):
            start = time.process_time()  # not what other programs take at the moment, because the speed is kept
            site.run(phase, number, [0], own, [state.clients[0]])
            best = min(best, time.process_time() - start)
        return best / trained

    with OneThread():
        return Speed(timed("local"), timed("evaluate"), timed("received"))


def sentence(rows: Sequence[Planned]) -> str:
    """The rest of a plan in one line; empty if nothing is left."""
    left = [r for r in rows if r.rounds and r.done < r.rounds and r.seconds != 0.0]
    known = [r.seconds for r in left if r.seconds is not None]
    if not left:
        return ""
    many = "1 run is" if len(left) == 1 else f"{len(left)} runs are"
    if not known:
        return f"{many} left; a dry run measures how long they take on this machine"
    said = f"{many} left, about {duration(sum(known) * len(left) / len(known))} on this machine"
    few = f", estimated from {len(known)} of them; a dry run measures all" if len(known) < len(left) else ""
    return said + few


def render(recipe: Recipe, rows: Sequence[Planned]) -> Group:
    """The plan for a terminal."""
    trained = [r for r in rows if r.rounds]
    left = [r.seconds for r in trained if r.seconds]
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for header in ("cells", "method"):
        shown.add_column(header, overflow="fold")
    for header in ("seed", "rounds", "time"):
        shown.add_column(header, justify="right", no_wrap=True)
    for r in trained:
        rounds = f"{r.done} of {r.rounds}" if r.done else str(r.rounds)
        took = "done" if r.done >= r.rounds else "-" if r.seconds is None else duration(r.seconds)
        shown.add_row(*map(Text, (r.name, r.method, str(r.seed), rounds, took)))
    many = "1 run" if len(trained) == 1 else f"{len(trained)} runs"
    none = "Nothing can run yet." if any(r.seconds is None for r in trained) else "Nothing is left to run."
    below = [f"{many}, about {duration(sum(left))} on this machine." if left else none]
    if computed := sum(r.note == "computed" for r in rows):
        below.append(f"{computed} cells are computed without training.")
    below += [f"Note: {n.rstrip('.')}." for n in dict.fromkeys(r.note for r in rows) if n and n != "computed"]
    below += [f"Assumed: {a}" for a in recipe.assumed]
    head = Text(f"{recipe.name}: {recipe.title}\n")
    return Group(head, *([shown] if trained else []), Text("\n".join(["", *below])))
