"""A run in numbers: one row per method, by which methods are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idiolect.core.objectives import ACCURACY, Score
from idiolect.core.rounding import significant
from idiolect.report.common_clients import counted, left_out, shared
from idiolect.report.formatting import short
from idiolect.report.measures import means
from idiolect.runs.reader import Part, Run, last, once

OF_CLASSES = ("calibration_error", "brier")
"""The fields of a row that only a classification has; they are of test samples."""


class Row(NamedTuple):
    """A method in the last evaluated round of each of its seeds.

    K clients: those that all methods of the run have (see ``common_clients.counted``). Means over clients are taken
    within a seed, then averaged over seeds. ``None``: nothing is recorded, or no client is common to all methods.
    """

    label: str
    title: str
    score: float | None
    """Mean score of the samples ``measured``, over clients or over samples as the run's protocol says: an accuracy,
    or a micro F1, 0..1, or a mean squared error. In tables it has the name of its metric."""
    per_client: float | None
    """Mean over clients."""
    per_sample: float | None
    """Mean over samples."""
    std: float | None
    """Standard deviation over clients (divided by K)."""
    worst_decile: float | None
    """Mean score of the worst K // 10 clients, at least one."""
    versus_fedavg: float | None
    """Score minus that of FedAvg, a share in points (-100..100), over the seeds that both have."""
    bytes_per_round: float | None
    """Bytes down and up, mean per participating client and round."""
    seconds: float | None
    """Seconds of the server, and of the clients' work divided by the workers, for all rounds and seeds together."""
    rounds: int
    """The last evaluated round; the earliest of them if seeds differ; 0 without records."""
    seeds: int
    """How many seeds have records."""
    seed_std: float | None
    """Standard deviation of the score over seeds (divided by seeds - 1); None for one seed."""
    calibration_error: float | None = None
    """Expected calibration error, mean over clients, 0..1."""
    brier: float | None = None
    """Brier score, mean over clients, 0..2."""
    diverged: int | None = None
    """The round in which training diverged, the earliest of the seeds; such a method has no score."""
    clients: int | None = None
    """K: how many clients count, with one seed or more."""
    left_out: str = ""
    """The clients of the run that do not count, with the reason, joined by ``"; "``."""
    stopped: int | None = None
    """The round after which training stopped early, the earliest of the seeds; None if one goes on to the last."""
    measured: str = "test"
    """The samples that the scores are of: test samples or, in a run without any, validation samples."""
    validation: float | None = None
    """Mean score on validation samples, averaged like ``score``."""
    measures: Mapping[str, float | None] = {}
    """The measures beside the score: means over the clients that have a value, by measure."""
    by: Score = ACCURACY
    """What the score is."""

    @property
    def accuracy(self) -> float | None:
        """The score of a classification."""
        return self.score if self.by.is_accuracy else None

    def as_dict(self) -> dict[str, object]:
        """The fields by name, the score under that of its metric; without those of classes where it is no accuracy."""
        left_out = () if self.by.is_accuracy else OF_CLASSES
        return self.by.named({k: v for k, v in self._asdict().items() if k not in left_out})

    @property
    def rank(self) -> float:
        """The score such that more is better, equal where means differ by rounding; the lowest where there is none."""
        return -np.inf if self.score is None else self.by.sign * float(significant(self.score))


@once
def summary(run: Run) -> list[Row]:
    """One row per method of the run, in the study's order."""
    final, absent = counted(run), "; ".join(f"{c.name} ({c.why})" for c in left_out(run))
    measures = means(run)
    ends, evaluated = _of_methods(run, final), _of_methods(run, run.scores)
    fedavg = run.find("fedavg")
    wire = run.records[(run.records["stage"] == "wire") & run.records["metric"].isin(["bytes_down", "bytes_up"])]
    valid = _of_methods(run, counted(run, run.score.validation))
    calibration, brier = (_of_methods(run, counted(run, metric)) for metric in ("calibration_error", "brier"))
    sent_by, final_by, timings = (_of_methods(run, frame) for frame in (wire, run.final, run.timings))
    rounds = {label: _evaluated(part) for label, part in evaluated.items()}
    rows = []
    for label, title in run.titles.items():
        even = fedavg is not None and (rounds[label] == rounds[fedavg] or run.study.get("patience") is not None)
        end, sent, seconds = ends[label], sent_by[label], timings[label]["seconds"]
        seeds = _of_seeds(end)
        each = per_seed(run, end)
        exchanges = len(sent.drop_duplicates(["seed", "round", "client"]))
        rows.append(
            Row(
                label,
                title,
                _mean(each),
                _over_clients(end),
                _per_sample(run, end),
                _mean([value_K.std() for value_K in seeds]),
                _mean([worst_mean(value_K, run.score) for value_K in seeds]),
                _gain(run, end, ends[fedavg]) if fedavg and even else None,
                float(sent["value"].sum()) / exchanges if exchanges else None,
                float(seconds.sum()) if len(seconds) else None,
                rounds[label],
                final_by[label]["seed"].nunique(),
                float(np.std(each, ddof=1)) if len(each) > 1 else None,
                _over_clients(calibration[label]),
                _over_clients(brier[label]),
                min((d.round for d in run.diverged if d.method == label), default=None),
                end["client"].nunique() or None,
                absent,
                _early_end(run, label, evaluated[label]),
                run.part,
                _mean(per_seed(run, valid[label], "validation")),
                {measure: by_method.get(label) for measure, by_method in measures.items()},
                run.score,
            )
        )
    return rows


def worst_mean(value_K: NDArray[np.float64], by: Score) -> float:
    """The mean over the worst tenth of clients, at least one."""
    return float(by.sign * np.sort(by.sign * value_K)[: max(1, len(value_K) // 10)].mean())


def _gain(run: Run, end: pd.DataFrame, base: pd.DataFrame) -> float | None:
    """Score minus that of another method, a share in points, over what both have."""
    keys = ["seed", "client", *(["round"] if run.protocol.clients == "participants" else [])]
    both = end.reset_index().merge(base[[*keys, "value"]], on=keys, suffixes=("", "_base"))
    means = [_mean(per_seed(run, both.assign(value=both[of]))) for of in ("value", "value_base")]
    return None if means[0] is None or means[1] is None else run.score.factor * (means[0] - means[1])


def _of_methods(run: Run, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each method of the run, by label; a method without any has an empty frame."""
    parts = {str(label): part for label, part in frame.groupby("method", sort=False)}
    return {label: parts[label] if label in parts else frame.iloc[:0] for label in run.titles}


def _evaluated(scores: pd.DataFrame) -> int:
    rounds = scores.groupby("seed")["round"].max()
    return int(rounds.min()) if len(rounds) else 0


def _early_end(run: Run, label: str, scores: pd.DataFrame) -> int | None:
    """The earliest round after which a seed stopped, if every seed stopped or reached the study's last round."""
    ends = scores.groupby("seed")["round"].max()
    early = [run.stopped[label, seed].round for seed in ends.index if (label, seed) in run.stopped]
    at_end = int((ends >= run.study["rounds"]).sum())
    return min(early) if early and len(early) + at_end == len(ends) else None


class NewClients(NamedTuple):
    """New clients under one condition, or the clients that trained."""

    who: str
    score: dict[str, float | None]
    """Per method: mean over clients of the score on test samples, averaged over seeds."""
    per_sample: dict[str, float | None]
    """The same, weighted by the clients' test samples."""
    by: Score = ACCURACY
    """What the score is."""

    def as_dict(self) -> dict[str, object]:
        """The fields by name, the score under that of its metric."""
        return self.by.named(self._asdict())


def new_clients(run: Run) -> list[NewClients]:
    """The score of new clients under each condition; empty if there are none."""
    if not run.new_clients or run.part == "validation":
        return []
    frame = shared(run.settled(run.select("new", run.score.metric)), "seed")
    condition = frame["client"].map(run.new_clients)

    def row(who: str, part: pd.DataFrame) -> NewClients:
        mine = _of_methods(run, part)
        return NewClients(
            who,
            {k: _over_clients(end) for k, end in mine.items()},
            {k: _per_sample(run, end) for k, end in mine.items()},
            run.score,
        )

    conditions = list(dict.fromkeys(run.new_clients.values()))
    return [
        row("clients that trained", _that_trained(run)),
        *(row(f"new clients, {short(c)}" if c else "new clients", frame[condition == c]) for c in conditions),
    ]


def _that_trained(run: Run) -> pd.DataFrame:
    """The score of the clients that trained, also where the protocol is about new ones."""
    if not run.of_new_clients:
        return counted(run)
    records = run.select(run.protocol.stage, run.score.metric)
    honest = records[~records["client"].isin([*run.attackers, *run.new_clients])]
    return shared(last(run.settled(honest), "method", "seed"), "seed")


def unlike_trained(run: Run) -> str:
    """How new clients are measured otherwise than clients that trained, as a sentence; "" where they are not."""
    ways = [
        ("at the threshold 1/2", run.protocol.threshold != "half"),
        ("by their personal models", run.protocol.stage != "personalised"),
        ("after the last round", run.protocol.round != "last"),
    ]
    theirs = ", ".join(way for way, is_unlike in ways if is_unlike)
    return theirs and f"Unlike clients that trained, new ones are measured {theirs}."


def scores(run: Run, part: Part = "test") -> pd.Series[float]:
    """The protocol's score of test or validation samples by method and seed, in the study's order.

    It is over the clients that all methods have; ``common_clients.sentences`` names the others.
    """
    keys: list[tuple[str, int]] = []
    values: list[float] = []
    frame = counted(run, run.metric_of(part))
    for label in run.titles:
        end = frame[frame["method"] == label]
        keys += [(label, seed) for seed in sorted(end["seed"].unique().tolist())]
        values += per_seed(run, end, part)
    index = pd.MultiIndex.from_tuples(keys, names=["method", "seed"])
    return pd.Series(np.array(values, float), index=index, name=run.metric_of(part))


def client_scores(run: Run) -> pd.DataFrame:
    """The same of every client that has a result: a row for each, by name or number; a column per method and seed.

    A client that a method lacks has a gap there, and does not count in the means.
    """
    names = {c["id"]: c.get("name") or c["id"] for c in run.manifest["clients"]}
    wide = run.final.pivot(index="client", columns=["method", "seed"], values="value")
    seeds = {method: sorted(set(part)) for method, part in run.final.groupby("method")["seed"]}
    order = [(method, seed) for method in run.titles for seed in seeds.get(method, ())]
    columns = pd.MultiIndex.from_tuples(order, names=["method", "seed"])
    return wide.reindex(columns=columns).rename(index=names)


def per_seed(run: Run, end: pd.DataFrame, part: Part | None = None) -> list[float]:
    """The mean of a method's final values for each seed, over clients or samples as the run's protocol says.

    ``part`` says which samples, if not those of the run's results.
    """
    if run.protocol.weighting == "sample":
        return _each(run, end, part)
    return [float(value_K.mean()) for value_K in _of_seeds(end)]


def _each(run: Run, end: pd.DataFrame, part: Part | None = None) -> list[float]:
    sizes = run.sizes_of(part or run.part)
    weights = end.assign(value=[sizes[client] for client in end["client"].tolist()])
    return [
        float(np.average(value_K, weights=weight_K))
        for value_K, weight_K in zip(_of_seeds(end), _of_seeds(weights), strict=True)
    ]


def _per_sample(run: Run, end: pd.DataFrame) -> float | None:
    return _mean(_each(run, end))


def _over_clients(end: pd.DataFrame) -> float | None:
    """The mean over clients, averaged over seeds."""
    return _mean([float(value_K.mean()) for value_K in _of_seeds(end)])


def _of_seeds(end: pd.DataFrame) -> list[NDArray[np.float64]]:
    """The values of a method over clients, an array for each seed."""
    seed_N, value_N = end["seed"].to_numpy(), end["value"].to_numpy()
    return [value_N[seed_N == seed] for seed in np.unique(seed_N)]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def finished(rows: Sequence[Row]) -> list[Row]:
    """The methods that can be compared: with results in the latest round that any method reached, or stopped early."""
    there = [r for r in rows if r.score is not None]
    latest = max((r.rounds for r in there), default=0)
    return [r for r in there if r.rounds == latest or r.stopped is not None]


def is_best(row: Row, rows: Sequence[Row]) -> bool:
    """Whether no method that can be compared has a better score."""
    return row in finished(rows) and row.rank == max(r.rank for r in finished(rows))
