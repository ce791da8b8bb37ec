"""The result of a cell's runs, and the paper's number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from idiolect import report
from idiolect.core.errors import InputError
from idiolect.report.measures import LESS_IS_BETTER, OF_NUMBERS
from idiolect.report.rows import per_seed
from idiolect.reproduction.recipes import Cell
from idiolect.reproduction.seed_runs import SeedRun, divergence_message
from idiolect.runs.environment import starts

MARGIN = 1.5  # a number within so many points matches the paper's
SEEDS = (
    3  # from so many seeds on, the interval counts: for two seeds it is some ten points wide and would match anything
)
Status = Literal["matches", "differs", "measured", "trial", "under way", "not run", "diverged", "failed", "no data"]


class SeedResult(NamedTuple):
    """The result of a cell with one seed."""

    value: float | None
    """As ``Outcome.value``; None if training diverged."""
    rounds: int = 0
    facts: Mapping[str, float] = {}
    clients: Mapping[int, float] = {}
    """The number of each client, in the unit of ``value``."""
    low: Mapping[int, float] = {}
    """The lower end of its 95 % interval, where there is one, for the samples that it is measured on."""
    high: Mapping[int, float] = {}
    """The upper end."""
    seconds: float = 0.0
    machine: str = ""
    versions: Mapping[str, str] = {}
    said: str = ""
    """How training diverged."""


@dataclass(frozen=True)
class Outcome:
    """The result of a cell.

    Attributes:
        cell: the cell.
        status: "matches" if the paper's number is within 1.5 points, or within the interval if there are three seeds or
            more and it is larger, else "differs"; "measured" if the paper has no number; "trial" if the rounds are not
            the paper's; "under way", "not run", "diverged", "failed" (for example because a worker died) or "no data".
        value: the mean over seeds; accuracies and other shares in per cent.
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
        each: the results with the seeds that have run to the end or diverged.
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
    each: Mapping[int, SeedResult] = field(default_factory=dict)

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, in the paper's unit."""
        ours, theirs = self.value, self.cell.published
        return ours - theirs if isinstance(ours, int | float) and isinstance(theirs, int | float) else None


def _spread(values: list[float]) -> float | None:
    """Half of the 95 % interval of the mean; None for one value."""
    from scipy import stats  # slow to import

    return float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)) if len(values) > 1 else None


def outcome(
    cell: Cell,
    runs: Sequence[SeedRun],
    said: Mapping[Path, tuple[Status, str]] | None = None,
    known: Mapping[int, SeedResult] | None = None,
) -> Outcome:
    """The result of a cell from its runs on disk.

    Args:
        cell: of a recipe.
        runs: one for each seed.
        said: for folders of runs that stopped or could not start, why.
        known: results that count where no run on disk has one.

    Raises:
        InputError: a folder is broken or has another study.
    """
    if cell.value is not None:
        return _with_verdict(Outcome(cell, "measured", cell.value()))
    if cell.study is None:
        return Outcome(cell, "no data", said=cell.absent)
    each: dict[int, SeedResult] = {}
    reasons: dict[int, tuple[Status, str]] = {}
    for one in runs:
        seed = one.study.seeds[0]
        if one.complete:
            each[seed] = seed_result(cell, one.folder)
        elif known and seed in known:
            each[seed] = known[seed]
        elif about := (said or {}).get(one.folder):
            reasons[seed] = about
        elif how := divergence_message(one.folder):
            each[seed] = SeedResult(None, one.done, said=how, **_circumstances(one.folder))
    result = outcome_of(cell, each, reasons, trial=any(one.study.rounds != cell.study.rounds for one in runs))
    if result.value is not None or result.status == "diverged":
        return result
    done = [one.done for one in runs]
    if reasons:
        where = [_circumstances(one.folder) for one in runs]
        return replace(result, rounds=min(done), **_all(where))
    return replace(result, status="under way" if any(done) else "not run", rounds=max(done, default=0))


def outcome_of(
    cell: Cell,
    each: Mapping[int, SeedResult],
    reasons: Mapping[int, tuple[Status, str]] | None = None,
    trial: bool = False,
) -> Outcome:
    """The result of a cell from those with each seed; ``reasons`` says of others why there is none."""
    results = {seed: one for seed, one in each.items() if one.value is not None}
    reasons = dict(reasons or {}) | {seed: ("diverged", one.said) for seed, one in each.items() if seed not in results}
    result = Outcome(
        cell, "not run", protocol="" if cell.reads == "minutes" else str(protocol_of(cell)), each=each,
        to_retry=any(kind != "diverged" for kind, _ in reasons.values()),
        **_all([{"machine": one.machine, "versions": one.versions} for one in (results or each).values()]),
    )  # fmt: skip
    if not results:
        for seed, (kind, text) in reasons.items():
            return replace(result, status=kind, said=text, rounds=each[seed].rounds if seed in each else 0)
        return result
    seeds = {seed: one.value for seed, one in results.items() if one.value is not None}
    facts, values = [one.facts for one in results.values()], list(seeds.values())
    missing = [f"Without seed {seed} ({kind}): {text}" for seed, (kind, text) in reasons.items()]
    result = replace(
        result, status="trial" if trial else "measured", value=float(np.mean(values)), interval=_spread(values),
        seeds=seeds, rounds=min(one.rounds for one in results.values()), said=" ".join(missing),
        facts={k: float(np.mean([f[k] for f in facts])) for k in facts[0] if all(k in f for f in facts)},
        seconds=sum(one.seconds for one in results.values()),
    )  # fmt: skip
    return result if trial else _with_verdict(result)


def _circumstances(folder: Path) -> dict[str, Any]:
    """On what a run's sittings ran."""
    entries = starts(folder)
    return _all([{"machine": one["machine"], "versions": one["versions"]} for one in entries])


def _all(circumstances: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Each machine and each version once."""
    names = dict.fromkeys(name for one in circumstances for name in one["versions"])
    return {
        "machine": listed_once(one["machine"] for one in circumstances),
        "versions": {name: listed_once(one["versions"].get(name, "") for one in circumstances) for name in names},
    }


def listed_once(texts: Iterable[str]) -> str:
    """Each piece of texts like "a; b" once, in the order of their first appearance and separated by semicolons."""
    return "; ".join(dict.fromkeys(piece for text in texts if text for piece in text.split("; ")))


def _with_verdict(result: Outcome) -> Outcome:
    """The outcome with its verdict."""
    ours, theirs = result.value, result.cell.published
    if isinstance(ours, str) or isinstance(theirs, str):
        return result if theirs is None else replace(result, status="matches" if ours == theirs else "differs")
    if result.difference is None or result.cell.reads == "minutes":  # minutes depend on the machine
        return result
    if result.cell.value is None:
        margin = max(MARGIN, result.interval or 0.0) if len(result.seeds or {}) >= SEEDS else MARGIN
    else:
        margin = 1e-3 * abs(float(theirs or 0))  # computed numbers are printed to three digits or more
    return replace(result, status="matches" if abs(result.difference) <= margin else "differs")


def protocol_of(cell: Cell) -> Any:
    """The protocol of a cell's number: its study's, with the stage or the new clients of the cell."""
    assert cell.study is not None
    protocol = cell.study.protocol
    if cell.condition is not None:
        return protocol.model_copy(update={"clients": "new"})
    return protocol if cell.stage is None else protocol.model_copy(update={"stage": cell.stage})


def seed_result(cell: Cell, folder: Path) -> SeedResult:
    """A cell's result from a finished run."""
    whole = report.read(folder)
    protocol = protocol_of(cell)
    run = replace(whole, study=whole.study | {"protocol": protocol.model_dump()})
    seconds = float(whole.timings["seconds"].sum())
    rounds, circumstances = int(whole.study["rounds"]), _circumstances(folder)
    if cell.reads == "minutes":
        return SeedResult(seconds / 60, rounds, seconds=seconds, **circumstances)

    def frame(metric: str) -> Any:
        if cell.condition is None:
            return run.last_of(metric)
        new = run.select("new", metric)
        return new[new["client"].map(run.new_clients) == cell.condition]

    of_clients = frame(cell.reads)
    if of_clients.empty:
        raise InputError(f"{folder} has no {cell.reads} of {protocol}: delete the folder and run the recipe again")
    (value,) = per_seed(run, of_clients)
    factor, value_K = 1 if cell.reads in OF_NUMBERS else 100, of_clients.set_index("client")["value"]
    worst = value_K.nlargest if cell.reads in LESS_IS_BETTER else value_K.nsmallest
    facts = {
        "per_client": factor * float(value_K.mean()),
        "per_row": factor * float(np.average(value_K, weights=value_K.index.map(run.test_rows))),
        "client_std": factor * float(value_K.std(ddof=0)),
        "worst_decile": factor * float(worst(max(1, len(value_K) // 10)).mean()),
    }
    for metric in ("accuracy", "calibration_error", "brier", "mae", "r2"):
        if metric != cell.reads and not (mine := frame(metric)).empty:
            facts[metric] = (100 if metric == "accuracy" else 1) * float(mine["value"].mean())
    clients = {int(k): factor * float(v) for k, v in value_K.items()}
    rows = [row for row in report.by_client(run, cell.reads) if row.client in clients]
    low, high = ({r.client: factor * ends[end] for r in rows for ends in r.intervals.values()} for end in (0, 1))
    return SeedResult(factor * value, rounds, facts, clients, low, high, seconds, **circumstances)
