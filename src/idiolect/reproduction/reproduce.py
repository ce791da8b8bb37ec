"""Reproducing a recipe: its cells' runs, one after another and resumed, and what they show beside the paper's numbers.

A run is of one method with one seed, in a folder of its own that is named after what it computes, so that cells of
different tables share it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from idiolect import engines, methods, report
from idiolect.core import files
from idiolect.core.documents import read_json
from idiolect.core.errors import InputError, Interrupted, RunError, option
from idiolect.report.tables import per_seed
from idiolect.reproduction.recipes import Cell, Recipe, named
from idiolect.runs import checkpoint
from idiolect.runs.store import computed, difference, joined_rounds, sittings
from idiolect.studies.config import Study, labelled
from idiolect.studies.progress import Watcher
from idiolect.studies.runner import run
from idiolect.studies.trackers import Make, Tracking

MARGIN = 1.5  # points within which a number counts as the paper's
SEEDS = 3  # from which on an interval counts: that of two is some ten points wide, which would match anything
Status = Literal["matches", "differs", "measured", "trial", "under way", "not run", "diverged", "failed", "no data"]


def digest(study: Study) -> str:
    """A name for what a study computes: the same for studies that differ in their name alone.

    Settings and options at their defaults do not count, so that a new one renames no run. Whether a folder of this name
    holds this very study is asked besides.
    """
    usual = Study.model_construct(methods=()).model_dump(exclude={"name", "methods"})
    told = computed(study) | {"protocol": study.protocol.model_dump(exclude_defaults=True)}
    settings = {k: v for k, v in told.items() if k in usual and v != usual[k]}
    uses = [labelled(u.name, u.options) for u in study.methods]
    text = json.dumps(_plain([settings, uses]), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """With whole numbers as such, so that 20 and 20.0 are the same."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Part(NamedTuple):
    """One run: a method with a seed."""

    study: Study
    folder: Path

    @property
    def done(self) -> int:
        """Rounds on disk.

        Raises:
            InputError: the folder holds another study, as of a version with other defaults.
        """
        there = self.folder / "study.yaml"
        if there.exists() and (differs := difference(computed(Study.look(there)), computed(self.study))):
            raise InputError(
                f"{self.folder} holds another study ({differs}): move it away, or name another with {option('out')}"
            )
        checkpoints = self.folder.glob("cells/*/checkpoint.safetensors")
        return max((checkpoint.rounds(path) for path in checkpoints), default=0)

    @property
    def finished(self) -> bool:
        """Whether all rounds are on disk and what they measured stands in the run's records, which are joined last.

        Raises:
            InputError: as ``done``.
        """
        return min(self.done, joined_rounds(self.folder)) >= self.study.rounds


def parts(cell: Cell, out: Path, *, rounds: int | None = None, seeds: Sequence[int] = (0,)) -> list[Part]:
    """The runs of a cell, one for each seed; none where it needs no training."""
    if cell.study is None:
        return []
    more = {} if rounds is None else {"rounds": rounds}
    found = []
    for seed in seeds:
        study = cell.study.model_copy(update={"seeds": (seed,), **more})
        use = study.methods[0]
        found.append(Part(study, out / f"{study.dataset}-{use.name}-{digest(study)}"))
    return found


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


def reproduce(
    cells: Sequence[Cell],
    out: Path,
    *,
    rounds: int | None = None,
    seeds: Sequence[int] = (0,),
    engine: str = "auto",
    workers: int | None = None,
    budget: float | None = None,
    watcher: Callable[[], Watcher] | None = None,
    track: Sequence[str | Make] = (),
    told: Callable[[str], None] = lambda text: None,
) -> Iterator[Outcome]:
    """Run what cells still need, seed by seed so that every cell has one number early, and give each one's outcome.

    Args:
        cells: of a recipe.
        out: folder of the runs' folders.
        rounds: in place of the paper's.
        seeds: of every cell.
        engine, workers: as for ``run``.
        budget: seconds after which nothing more is begun and what is under way stops at its last whole round.
        watcher: shows each run.
        track: experiment trackers that each run tells, as for ``run``.
        told: is given a line before each run, and a sentence for each that cannot be done.

    Raises:
        InputError: there is no such engine or tracker.
        Interrupted: a signal came; whole rounds are on disk.
    """
    engines.engine(engine, workers)
    Tracking(track)
    ends = None if budget is None else time.monotonic() + budget
    said: dict[Path, tuple[Status, str]] = {}
    todo = {part.folder: part for seed in seeds for c in cells for part in parts(c, out, rounds=rounds, seeds=[seed])}
    for number, part in enumerate(todo.values(), 1):
        try:
            if part.finished or diverged(part.folder):
                continue
            if ends is not None and time.monotonic() > ends:
                told("the budget is spent: the same command goes on from here")
                break
            use, seed = part.study.methods[0], part.study.seeds[0]
            told(f"{number} of {len(todo)}: {part.study.name}, {use.label}, seed {seed}, in {part.folder}")
            left = None if ends is None else ends - time.monotonic()
            show = watcher() if watcher else None
            result = run(
                part.study, part.folder, engine=engine, workers=workers, resume=True, watcher=show, budget=left,
                track=track,
            )  # fmt: skip
            if result.diverged:
                told(f"diverged: it is not tried again until {part.folder} is deleted")
        except RunError as error:
            with suppress(InputError):  # a folder that broke on the way
                if part.finished:
                    told(f"all is measured, but {_alone(error)}")
                    continue
            said[part.folder] = "failed", _alone(error)
            told(f"failed: {_alone(error)}; the same command tries it again")
        except InputError as error:
            said[part.folder] = "no data", str(error)
            told(str(error))
        except Interrupted as error:
            if ends is None or time.monotonic() < ends:
                where = str(error).partition(";")[0]
                raise Interrupted(f"{where}; the same command goes on from here", error.signal) from None
    for c in cells:
        try:
            yield outcome(c, parts(c, out, rounds=rounds, seeds=seeds), said)
        except InputError as error:  # a broken folder, or another study's
            yield Outcome(c, "no data", said=str(error), to_retry=True)


def _alone(error: RunError) -> str:
    """What happened, without what to do about it in a run of one's own, which ``run`` adds."""
    return str(error.__cause__ if isinstance(error.__cause__, RunError) else error)


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


def diverged(folder: Path) -> str | None:
    """Where training diverged in a run of this folder, if it did.

    Raises:
        InputError: its note of that cannot be read.
    """
    return next((found.said for found in report.divergences(folder)), None)


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
    """The protocol of a cell's number: its study's, or of that the moment or the new clients that the cell is about."""
    assert cell.study is not None
    protocol = cell.study.protocol
    if cell.condition is not None:
        return protocol.model_copy(update={"clients": "new"})
    return protocol if cell.moment is None else protocol.model_copy(update={"moment": cell.moment})


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
        joined = found.select("joined", metric)
        return joined[joined["client"].map(found.joins) == cell.condition]

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


def together(
    cells: Sequence[Cell], out: Path, *, rounds: int | None = None, seeds: Sequence[int] = (0,), whole: bool = False
) -> list[report.Run]:
    """What has been measured so far of some cells, as the report draws it (see ``beside``).

    Args:
        cells: of a recipe.
        out, rounds, seeds: of their runs, as for ``reproduce``.
        whole: leave out runs that are not through.
    """
    there = [(c, part) for c in cells if c.condition is None for part in parts(c, out, rounds=rounds, seeds=seeds)]
    return beside(
        (c, report.read(part.folder))
        for c, part in there
        if (part.folder / "records.parquet").exists() and (part.finished or not whole)
    )


def beside(those: Iterable[tuple[Cell, report.Run]]) -> list[report.Run]:
    """The methods of one setting in one run, which is called by what its cells share; their labels are ``labels``."""
    runs: dict[str, list[tuple[Cell, report.Run]]] = {}
    for c, its in those:
        runs.setdefault(_setting(c), []).append((c, its))
    found = []
    for all_ in runs.values():
        cells = [c for c, _ in all_]
        whole = reduce(_joined, (_as_cell(c, its, _called(c, cells)) for c, its in all_))
        shared = {k: v for k, v in cells[0].where.items() if all(c.where.get(k) == v for c in cells)}
        found.append(replace(whole, name=named(shared)))
    return found


def labels(cells: Iterable[Cell]) -> list[str]:
    """What cells are called in the report: by their method, and where one setting has it several times, by what tells
    these cells apart, too.
    """
    settings: dict[str, list[Cell]] = {}
    for c in cells:
        if c.study is not None and c.condition is None:
            settings.setdefault(_setting(c), []).append(c)
    return list(dict.fromkeys(_called(c, some) for some in settings.values() for c in some))


def _setting(c: Cell) -> str:
    """What a cell's method is run on; its learning rate is the method's own."""
    assert c.study is not None
    own = {"name", "seeds", "methods", "protocol", "lr"}
    return json.dumps(c.study.model_dump(exclude=own), default=str)


def _called(c: Cell, others: Sequence[Cell]) -> str:
    """A cell's method, and where cells of one setting have it with other options, the conditions that differ."""
    assert c.study is not None
    method = c.where.get("method", c.study.methods[0].label)
    same = [o.where for o in others if o.where.get("method") == method]
    more = [f"{k}={v}" for k, v in c.where.items() if any(w.get(k) != v for w in same)]
    return " ".join(map(str, [method, *more]))


def page(recipe: Recipe, runs: list[report.Run], out: Path, head: report.Head | None = None) -> Path | None:
    """Write the page of a recipe's runs (see ``together``) into their folder; None where there are none."""
    return report.draw(runs, out / f"{recipe.name.replace('/', '-')}.html", head) if runs else None


def export(
    recipe: Recipe, form: Literal["latex", "csv", "png"], runs: Sequence[report.Run], head: report.Head, out: Path
) -> list[Path]:
    """Write the table of a recipe, or every figure, into its folder in ``out``; nothing where there is none.

    Args:
        recipe: what was reproduced.
        form: of the file.
        runs: what is drawn (see ``together``).
        head: the table.
        out: folder of the runs' folders.

    Raises:
        RunError: a file cannot be written.
    """
    folder = out / recipe.name.replace("/", "-")
    if form == "png":
        return report.pictures(runs, folder)
    if not head.rows:
        return []
    path = folder / report.TABLES[form]
    files.write(path, {name.lower(): text for name, text in head.copied}[form])
    return [path]


def _as_cell(c: Cell, run: report.Run, label: str) -> report.Run:
    """A run with its method called as the cell has it; what it is measured by counts as the personal model."""
    (use,) = run.study["methods"]
    name = str(c.where.get("method", use["name"]))
    where = {k: v for k, v in c.where.items() if k != "method"}
    protocol = protocol_of(c)
    kept = run.records[run.records["moment"].isin([protocol.moment, "joined", "local", "server", "wire"])]
    about = dict(run.manifest["methods"][use["label"]])
    if name in methods.names():  # by its name alone: the options are the table's
        entry = methods.get(name)
        about = {"name": name, "title": entry.title, "summary": entry.summary}
    return replace(
        run,
        study=run.study
        | {
            "protocol": protocol.model_copy(update={"moment": "adapted", "also": ()}).model_dump(),
            "methods": [use | {"label": label, "name": name, "where": where}],
        },
        manifest=run.manifest | {"methods": {label: about}},
        records=kept.assign(method=label, moment=kept["moment"].replace(protocol.moment, "adapted")),
        timings=run.timings.assign(method=label),
        diverged=tuple(d._replace(method=label) for d in run.diverged),
    )


def _joined(a: report.Run, b: report.Run) -> report.Run:
    """Two runs of one setting as one."""
    return replace(
        a,
        study=a.study
        | {
            "seeds": sorted({*a.study["seeds"], *b.study["seeds"]}),
            "methods": [*a.study["methods"], *(u for u in b.study["methods"] if u not in a.study["methods"])],
        },
        manifest=a.manifest | {"methods": a.manifest["methods"] | b.manifest["methods"]},
        records=pd.concat([a.records, b.records], ignore_index=True).drop_duplicates(),
        timings=pd.concat([a.timings, b.timings], ignore_index=True).drop_duplicates(),
        diverged=tuple(dict.fromkeys([*a.diverged, *b.diverged])),
    )


def keep(recipe: Recipe, found: Outcome, folder: Path) -> Path | None:
    """Write a measured cell as ``folder/RECIPE/CELL.json``; a reason that stands there for the same study stays.

    Returns:
        Where, or None where there is nothing to keep: no number, or one of more seeds stands there.

    Raises:
        InputError: the file that stands there is broken.
        RunError: it cannot be written.
    """
    if found.status not in ("matches", "differs", "measured", "diverged"):
        return None
    path = folder / recipe.name / f"{found.cell.slug}.json"
    try:
        before = read_json(path) if path.exists() else {}
        if not isinstance(before, dict):
            raise ValueError("it holds no mapping")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): mend it, or delete it") from None
    seeds = {str(k): v for k, v in (found.seeds or {}).items()}
    hashed = None if found.cell.study is None else digest(found.cell.study)
    same = before.get("hash") == hashed
    if same and len(before.get("seeds", {})) > len(seeds):
        return None
    content = {
        "recipe": recipe.name,
        "where": dict(found.cell.where),
        "published": found.cell.published,
        "published_std": found.cell.std,
        "measured": found.value,
        "interval": found.interval,
        "seeds": seeds,
        "difference": found.difference,
        "facts": dict(found.facts or {}),
        "protocol": found.protocol,
        "rounds": found.rounds,
        "seconds": round(found.seconds, 1),
        "machine": found.machine,
        "versions": dict(found.versions or {}),
        "study": None if found.cell.study is None else _settings(found.cell.study),
        "hash": hashed,
        "verdict": found.status,
        "because": before.get("because", "") if same else "",
        "said": found.said,
    }
    files.write(path, json.dumps(_rounded(content), indent=1, ensure_ascii=False) + "\n")
    return path


def _settings(study: Study) -> dict[str, Any]:
    """A study as its file has it, without what is usual."""
    written: dict[str, Any] = study.model_dump(mode="json", exclude_defaults=True)
    return written | {"methods": [u.model_dump(mode="json") for u in study.methods]}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value
