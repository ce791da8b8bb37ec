"""The result of a cell's runs, and the paper's number."""

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

MARGIN = 1.5  # a number within so many points matches the paper's
SEEDS = (
    3  # from so many seeds on, the interval counts: for two seeds it is some ten points wide and would match anything
)
Status = Literal["matches", "differs", "measured", "trial", "under way", "not run", "diverged", "failed", "no data"]


@dataclass(frozen=True)
class Outcome:
    """The result of a cell.

    Attributes:
        cell: the cell.
        status: "matches" if the paper's number is within 1.5 points, or within the interval if there are three seeds or
            more and it is larger, else "differs"; "measured" if the paper has no number; "trial" if the rounds are not
            the paper's; "under way", "not run", "diverged", "failed" (for example because a worker died) or "no data".
        value: for accuracies the mean over seeds, in per cent; else in the paper's unit.
        interval: half the width of the 95 % interval of the mean over seeds (Student's t); None for one seed.
        seeds: the value with each seed that has run to the end.
        rounds: the round of the measurement; if there is none, how many rounds are done.
        facts: further numbers of the same models, means over seeds: accuracy per client and per sample, spread, worst
            tenth, calibration error, Brier score.
        seconds: for all rounds and seeds.
        said: why there is no number, or none with some seeds.
        to_retry: whether a run stopped, or could not start, for another reason than divergence. The same command tries
            it again.
        machine: the machine of its runs; several are separated by semicolons.
        versions: versions of libraries, in the same form.
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
    """Half of the 95 % interval of the mean; None for one value."""
    from scipy import stats  # slow to import

    return float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)) if len(values) > 1 else None


def outcome(cell: Cell, runs: Sequence[Part], said: Mapping[Path, tuple[Status, str]] | None = None) -> Outcome:
    """The result of a cell from its runs on disk.

    Raises:
        InputError: a folder is broken or has another study.
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
    """The outcome with its verdict."""
    ours, theirs = found.value, found.cell.published
    if isinstance(ours, str) or isinstance(theirs, str):
        return found if theirs is None else replace(found, status="matches" if ours == theirs else "differs")
    if found.difference is None or found.cell.reads == "minutes":  # minutes depend on the machine
        return found
    if found.cell.value is None:
        bound = max(MARGIN, found.interval or 0.0) if len(found.seeds or {}) >= SEEDS else MARGIN
    else:
        bound = 1e-3 * abs(float(theirs or 0))  # computed numbers are printed to three digits or more
    return replace(found, status="matches" if abs(found.difference) <= bound else "differs")


def protocol_of(cell: Cell) -> Any:
    """The protocol of a cell's number: its study's, with the stage or the new clients of the cell."""
    assert cell.study is not None
    protocol = cell.study.protocol
    if cell.condition is not None:
        return protocol.model_copy(update={"clients": "new"})
    return protocol if cell.stage is None else protocol.model_copy(update={"stage": cell.stage})


def measured(cell: Cell, folder: Path) -> tuple[float, dict[str, float], float]:
    """A cell's value from a finished run, further numbers of the same models, and the run's seconds."""
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
