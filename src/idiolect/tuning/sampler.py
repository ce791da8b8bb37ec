"""Which settings are tried: the first half of the trials spread over the ranges, the rest where Optuna proposes.

Every method has a study of Optuna, in one storage in the folder of the search. A proposal depends on the seed, the
method, the trial's number and the results of the batches before, so that a search that was stopped goes on as if it
had not been.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from idiolect.core import keys
from idiolect.core.errors import InputError, nearest
from idiolect.tuning.space import Choice, Interval, Range, Space, grid, size

if TYPE_CHECKING:
    import optuna

    Sampler = Callable[[int], optuna.samplers.BaseSampler]

STORAGE_FILE = "optuna.db"
_DRAWS = 1000  # for a setting that was not tried; a range that has one value twice has fewer than its size says
SAMPLERS = ("tpe", "gp", "random")
"""Of Optuna the tree-structured Parzen estimator and Gaussian processes; random stays with the first half's way."""


def batches(trials: int, sampler: object) -> tuple[int, ...]:
    """How many trials are proposed at once: all, or the half, and the rest when its results are known.

    >>> batches(20, "tpe"), batches(5, "gp"), batches(20, "random"), batches(1, "tpe")
    ((10, 10), (3, 2), (20,), (1,))
    """
    first = trials if sampler == "random" else -(-trials // 2)
    return (first, trials - first) if first < trials else (trials,)


def spread(seed: int, space: Space, count: int) -> list[dict[str, Any]]:
    """Settings that fill the ranges evenly: in each range one value in each of ``count`` parts (a latin hypercube).

    All settings of a space that has no more than ``count``. A range gives the same values whatever the others are, so
    that methods which train alike share trials; but where lists give a setting twice, another takes its place.
    """
    if size(space) <= count:
        return grid(space)
    columns = {}
    for name, one in space.items():
        draw = keys.generator(seed, "search", name)
        columns[name] = [one.at(u) for u in (draw.permutation(count) + draw.random(count)) / count]
    settings: list[dict[str, Any]] = []
    for k in range(count):
        settings.append(_fresh({name: column[k] for name, column in columns.items()}, space, settings, seed, "spread"))
    return settings


class Proposals:
    """The trials of a search, in Optuna's storage once they have ended.

    Args:
        folder: of the search.
        spaces: the ranges of each method.
        trials: of each method.
        sampler: one of ``SAMPLERS``, or a function from a seed to a sampler of Optuna.
        seed: of the search.

    Raises:
        InputError: Optuna is not installed, there is no such sampler, or the storage is of another search.
    """

    def __init__(
        self, folder: Path, spaces: Mapping[str, Space], trials: int, sampler: str | Sampler, seed: int
    ) -> None:
        self._spaces, self._seed = spaces, seed
        self._sampler = _sampler(sampler) if isinstance(sampler, str) else sampler
        self.sizes = {label: _sizes(space, trials, sampler) for label, space in spaces.items()}
        """How many trials each method has in each batch."""
        self._spread = {label: spread(seed, space, self.sizes[label][0]) for label, space in spaces.items()}
        path = folder / STORAGE_FILE
        if not path.exists():
            self._open(path, new=True)
        self._studies = self._open(path)

    def _open(self, path: Path, new: bool = False) -> dict[str, optuna.Study]:
        """The methods' studies in a file; a new one is made beside it, and appears whole."""
        optuna, studies = load(), {}
        file = path.with_name(f".{path.name}") if new else path
        try:
            if new:
                file.unlink(missing_ok=True)
            with _quiet():
                storage = _storage(file)
                _without_waiting(storage.engine)
                for label, space in self._spaces.items():
                    ranges = {name: str(one) for name, one in space.items()}
                    if new:
                        optuna.create_study(study_name=label, storage=storage, direction="maximize").set_user_attr(
                            "ranges", ranges
                        )
                    studies[label] = optuna.load_study(study_name=label, storage=storage)
                    if studies[label].user_attrs.get("ranges") != ranges:
                        raise KeyError(label)
                if new:
                    storage.engine.dispose()
                    file.rename(path)
        except KeyError as error:
            what = f"{path} is of another search, with other ranges or without method {error}"
            raise InputError(f"{what}: choose another folder") from None
        except Exception as error:  # noqa: BLE001  of Optuna, SQLAlchemy or SQLite
            reason = str(error).partition("\n")[0][:120]
            what, fix = ("written", "choose another folder") if new else ("used", "delete it, and resume the search")
            raise InputError(f"{path} cannot be {what} ({reason}): {fix}") from None
        return studies

    def start(self, label: str, number: int) -> int:
        """How many trials a method has in the batches before this one."""
        return sum(self.sizes[label][:number])

    def batch(self, label: str, number: int) -> list[dict[str, Any]]:
        """The settings of a method's trials in a batch 0, 1, ...; all trials of the batches before have been told."""
        sizes, space = self.sizes[label], self._spaces[label]
        if number >= len(sizes):
            return []
        if number == 0:
            return self._spread[label]
        start = self.start(label, number)
        optuna, distributions = load(), {name: _distribution(one) for name, one in space.items()}
        proposals: list[dict[str, Any]] = []
        with _quiet():
            before = self._studies[label].get_trials()[:start]
            for trial in range(start, start + sizes[number]):
                sampler = self._sampler(keys.number(self._seed, "search", label, trial) % 2**32)
                memory = optuna.create_study(direction="maximize", sampler=sampler)
                memory.add_trials([*before, *(_trial(values, distributions, "RUNNING") for values in proposals)])
                asked = memory.ask(distributions).params
                values = {name: _near(one, asked[name]) for name, one in space.items()}
                proposals.append(_fresh(values, space, [*(t.params for t in before), *proposals], self._seed, label))
        return proposals

    def tell(self, label: str, number: int, ends: Sequence[End]) -> None:
        """Write how the trials of a batch have ended, in their order; those that are in the storage stay."""
        study, distributions = self._studies[label], {n: _distribution(one) for n, one in self._spaces[label].items()}
        start = self.start(label, number)
        with _quiet():
            there = len(study.get_trials())
            for end in ends[max(0, there - start) :]:
                state = "FAIL" if not end.rungs else "COMPLETE" if end.complete else "PRUNED"
                study.add_trial(_trial(end.values, distributions, state, end.rungs))


class End(NamedTuple):
    """How a trial ended."""

    values: dict[str, Any]
    rungs: dict[int, float]
    """Its validation accuracy after each rung's round; empty if it diverged or was refused."""
    complete: bool
    """Whether it reached the last round."""


def load() -> Any:
    """Optuna.

    Raises:
        InputError: it is not installed.
    """
    try:
        with _quiet():  # of tqdm, where ipywidgets are not installed
            import optuna
    except ImportError:
        raise InputError("a search needs Optuna: pip install 'idiolect[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def _storage(path: Path) -> Any:
    """Optuna's storage in a file of SQLite.

    The file is opened here, because Optuna and SQLAlchemy read what follows a ``?``, and braces, in another way.
    """
    from sqlalchemy.pool import QueuePool

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, check_same_thread=False)

    return load().storages.RDBStorage("sqlite://", engine_kwargs={"creator": connect, "poolclass": QueuePool})


def _without_waiting(engine: Any) -> None:
    """Let SQLite leave it to the system when the disk is written: what a search continues from is in its own files."""
    from sqlalchemy import event

    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous = OFF"))
    engine.dispose()  # connections of before


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warnings of Optuna about what is experimental in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _sizes(space: Space, trials: int, sampler: object) -> tuple[int, ...]:
    """Batches of one method: one trial where nothing is searched, and a finite space once at the most."""
    return (1,) if not space else (int(size(space)),) if size(space) <= trials else batches(trials, sampler)


def check_sampler(sampler: str | Sampler) -> None:
    """Check that there is such a sampler.

    Raises:
        InputError: there is not, or Optuna is not installed.
    """
    if isinstance(sampler, str):
        _sampler(sampler)


def _sampler(name: str) -> Sampler:
    if name not in SAMPLERS:
        raise InputError(f"unknown sampler {name!r}; {nearest(name, SAMPLERS)}")
    samplers = load().samplers
    if name == "gp":
        return lambda seed: samplers.GPSampler(seed=seed, n_startup_trials=0, deterministic_objective=True)
    return lambda seed: samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True, constant_liar=True)


def _distribution(one: Range) -> Any:
    distributions = load().distributions
    if isinstance(one, Choice):
        return distributions.CategoricalDistribution(one.values)
    if one.whole:
        return distributions.IntDistribution(int(one.low), int(one.high), log=one.log)
    return distributions.FloatDistribution(one.low, one.high, log=one.log)


def _fresh(values: dict[str, Any], space: Space, taken: Sequence[Any], seed: int, path: str) -> dict[str, Any]:
    """The values, or others if they have been taken, which happens where ranges are lists: a trial is no repetition."""
    draw = keys.generator(seed, "search", path, "fresh", len(taken))
    for _ in range(_DRAWS):
        if values not in taken:
            break
        values = {name: one.at(u) for (name, one), u in zip(space.items(), draw.random(len(space)), strict=True)}
    return values


def _near(one: Range, value: Any) -> Any:
    return one.near(value) if isinstance(one, Interval) and not one.whole else value


def _trial(
    values: Mapping[str, Any], distributions: Mapping[str, Any], state: str, rungs: Mapping[int, float] | None = None
) -> Any:
    trials = load().trial
    kind = getattr(trials.TrialState, state)
    rungs = rungs or {}
    value = rungs[max(rungs)] if state == "COMPLETE" else None
    return trials.create_trial(
        state=kind, params=dict(values), distributions=dict(distributions), value=value,
        intermediate_values=dict(rungs),
    )  # fmt: skip
