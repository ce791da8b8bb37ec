"""The trials of a search: run in batches, from rung to rung, and kept in its folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from idiolect.core import files
from idiolect.core.documents import read_json, sealed_json
from idiolect.core.errors import InputError
from idiolect.core.objectives import SCORES
from idiolect.data import FederatedData
from idiolect.runs import reader
from idiolect.runs.early_stopping import validation_means
from idiolect.runs.folder import CHECKPOINT_FILE, client_states, files_of_cells
from idiolect.runs.store import Store
from idiolect.simulation import Engine, Job
from idiolect.studies import Study
from idiolect.studies.defences import check_defences
from idiolect.studies.method_use import Use, with_values
from idiolect.studies.runner import manifest_of
from idiolect.studies.schedule import Schedule
from idiolect.studies.trackers import Tracking
from idiolect.tuning.halving import Value, promoted, survivors
from idiolect.tuning.halving import order as rank
from idiolect.tuning.progress import SearchWatcher
from idiolect.tuning.sampler import End, Proposals

TRIALS_FILE = "trials.json"
_Key = tuple[str, int]  # label and number
USUAL_SHARE = 0.2
"""Of each client's training samples that are held out where the study holds none out."""


class Trial(NamedTuple):
    """One trial of a method."""

    method: str
    """The label."""
    number: int
    """From 1."""
    values: dict[str, Any]
    """What was tried, by name."""
    rungs: dict[int, tuple[float, float]]
    """Score (an accuracy is 0..1) and loss (nats) on validation samples, by the rung's round."""
    state: str
    """``complete``, ``stopped`` at a rung, ``diverged``, ``refused`` by the method, or ``running``."""
    said: str = ""
    """Why it diverged or was refused."""
    metric: str = "accuracy"
    """What the score is."""
    end: int | None = None
    """The round after which it stopped early, because of the study's ``patience``."""

    @property
    def rounds(self) -> int:
        """The last rung's round."""
        return max(self.rungs, default=0)

    @property
    def trained(self) -> int:
        """The rounds that it trained, up to its last rung."""
        return self.rounds if self.end is None else min(self.rounds, self.end)

    @property
    def value(self) -> Value:
        """What it reached at its last rung."""
        return Value(*self.rungs[self.rounds], self.number, SCORES[self.metric])


def best(trials: Sequence[Trial]) -> Trial | None:
    """The best of the complete trials; None if there is none."""
    complete = [t for t in trials if t.state == "complete"]
    return min(complete, key=lambda t: rank(t.value), default=None)


def study_of_trials(study: Study, seed: int) -> Study:
    """The study as trials run it: one seed, and nothing but what the choice needs."""
    before = study.protocol
    held_out = before.validation or USUAL_SHARE
    whose = "all" if before.clients == "new" else before.clients
    protocol = before.model_copy(update={"clients": whose, "also": (), "observe": (), "validation": held_out})
    every = study.rounds if protocol.round == "last" else study.evaluation
    return study.model_copy(
        update={
            "name": f"{study.name} trials", "seeds": (seed,), "protocol": protocol, "measures": (),
            "save_predictions": False, "evaluate_every": every,
        }
    )  # fmt: skip


class Trials:
    """Runs the trials of a search.

    Args:
        folder: of the search.
        study: as trials run it.
        federation: its clients, without test samples.
        proposals: what they try.
        ends: the rounds of the rungs.
        halving: one in so many trials goes on after the cut.
        on_rung: called when the trials of a rung are on disk.
    """

    def __init__(
        self, folder: Path, study: Study, federation: FederatedData, proposals: Proposals, ends: Sequence[int],
        halving: int, on_rung: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        self._folder, self._study, self._federation, self._proposals = folder, study, federation, proposals
        self.ends, self._halving, self._on_rung = ends, halving, on_rung
        self._by = federation.score
        self._before = {(t.method, t.number): t for t in read(folder) if t.state != "running"}
        self.trials: list[Trial] = []
        self.where = "before the first trial"
        """How far the search is, for a message."""

    def run(self, engine: Engine, watcher: SearchWatcher, signals: Sequence[int], ends_at: float | None) -> None:
        """Run what is left of all batches.

        Raises:
            RunError: a client failed, a worker died, or the disk is full.
            Interrupted: a signal was received, or the time is over.
        """
        for number in range(max(map(len, self._proposals.sizes.values()))):
            before = list(self.trials)
            batch = list(self._batch(number))
            self.trials = before + [trial for trial, _ in batch]
            if any(trial.state == "running" for trial, _ in batch):
                self._train(number, before, batch, engine, watcher, signals, ends_at)
            elif any((trial.method, trial.number) not in self._before for trial, _ in batch):
                self._write()  # all are refused
            for use in self._study.methods:
                ends = [self._end(t) for t in self.trials[len(before) :] if t.method == use.label]
                self._proposals.tell(use.label, number, ends)

    def _end(self, trial: Trial) -> End:
        rungs = {} if trial.state == "diverged" else trial.rungs
        scores = {n: self._by.sign * score for n, (score, _) in rungs.items()}
        return End(trial.values, scores, trial.state == "complete")

    def _batch(self, number: int) -> Iterator[tuple[Trial, Use]]:
        """The trials of a batch, with what they run: as they ended before, if all of them had; else from the start."""
        each: list[tuple[Trial, Use]] = []
        for use in self._study.methods:
            for k, values in enumerate(
                self._proposals.batch(use.label, number), self._proposals.start(use.label, number) + 1
            ):
                each.append((Trial(use.label, k, values, {}, "running", metric=self._by.metric), use))
        known = [self._before.get((trial.method, trial.number)) for trial, _ in each]
        if all(one is not None and one.values == trial.values for one, (trial, _) in zip(known, each, strict=True)):
            yield from ((one, use) for one, (_, use) in zip(known, each, strict=True) if one is not None)
            return
        for trial, use in each:
            try:
                mine = with_values(use, trial.values, f"{use.label} #{trial.number}")
                job = self._job(mine)
                job.build()
                # an option that is searched may decide
                check_defences([(mine, job)], self._study.protocol, self._study.participation)
            except InputError as error:
                yield trial._replace(state="refused", said=str(error)), use
                continue
            yield trial, mine

    def _job(self, use: Use) -> Job:
        return self._study.job(use, self._study.seeds[0], self._federation)

    def _train(
        self, number: int, before: Sequence[Trial], batch: Sequence[tuple[Trial, Use]], engine: Engine,
        watcher: SearchWatcher, signals: Sequence[int], ends_at: float | None,
    ) -> None:  # fmt: skip
        """Train the trials of a batch from rung to rung."""
        trials = {(t.method, t.number): t for t, _ in batch}
        uses = {(t.method, t.number): use for t, use in batch if t.state == "running"}
        jobs = {key: self._job(use) for key, use in uses.items()}
        study = self._study.with_methods(list(uses.values()))
        manifest = manifest_of(study, self._federation)
        folder = self._folder / f"trials-{number + 1}"
        with closing(Store(folder, study, manifest, resume=folder.exists())) as store:
            schedule = Schedule(store, engine, Tracking(()), ends_at, joins=False)
            alive = list(uses)
            for rung, until in enumerate(self.ends):
                if not alive:  # all have diverged
                    break
                self.where = f"in rung {rung + 1} of {len(self.ends)}, batch {number + 1}"
                watcher.rung(number + 1, rung + 1, until, [(*key, uses[key].label) for key in alive])
                order = _slowest_first(folder, alive, uses) if rung else alive
                schedule.run([jobs[key] for key in order], watcher, signals, until)
                store.merge()
                run = reader.read(folder)
                values = self._values(run, until)
                divergent = {d.method: d for d in store.diverged}
                stops = {label: stop.round for (label, _), stop in run.stopped.items()}
                for key in alive:
                    if (d := divergent.get(uses[key].label)) and d.round <= until:
                        trials[key] = trials[key]._replace(state="diverged", said=f"in round {d.round}: {d.said}")
                    else:
                        trials[key].rungs[until] = values[uses[key].label]
                        trials[key] = trials[key]._replace(end=stops.get(uses[key].label))
                alive = self._next(trials, alive, until, number)
                self.trials = [*before, *trials.values()]
                watcher.ranked(self.trials)
                self._write()
        _forget(folder)

    def _write(self) -> None:
        write(self._folder, self.trials)
        self._on_rung()

    def _next(self, trials: dict[_Key, Trial], alive: Sequence[_Key], until: int, number: int) -> list[_Key]:
        """The trials of a batch that go on after a rung; the others are marked with how they ended."""
        go_on, rung = [], self.ends.index(until)
        for label in dict.fromkeys(method for method, _ in alive):
            mine = [key for key in alive if key[0] == label]
            values = [trials[key].value for key in mine if trials[key].state == "running"]
            count = survivors(self._proposals.sizes[label], self._halving, rung)[number]
            chosen = promoted(values, count) if until < self.ends[-1] else []
            for value in values:
                if value.trial in chosen:
                    go_on.append((label, value.trial))
                else:
                    state = "complete" if until == self.ends[-1] else "stopped"
                    trials[label, value.trial] = trials[label, value.trial]._replace(state=state)
        return [key for key in alive if key in set(go_on)]

    def _values(self, run: reader.Run, until: int) -> dict[str, tuple[float, float]]:
        """Accuracy and loss on validation samples by label: after a round, or in the best round up to it."""
        hostile = run.attackers
        sizes = {k: len(rows) for k, rows in enumerate(self._federation.validation) if k not in hostile}
        records = run.records[run.records["round"] <= until]
        scores, losses = (
            validation_means(records, run.protocol, sizes, ("method", "round"), metric)
            for metric in (self._by.validation, "validation_loss")
        )
        labels = scores.index.get_level_values("method").unique()
        return {label: self._in_round(scores[label].to_dict(), losses[label].to_dict()) for label in labels}

    def _in_round(self, scores: Mapping[int, float], losses: Mapping[int, float]) -> tuple[float, float]:
        last = max(scores)
        if self._study.protocol.round == "best_validation":
            last = max(scores, key=lambda round: (self._by.sign * scores[round], -round))
        return scores[last], losses[last]


def _slowest_first(folder: Path, alive: Sequence[_Key], uses: Mapping[_Key, Use]) -> list[_Key]:
    """The trials by the time that their rounds took: a long one at the end would train alone."""
    seconds = reader.read(folder).timings.groupby("method")["seconds"].mean()
    return sorted(alive, key=lambda key: -seconds.get(uses[key].label, 0.0))


def _forget(folder: Path) -> None:
    """Delete the states of trials that have ended, which can be many times larger than their records."""
    for path in files_of_cells(folder, CHECKPOINT_FILE):
        with suppress(OSError):
            path.unlink()
            shutil.rmtree(client_states(path.parent), ignore_errors=True)


def write(folder: Path, trials: Sequence[Trial]) -> None:
    """Write the trials so far into the folder of a search."""
    files.write(folder / TRIALS_FILE, sealed_json([t._asdict() for t in trials]))


def read(folder: Path) -> list[Trial]:
    """The trials in the folder of a search; empty if none has ended.

    Raises:
        InputError: the file is broken.
    """
    path = folder / TRIALS_FILE
    try:
        rows = read_json(path) if path.exists() else []
        trials = [Trial(**{k: v for k, v in row.items() if k in Trial._fields}) for row in rows]
        return [t._replace(rungs={int(n): (float(a), float(b)) for n, (a, b) in t.rungs.items()}) for t in trials]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} cannot be read ({error}): delete it, and resume the search") from None
