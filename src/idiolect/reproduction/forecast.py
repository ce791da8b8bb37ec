"""What a recipe would run, and how long that takes here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.console import Group
from rich.table import Table

from idiolect import data
from idiolect.core.errors import IdiolectError, option
from idiolect.core.processor import cores
from idiolect.core.terminal import Text
from idiolect.data.partitions.sizes import USUAL_SIZE
from idiolect.report.tables import duration
from idiolect.reproduction.recipes import Cell, Recipe
from idiolect.reproduction.searches import chosen, search_run
from idiolect.reproduction.seed_runs import SeedRun, divergence_message, seed_runs
from idiolect.reproduction.speeds import Speed, Speeds, whole_batches
from idiolect.runs.store import seconds_of_rounds
from idiolect.studies.backbones import is_frozen
from idiolect.studies.config import Study
from idiolect.studies.cost import pace, turns

_UNKNOWN = "the time of a run on data in files, or with clients as they are in the data, is known once it has begun"
_ROUGHLY = " by a rough estimate; a dry run says more"


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
    """What would prevent it from running, or is not in its time."""
    rough: bool = False
    """Whether ``seconds`` is an estimate from a step of the network, not from the method's own speed."""


def forecast(
    cells: Sequence[Cell],
    out: Path,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    workers: int | None = None,
    measure: bool = False,
    known: Callable[[Cell], Collection[int]] = lambda c: (),
) -> list[Planned]:
    """The runs of some cells, each once.

    The time of a run that has started follows from its rounds so far. That of another run follows from its method's
    speed on one core of this machine, if it was measured before, and else from a rough estimate; workers share a round
    evenly.

    Args:
        cells: of a recipe.
        out, rounds, seeds: as for ``reproduce``.
        workers: how many share a round; None for one per core.
        measure: whether methods without a kept speed are measured, each with a round of one client on synthetic
            samples, which is then kept. It takes minutes for large networks.
        known: seeds for which a cell needs no run.
    """
    several = workers or cores()
    speeds = Speeds(measure)
    plans: dict[Path, Planned] = {}
    for c in cells:
        if c.is_open:
            plans |= _plans_of_search(c, out, rounds, seeds, several, speeds)
        if c.study is None:
            plans[Path(c.slug)] = Planned(c.slug, "", 0, 0, 0, 0.0 if c.value else None, "", c.absent or "computed")
        seeds_to_run = [seed for seed in seeds if seed not in known(c)]
        for one in seed_runs(c, out, rounds=rounds, seeds=seeds_to_run):
            if one.folder not in plans:
                try:
                    plans[one.folder] = _plan_of(one, several, speeds)
                except IdiolectError as error:  # a broken folder, or one with another study: the others run
                    plans[one.folder] = _plan(one, 0, None, str(error))
    speeds.keep()
    return list(plans.values())


def _plans_of_search(
    c: Cell, out: Path, rounds: int | None, seeds: Sequence[int], workers: int, speeds: Speeds
) -> dict[Path, Planned]:
    """The search of a cell, and the runs after it, which take about as long whatever is chosen."""

    def runs_of(c: Cell) -> list[SeedRun]:
        return seed_runs(c, out, rounds=rounds, seeds=seeds)

    search = search_run(c, out, rounds=rounds)
    trials = SeedRun(search.study, search.folder)
    try:
        if tuning := search.tuning():
            if (after := chosen(c, tuning)) is not None:
                return {one.folder: _plan_of(one, workers, speeds) for one in runs_of(after)}
            return {search.folder: _plan(trials, search.rounds, 0.0, f"every trial of {search.folder} diverged")}
        first, done = _fresh(trials, workers, speeds), search.done
        rest = None if first.seconds is None else first.seconds * (search.rounds - done) / search.study.rounds
        method = f"{first.method}, {search.plan.trials} trials"
        plans = {
            search.folder: first._replace(
                method=method, seed=search.plan.seed, rounds=search.rounds, done=done, seconds=rest
            )
        }
        for one in runs_of(replace(c, search=None)):
            run = _fresh(one, workers, speeds)
            plans[search.folder / str(one.study.seeds[0])] = run._replace(folder="", method=f"{run.method}, tuned")
        return plans
    except IdiolectError as error:
        return {search.folder: _plan(trials, 0, None, str(error))}


def _plan_of(one: SeedRun, workers: int, speeds: Speeds) -> Planned:
    use, done = one.study.methods[0], one.done
    if divergence_message(one.folder):
        what = f"{use.label} diverged with seed {one.study.seeds[0]}"
        note = f"{what} and is not tried again until {one.folder} is deleted"
        return _plan(one, done, 0.0, note)
    if done >= one.study.rounds:
        return _plan(one, done, 0.0, "")
    if not done:
        return _fresh(one, workers, speeds)
    seconds = pace(seconds_of_rounds(one.folder)) * (one.study.rounds - done)
    return _plan(one, done, seconds, _missing_data(one.study))


def _fresh(one: SeedRun, workers: int, speeds: Speeds) -> Planned:
    """A run from its first round on."""
    study = one.study.of(one.study.methods[0])
    if study.data is not None or study.clients is None:
        return _plan(one, 0, None, _UNKNOWN)
    about = data.describe(str(study.dataset))
    speed = speeds.of(study, about)
    seconds = _cost(study, study.clients, about, speed) / workers
    return _plan(one, 0, seconds, _missing_data(study) or _features(study))._replace(rough=speed.rough)


def _missing_data(study: Study) -> str:
    at_hand = study.data is not None or data.at_hand(str(study.dataset), study.data_dir)
    return "" if at_hand else "its data are not on this machine and would be downloaded"


def _features(study: Study) -> str:
    if not is_frozen(study):
        return ""
    return "what a frozen backbone needs for the features, once for all runs on the same samples, is not in these times"


def _plan(one: SeedRun, done: int, seconds: float | None, note: str) -> Planned:
    study, folder = one.study, str(one.folder)
    return Planned(study.name, study.methods[0].label, study.seeds[0], study.rounds, done, seconds, folder, note)


def _cost(study: Study, clients: int, about: dict[str, Any], speed: Speed) -> float:
    """Seconds on one core: of training, of every evaluation at each of the protocol's stages, and of new clients."""
    protocol = study.protocol
    joining = _joining(study.new_clients, clients)
    rows = _training_rows(study, about, clients) * (1 - protocol.validation)
    samples, work = _samples_of_epoch(study, rows), turns(study, clients - joining)
    each = {
        "personalised": rows * speed.personalised,
        "received": rows * speed.received,
        "trained": samples * speed.training + rows * speed.received,
    }
    evaluation = work.per_evaluation * sum(each[stage] for stage in protocol.stages)
    return (
        work.training * samples * speed.training + work.evaluations * evaluation + joining * rows * speed.personalised
    )


def _joining(new: int | str | None, clients: int) -> int:
    """The number of new clients; each name counts as one."""
    if isinstance(new, str):
        return round(clients * float(new[:-1]) / 100) if new.endswith("%") else len(new.split("+"))
    return new or 0


def _samples_of_epoch(study: Study, rows: float) -> float:
    """Training samples of a client that an epoch uses."""
    return whole_batches(rows, study.batch_size) if study.drop_last else rows


def _training_rows(study: Study, about: dict[str, Any], clients: int) -> float:
    """Training samples of a client on average, without reading the data."""
    total = about["rows"]
    options = study.partition.options
    if study.sizes:
        rows = sum(study.sizes) / len(study.sizes)
    elif "test_size" in options:  # such a partition has a number of samples of its own for training too
        rows = float(USUAL_SIZE)
    else:
        of_all = min(options.get("rows") or total / clients, total / clients)
        rows = of_all * (1 - options.get("test_fraction", 0.2))
    if study.keep is not None:
        rows = min(rows, study.keep) if isinstance(study.keep, int) else rows * study.keep
    return float(rows)


def sentence(rows: Sequence[Planned]) -> str:
    """The rest of a plan in one line; empty if nothing is left."""
    rest = [r for r in rows if r.rounds and r.done < r.rounds and r.seconds != 0.0]
    seconds = [r.seconds for r in rest if r.seconds is not None]
    if not seconds:
        return ""
    many = "1 run is" if len(rest) == 1 else f"{len(rest)} runs are"
    return (
        f"{many} left, about {duration(sum(seconds))} on this machine{_ROUGHLY if any(r.rough for r in rest) else ''}"
    )


def render(recipe: Recipe, rows: Sequence[Planned]) -> Group:
    """The plan for a terminal."""
    runs = [r for r in rows if r.rounds]
    rest = [r.seconds for r in runs if r.seconds]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for header in ("cells", "method"):
        table.add_column(header, overflow="fold")
    for header in ("seed", "rounds", "time"):
        table.add_column(header, justify="right", no_wrap=True)
    for r in runs:
        rounds = f"{r.done} of {r.rounds}" if r.done else str(r.rounds)
        took = "done" if r.done >= r.rounds else "-" if r.seconds is None else duration(r.seconds)
        table.add_row(*map(Text, (r.name, r.method, str(r.seed), rounds, took)))
    many = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
    unknown = [r for r in runs if r.seconds is None]
    if not unknown:
        none = "Nothing is left to run."
    else:
        none = "Nothing can run yet." if any(r.note != _UNKNOWN for r in unknown) else "No time is known yet."
    below = [f"{many}, about {duration(sum(rest))} on this machine." if rest else none]
    fresh = [r.rough for r in runs if r.seconds and not r.done]
    estimates, measurements = fresh.count(True), fresh.count(False)
    if estimates:
        below.append(
            f"{estimates} of these times are rough estimates, which may be three times too long or too short: a "
            "training step of each network was timed here, and methods are taken to need as much more than FedAvg as "
            f"on another machine. {option('measure', True)} times each method here, in minutes, and keeps its speed."
        )
    if measurements:
        below.append(f"{measurements} of these times are from speeds that were measured on this machine.")
    if calculations := sum(r.note == "computed" for r in rows):
        below.append(f"{calculations} cells are computed without training.")
    below += [f"Note: {n.rstrip('.')}." for n in dict.fromkeys(r.note for r in rows) if n and n != "computed"]
    below += [f"Assumed: {a}" for a in recipe.assumptions]
    head = Text(f"{recipe.name}: {recipe.title}\n")
    return Group(head, *([table] if runs else []), Text("\n".join(["", *below])))
