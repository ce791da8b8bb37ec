"""Which method for which client: a measure of every client under every method, and which differences are no chance."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from idiolect.core.arrow_tables import to_frame
from idiolect.core.errors import InputError, listed, nearest
from idiolect.core.objectives import number
from idiolect.core.rounding import significant
from idiolect.report.common_clients import names
from idiolect.report.measures import LESS_IS_BETTER, OF_NUMBERS, class_of, everybody, requested, why_missing, words
from idiolect.report.rows import summary
from idiolect.runs import predictions
from idiolect.runs.folder import PREDICTIONS_FILE
from idiolect.runs.reader import Part, Run, part_of
from idiolect.statistics.conformal import LEVEL
from idiolect.statistics.intervals import wilson

# M methods, S seeds, K clients, R test samples of all clients

_LEVEL = 0.05
PER_CLASS = re.compile(r"(\w+)\[(\d+)\]")
"""A metric of one class, as ``recall[3]``."""


class OfClient(NamedTuple):
    """A client under every method, in the protocol's round: the means over seeds."""

    client: int
    name: str
    """Its name, or its number as text."""
    samples: int
    """How many samples it is measured on."""
    values: dict[str, float]
    """By label; methods without a value are left out."""
    intervals: dict[str, tuple[float, float]]
    """95 % intervals by label: Wilson's for a proportion of samples, for others those that were recorded."""
    best: str
    """The label of the method with the best mean, the first of equal ones; "" if no method has a value."""
    alike: tuple[str, ...] | None
    """The other methods that cannot be told apart from the best (see ``by_client``); None if that is not tested."""
    missing: str = ""
    """Why some methods, or all, have no value; "" if all have one."""
    part: Part = "test"
    """Which samples."""


def by_client(run: Run, measure: str | None = None) -> list[OfClient]:
    """A row for each client of the protocol, with the methods that have results of the latest round or stopped early.

    A client without a value of the measure has a row that says why. Two methods are compared on the same test samples
    by McNemar's exact test. It needs the samples that only one of them has right. Where predictions were saved, these
    are counted. Otherwise only the two numbers of right samples are known, and the p-value is the largest of all that
    are possible with them. Of several seeds, the p-value is twice the mean of the seeds' (see ``compare.combined``). A
    method can be told apart from the best of M if p < 0.05 / (M - 1). So for one seed, the best method and those alike
    contain the trained model that is truly best for the client with a probability of at least 95 %. This says nothing
    about other seeds.

    Args:
        run: the run.
        measure: a metric of test samples that the run recorded, as ``accuracy``, ``macro_f1`` or ``recall[3]``, or
            ``validation_accuracy``; None is the score of the run's samples.

    Raises:
        InputError: the run did not record the measure, or has no results yet.

    Source: McNemar, 1947. The level: comparisons with the best (Hsu, 1981), by Bonferroni's inequality.
    """
    measure = measure or run.metric
    table, sizes = _Table(run, measure), run.sizes_of(part_of(measure))
    p_MK = table.p_values() if table.size_K is not None else None
    client_names, ends_of = names(run), table.intervals()
    rows = []
    for k, client in enumerate(table.clients):
        there = [m for m in range(len(table.labels)) if not np.isnan(table.mean_MK[m, k])]
        best = table.labels[int(table.best_K[k])] if there else ""
        alike = None
        if p_MK is not None:
            others = [m for m in there if table.labels[m] != best]
            alike = tuple(table.labels[m] for m in others if p_MK[m, k] * (len(there) - 1) >= _LEVEL)
        without = [run.titles[label] for m, label in enumerate(table.labels) if m not in there]
        why = why_missing(run, client, measure) if without else ""
        rows.append(
            OfClient(
                client,
                client_names[client],
                sizes[client],
                {table.labels[m]: float(table.mean_MK[m, k]) for m in there},
                {table.labels[m]: ends for m in there if (ends := ends_of(m, k)) is not None},
                best,
                alike,
                f"{why} of {listed(without)}" if there and why == "no results" else why,
                part_of(measure),
            )
        )
    return rows


def mcnemar(only_best: NDArray[np.float64], only_other: NDArray[np.float64]) -> NDArray[np.float64]:
    """The p-value of McNemar's exact test that the best is better, one-sided: P(Binomial(both, 1/2) >= only_best).

    Args:
        only_best: the number of samples that only the best has right.
        only_other: the number of samples that only the other has right.
    """
    from scipy.special import bdtrc  # slow to import

    return np.asarray(bdtrc(only_best - 1, (only_best + only_other).astype(int), 0.5))


def most_discordant(
    best: NDArray[np.float64], other: NDArray[np.float64], size: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest possible numbers of samples that only one of two has right, from how many each has right.

    If the best has at least as many right, no other numbers give a larger p-value.
    """
    return np.minimum(best, size - other), np.minimum(other, size - best)


class Shown(NamedTuple):
    """The table of clients as the page shows it."""

    measure: str
    """In words."""
    part: Part
    """Of which samples."""
    labels: list[str]
    rows: list[OfClient]
    note: str
    folded: bool
    form: Callable[[float], str]
    """A value as text."""
    unit: str
    """In brackets, after a space; "" for none."""


_HOW = {
    "auroc": " of DeLong, on the logit scale (none if a class has one sample, or if no sample is misplaced)",
    "mse": " of Student's t over the samples' squared errors",
}
_RATE = ", which allows for the choice of the threshold and is wide with few test samples"
_OPEN = 20  # clients whose table is not folded away


def shown(run: Run, sample: Callable[[Collection[int]], list[int]]) -> list[Shown]:
    """The tables of clients for the page: of the score, and of what the study asks for that is not of one class.

    ``sample`` chooses the clients that are shown.
    """
    unknown = _why_unknown(run, run.metric)
    how = (
        f"the largest p-value of McNemar's exact test that the numbers of right samples allow, because {unknown}"
        if unknown
        else "McNemar's exact test on the saved predictions"
    )
    lines_of_clients, samples = [], f"{run.part} samples"
    for metric in asked(run) if len(run.final) else ():
        if PER_CLASS.fullmatch(metric):
            continue
        every = by_client(run, metric)
        sample_of_clients = set(sample([row.client for row in every]))
        rows = [row for row in every if row.client in sample_of_clients]
        note = "In bold: the client's best method."
        if any(row.intervals for row in rows) and rows[0].alike is None:
            note += f" In small type: the 95 % interval{_HOW.get(metric, _RATE)}; it is about other {samples}."
        if rows[0].alike is not None:
            note += (
                f" ≈: cannot be told apart from it on this client's {samples} ({how}, at 5 % divided by the number of "
                f"other methods). In small type: Wilson's 95 % interval, which is about other {samples} of this client."
            )
        if len(rows) < len(every):
            some = f"A sample of {len(rows):,} of {len(every):,} clients"
            note += f" {some}; idiolect report RUN --export clients writes all."
        labels = [label for label in run.titles if any(label in row.values for row in rows)]
        form, unit = (number, "") if metric in OF_NUMBERS else (_percent, " (%)")
        lines_of_clients.append(Shown(words(metric), run.part, labels, rows, note, len(rows) > _OPEN, form, unit))
    return lines_of_clients


def _why_unknown(run: Run, measure: str) -> str:
    """Why it is not known which samples each method has right, in words that follow "because"; "" if it is."""
    if run.folder is None or not (run.folder / PREDICTIONS_FILE).exists():
        return "the predictions were not saved"
    if part_of(measure) == "validation":
        return "the saved predictions are of test samples"
    if run.protocol.threshold != "half":
        return "the saved predictions are probabilities, without each client's threshold"
    return "" if run.protocol.round == "last" else "the saved predictions are of the last round"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def frame(rows: Iterable[OfClient]) -> pd.DataFrame:
    """The rows as a table: a line for each client, indexed by its number.

    Columns: ``name``; ``test_samples``, or ``validation_samples`` where these are measured; for each method its label,
    and ``LABEL low`` and ``LABEL high`` if there are intervals; ``best``; ``alike``, labels joined by ``"; "`` (missing
    if not tested); ``missing``, why a value is not there.
    """
    rows = list(rows)
    labels = dict.fromkeys(label for row in rows for label in row.values)
    has_intervals = any(row.intervals for row in rows)
    lines = []
    for row in rows:
        line: dict[str, object] = {"name": row.name, f"{row.part}_samples": row.samples}
        for label in labels:
            line[label] = row.values.get(label)
            if has_intervals:
                line[f"{label} low"], line[f"{label} high"] = row.intervals.get(label, (None, None))
        lines.append(line | {"best": row.best, "alike": None if row.alike is None else "; ".join(row.alike)})
        lines[-1]["missing"] = row.missing
    return pd.DataFrame(lines, index=pd.Index([row.client for row in rows], name="client"))


def asked(run: Run) -> list[str]:
    """The metrics that a run's table of clients is made for: the score, and the other measures."""
    there = _metrics(run)
    measures = [run.metric]
    for name in requested(run):
        of_class = [m for m in there if (of := PER_CLASS.fullmatch(m)) and of[1] == name]
        measures += of_class if name == "recall" else [name]
    return measures


def _metrics(run: Run) -> list[str]:
    """The metrics that the run has at the protocol's stage."""
    stage = "new" if run.protocol.clients == "new" else run.protocol.stage
    return run.records.loc[run.records["stage"] == stage, "metric"].unique().tolist()


def _merit(measure: str, value_MK: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values of a measure such that more is better: the coverage nearest to the level of the intervals is best."""
    name = measure.removeprefix("validation_").partition("[")[0]
    if name == "coverage":
        return -np.abs(value_MK - LEVEL)
    return -value_MK if name in LESS_IS_BETTER else value_MK


class _Table:
    """The values of a measure: of each method, seed and client."""

    def __init__(self, run: Run, measure: str) -> None:
        self.run, self.measure = run, measure
        records = run.last_of(measure)
        with_results = [row for row in summary(run) if row.label in set(run.final["method"])]
        last = max((row.rounds for row in with_results), default=0)
        latest = [row.label for row in with_results if row.rounds == last or row.stopped is not None]
        nobody = records.empty and measure in requested(run)
        self.labels = [label for label in latest if nobody or label in set(records["method"])]
        if not self.labels:
            what = f"the run {run.name} has no {measure!r} of its clients"
            there = _metrics(run)
            raise InputError(f"{what}: finish it first" if measure in there else f"{what}; {nearest(measure, there)}")
        records = records[records["method"].isin(self.labels)]
        self.clients = everybody(run, measure)
        self.seeds: list[int] = sorted((run.final if nobody else records)["seed"].unique().tolist())
        self.value_MSK = self._values(records)
        self.mean_MK = significant(_mean(self.value_MSK))
        self.best_K = np.where(np.isnan(self.mean_MK), -np.inf, _merit(measure, self.mean_MK)).argmax(0)
        self.size_K = self._sizes()

    def _values(self, records: pd.DataFrame) -> NDArray[np.float64]:
        """Values of methods, seeds and clients; NaN if there is none."""
        index = pd.MultiIndex.from_product([self.labels, self.seeds, self.clients])
        values = records.set_index(["method", "seed", "client"])["value"].reindex(index)
        return values.to_numpy(float).reshape(len(self.labels), len(self.seeds), len(self.clients))

    def intervals(self) -> Callable[[int, int], tuple[float, float] | None]:
        """The interval of a method and a client, by their places: Wilson's, or the mean of those recorded."""
        if self.size_K is not None:
            low_MK, high_MK = wilson(self.mean_MK, np.maximum(self.size_K, 1))
        else:
            low_MK, high_MK = (
                _mean(self._values(self.run.last_of(f"{self.measure}_{end}"))) for end in ("low", "high")
            )

        def ends(m: int, k: int) -> tuple[float, float] | None:
            return None if np.isnan(low_MK[m, k]) else (float(low_MK[m, k]), float(high_MK[m, k]))

        return ends

    def _sizes(self) -> NDArray[np.float64] | None:
        """The number of samples of which the measure is a proportion; None if it is not one."""
        if self.measure in self.run.proportions:
            sizes = self.run.sizes_of(part_of(self.measure))
            return np.array([sizes[c] for c in self.clients], float)
        if (of := class_of(self.measure)) is None:
            return None
        count = {c["id"]: c["test"][of] for c in self.run.manifest["clients"]}
        return np.array([count[c] for c in self.clients], float)

    def p_values(self) -> NDArray[np.float64]:
        """Of each method against the client's best, two-sided."""
        assert self.size_K is not None
        right_MSK = np.rint(self.value_MSK * self.size_K)
        best_SK = np.take_along_axis(right_MSK, self.best_K[None, None], 0)[0]
        both = self._discordant(right_MSK)
        p_MK = np.ones(self.mean_MK.shape)
        for m in range(len(self.labels)):
            ours, theirs = most_discordant(best_SK, right_MSK[m], self.size_K)
            if both is not None:
                known_SK = ~np.isnan(both[0][m])
                ours, theirs = np.where(known_SK, both[0][m], ours), np.where(known_SK, both[1][m], theirs)
            there_SK = ~np.isnan(ours)
            p_SK = np.full(ours.shape, np.nan)
            p_SK[there_SK] = np.minimum(1, 2 * mcnemar(ours[there_SK], theirs[there_SK]))
            p_SK[best_SK <= right_MSK[m]] = 1.0  # of a seed in which the other is better
            times_K = np.where(there_SK.sum(0) > 1, 2, 1)
            p_MK[m] = np.minimum(1, np.nan_to_num(_mean(p_SK[None])[0], nan=1.0) * times_K)
        return p_MK

    def _discordant(self, right_MSK: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """How many samples only the best, and only each method, has right; NaN if that is not known."""
        run = self.run
        if run.folder is None or _why_unknown(run, self.measure):
            return None
        right = self._right(predictions.read(run.folder))
        if right.empty:
            return None
        client_R = right.index.get_level_values("client")
        place_R = pd.Index(self.clients).get_indexer(client_R)
        shape, counts = right_MSK.shape, len(self.clients)
        right_MSR = np.stack([
            [right[m, s].to_numpy(float) if (m, s) in right else np.full(len(right), np.nan) for s in self.seeds]
            for m in self.labels
        ])  # fmt: skip

        def per_client(value_R: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.bincount(place_R, value_R, counts).astype(float)

        same_MSK = np.array([[per_client(right_R) for right_R in right_SR] for right_SR in right_MSR]) == right_MSK
        best_R = self.best_K[place_R]
        ours, theirs = np.full(shape, np.nan), np.full(shape, np.nan)
        for s in range(len(self.seeds)):
            of_best_R = right_MSR[best_R, s, np.arange(len(right))]
            best_same_K = same_MSK[self.best_K, s, np.arange(counts)]
            for m in range(len(self.labels)):
                known_K = same_MSK[m, s] & best_same_K  # else the predictions are not those of the records
                ours[m, s] = np.where(known_K, per_client(of_best_R * (1 - right_MSR[m, s])), np.nan)
                theirs[m, s] = np.where(known_K, per_client((1 - of_best_R) * right_MSR[m, s]), np.nan)
        return ours, theirs

    def _right(self, table: pa.Table) -> pd.DataFrame:
        """Whether each sample is predicted correctly: samples x (method, seed)."""
        p_RC = np.column_stack([table[name] for name in table.column_names if name.startswith("probability[")])
        frame = to_frame(table.select(["method", "seed", "client", "sample", "label"]))
        frame["right"] = p_RC.argmax(1) == frame["label"].to_numpy()
        frame = frame[frame["client"].isin(self.clients) & frame["method"].isin(self.labels)]
        if (of := class_of(self.measure)) is not None:
            frame = frame[frame["label"] == of]
        frame = frame.drop_duplicates(["method", "seed", "client", "sample"])  # of a file that was made by hand
        wide: pd.DataFrame = frame.pivot(index=["client", "sample"], columns=["method", "seed"], values="right")
        return wide


def _mean(value_MSK: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over the seeds that have a value; NaN if none has."""
    there_MK = (~np.isnan(value_MSK)).sum(1)
    total_MK = np.nan_to_num(value_MSK).sum(1)
    return np.where(there_MK > 0, total_MK / np.maximum(there_MK, 1), np.nan)
