"""What came of a cell's runs, beside the paper's number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from idiolect import report
from idiolect.core.errors import InputError
from idiolect.report.tables import per_seed
from idiolect.reproduction.parts import Part, diverged
from idiolect.reproduction.recipes import Cell
from idiolect.runs.store import sittings

MARGIN = 1.5  # points within which a number counts as the paper's
SEEDS = 3  # from which on an interval counts: that of two is some ten points wide, which would match anything
Status = Literal["matches", "differs", "measured", "trial", "under way", "not run", "diverged", "failed", "no data"]


@dataclass(frozen=True)
class Outcome:
    """What is known of a cell.

    Attributes:
        cell: it.
        status: "matches" the paper's number within the larger of 1.5 points and, of three seeds or more, the interval,
            or "differs"; "measured" where the paper has none; "trial" where the rounds are not the paper's; "under
            way", "not run", "diverged", "failed", as where a worker died, or "no data".
        value: of accuracies the mean over seeds, in per cent; else in the paper's unit.
        interval: half the width of the 95 % interval of the mean over seeds (Student's t); None for one seed.
        seeds: the value with each seed that has run to the end.
        rounds: after which it was measured; where it was not, how many are done.
        facts: further numbers of the same models, means over seeds: accuracy per client and per row, spread, worst
            tenth, calibration error, Brier score.
        seconds: of all rounds and seeds.
        said: why there is no number, or none with some seed.
        to_retry: whether a run of it stopped, or could not begin, for another cause than divergence. The same command
            tries it again.
        machine: that it ran on, where it was measured by a run; several are separated by semicolons.
        versions: of what it ran with, in the same way.
    """

    cell: Cell
    status: Status
    value: float | str | None = None
    interval: float | None = None
    seeds: Mapping[int, float] | None = None
    rounds: int = 0
    facts: Mapping[str, float] | None = None
    seconds: float = 0.0
    said: str = ""
    protocol: str = ""
    to_retry: bool = False
    machine: str = ""
    versions: Mapping[str, str] | None = None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in the paper's unit."""
        ours, theirs = self.value, self.cell.published
        return ours - theirs if isinstance(ours, int | float) and isinstance(theirs, int | float) else None


def _spread(values: list[float]) -> float | None:
    """Half of the 95 % interval of the mean; None of one value."""
    from scipy import stats  # slow to import

    return float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)) if len(values) > 1 else None


def outcome(cell: Cell, runs: Sequence[Part], said: Mapping[Path, tuple[Status, str]] | None = None) -> Outcome:
    """What is on disk of a cell.

    Raises:
        InputError: a folder is broken, or holds another study.
    """
    if cell.value is not None:
        return _judged(Outcome(cell, "measured", cell.value()))
    if cell.study is None:
        return Outcome(cell, "no data", said=cell.absent)
    seeds: dict[int, float] = {}
    facts: list[dict[str, float]] = []
    seconds, done = 0.0, [part.done for part in runs]
    protocol = "" if cell.reads == "minutes" else str(protocol_of(cell))
    for part in runs:
        if part.finished:
            value, more, spent = measured(cell, part.folder)
            seeds[part.study.seeds[0]] = value
            facts.append(more)
            seconds += spent
    told: dict[int, tuple[Status, str]] = {}
    for part in runs:
        if (seed := part.study.seeds[0]) in seeds:
            continue
        if about := (said or {}).get(part.folder):
            told[seed] = about
        elif where := diverged(part.folder):
            told[seed] = "diverged", where
    to_retry = any(kind != "diverged" for kind, _ in told.values())
    ran = [sitting for part in runs if not seeds or part.study.seeds[0] in seeds for sitting in sittings(part.folder)]
    machine = _each(sitting.get("machine", "") for sitting in ran)
    names = dict.fromkeys(name for sitting in ran for name in sitting.get("versions", ()))
    versions = {name: _each(sitting.get("versions", {}).get(name, "") for sitting in ran) for name in names}
    if not seeds:
        for kind, text in told.values():
            return Outcome(
                cell, kind, said=text, rounds=min(done), protocol=protocol, to_retry=to_retry, machine=machine,
                versions=versions,
            )  # fmt: skip
        state: Status = "under way" if any(done) else "not run"
        return Outcome(cell, state, rounds=max(done, default=0), protocol=protocol)
    values = list(seeds.values())
    spread = _spread(values)
    means = {k: float(np.mean([f[k] for f in facts])) for k in facts[0] if all(k in f for f in facts)}
    missing = [f"Without seed {seed} ({kind}): {text}" for seed, (kind, text) in told.items()]
    rounds, whole = runs[0].study.rounds, cell.study.rounds
    found = Outcome(
        cell, "measured" if rounds == whole else "trial", float(np.mean(values)), spread, seeds, rounds, means, seconds,
        " ".join(missing), protocol, to_retry, machine, versions,
    )  # fmt: skip
    return _judged(found) if rounds == whole else found


def _each(told: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in told if text))


def _judged(found: Outcome) -> Outcome:
    """With the verdict."""
    ours, theirs = found.value, found.cell.published
    if isinstance(ours, str) or isinstance(theirs, str):
        return found if theirs is None else replace(found, status="matches" if ours == theirs else "differs")
    if found.difference is None or found.cell.reads == "minutes":  # which are a machine's own
        return found
    if found.cell.value is None:
        bound = max(MARGIN, found.interval or 0.0) if len(found.seeds or {}) >= SEEDS else MARGIN
    else:
        bound = 1e-3 * abs(float(theirs or 0))  # computed numbers are printed to three digits or more
    return replace(found, status="matches" if abs(found.difference) <= bound else "differs")


def protocol_of(cell: Cell) -> Any:
    """The protocol of a cell's number: its study's, or of that the stage or the new clients that the cell is about."""
    assert cell.study is not None
    protocol = cell.study.protocol
    if cell.condition is not None:
        return protocol.model_copy(update={"clients": "new"})
    return protocol if cell.stage is None else protocol.model_copy(update={"stage": cell.stage})


def measured(cell: Cell, folder: Path) -> tuple[float, dict[str, float], float]:
    """A cell's value of a finished run, further numbers of the same models, and the run's seconds."""
    whole = report.read(folder)
    protocol = protocol_of(cell)
    found = replace(whole, study=whole.study | {"protocol": protocol.model_dump()})
    seconds = float(whole.timings["seconds"].sum())
    if cell.reads == "minutes":
        return seconds / 60, {}, seconds

    def frame(metric: str) -> Any:
        if cell.condition is None:
            return found.last_of(metric)
        new = found.select("new", metric)
        return new[new["client"].map(found.new_clients) == cell.condition]

    accuracy = frame("accuracy")
    if accuracy.empty:
        raise InputError(f"{folder} has no accuracy of {protocol}: delete the folder and run the recipe again")
    (value,) = per_seed(found, accuracy)
    rows = accuracy["client"].map(found.test_rows)
    facts = {
        "per_client": 100 * float(accuracy["value"].mean()),
        "per_row": 100 * float(np.average(accuracy["value"], weights=rows)),
        "client_std": 100 * float(accuracy["value"].std(ddof=0)),
        "worst_decile": 100 * float(accuracy["value"].nsmallest(max(1, len(accuracy) // 10)).mean()),
    }
    for metric in ("calibration_error", "brier"):
        if not (mine := frame(metric)).empty:
            facts[metric] = float(mine["value"].mean())
    return 100 * value, facts, seconds
