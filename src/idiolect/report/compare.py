"""Two methods of a run compared client by client: how much better, how certain, and for which clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich import box
from rich.table import Table

from idiolect.core.errors import InputError, nearest
from idiolect.core.objectives import ACCURACY, Score
from idiolect.core.option_spec import split_list
from idiolect.core.terminal import Text
from idiolect.report import differences
from idiolect.report.common_clients import counted
from idiolect.report.measures import score_of
from idiolect.report.notebook import facts, html
from idiolect.report.rows import finished, is_best, summary, worst_mean
from idiolect.report.tables import worst
from idiolect.runs.reader import Run, once, part_of

# S seeds, K clients, B resamples

_ALL_SIGNS = 13  # clients, of whose signs all are tried where there are ties, as scipy does
_RESAMPLES = 10_000
_LEVEL = 0.05
_AT_A_TIME = 500  # resamples, so that many clients fit in memory
_FEW = 1_000  # clients


class Comparison(NamedTuple):
    """A method compared with another, on the clients for which both have results, in the protocol's round of each seed.

    Counts of clients use each client's mean over seeds. Accuracies are 0..1, their differences in points (-100..100);
    mean squared errors and their differences are in squared units of the target.
    """

    method: str
    """Its label."""
    base: str
    """The label of the other."""
    difference: float
    """Score of the method minus that of the other, averaged as the run's protocol says."""
    low: float
    """Lower end of the difference's 95 % interval (see ``interval``)."""
    high: float
    better: int
    """Clients for which the method is better."""
    worse: int
    equal: int
    worst_decile: float
    """Mean score of the method's own worst tenth of clients, at least one client, for each seed."""
    base_worst_decile: float
    harmed: int | None
    """Clients for which the method is worse than training alone; None if that was not run or is the method itself."""
    base_harmed: int | None
    p_values: dict[int, float | None]
    """Per seed the two-sided p-value of Wilcoxon's signed-rank test over clients; None if all clients are equal."""
    p_value: float | None
    """The p-value of all seeds together (see ``combined``)."""

    by: Score = ACCURACY
    """What the score is."""

    def _repr_html_(self) -> str:
        title = f"{self.method} against {self.base}"
        return html(facts(title, _lines(self, self.method, self.base)), below=[_about_tests(self)])


def compare(run: Run, method: str, base: str, measure: str | None = None) -> Comparison:
    """Compare two methods of a run, by label, name or title.

    Args:
        run: the run.
        method: one of them.
        base: the other.
        measure: a metric of clients' samples that the run recorded, as ``auroc``; None is the score of the run. A
            client counts where both methods have a value of it.

    Raises:
        InputError: one of them did not run, both are the same, they have no results of the same client and seed, one
            has trained for fewer rounds, or the run did not record the measure.
    """
    by = run.score if measure is None else score_of(run, measure)
    method, base = _label(run, method), _label(run, base)
    if method == base:
        raise InputError(f"cannot compare {method} with itself: give two of {', '.join(run.titles)}")
    for d in run.diverged:
        if d.method in (method, base):
            raise InputError(f"{d.method} diverged in round {d.round} with seed {d.seed}, so it cannot be compared")
    _check_rounds(run, method, base)
    if (comparison := _compared(run, method, base, by)) is None:
        what = f"{method} and {base} have no results of the same clients and seeds"
        what += "" if measure is None else f" by {measure}"
        raise InputError(f"{what}: finish the run, or compare others")
    return comparison


def _check_rounds(run: Run, method: str, base: str) -> None:
    if run.study.get("patience") is not None:  # each may end at a round of its own
        return
    ends = run.scores.groupby(["method", "seed"])["round"].max().unstack("method")
    for seed, (one, other) in ends.reindex(columns=[method, base]).dropna().iterrows():
        if one != other:
            raise InputError(
                f"{method} has {one:.0f} rounds with seed {seed} and {base} {other:.0f}, so they cannot be compared: "
                "finish the run"
            )


def compared(run: Run, method: str, base: str) -> Comparison | None:
    """``compare`` by labels; None if one of them did not run, or they have no results of the same client and seed."""
    there = {method, base} <= run.titles.keys()
    return _compared(run, method, base, run.score) if there else None


def _compared(run: Run, method: str, base: str, by: Score, *, common: bool = False) -> Comparison | None:
    """With ``common`` over the clients that all methods of the run have."""
    value_SK, base_SK, point_SK = _points(run, method, base, by, common)
    if point_SK.empty:
        return None
    whole = run.protocol.weighting == "sample"
    sizes = run.sizes_of(part_of(_metric(run, by)))
    weight_K = np.array([sizes[int(c)] if whole else 1.0 for c in point_SK.columns])
    low, high = interval(point_SK.to_numpy(), weight_K)
    gain_K, both = by.sign * differences.over_seeds(point_SK), point_SK.notna()
    p_values = _tested(point_SK)
    return Comparison(
        method, base, _mean(point_SK.to_numpy(), weight_K), low, high,
        int((gain_K > 0).sum()), int((gain_K < 0).sum()), int((gain_K == 0).sum()),
        _worst(value_SK.where(both), by), _worst(base_SK.where(both), by),
        _harmed(run, method, by, common), _harmed(run, base, by, common), p_values,
        combined(list(p_values.values())), by,
    )  # fmt: skip


def _points(
    run: Run, method: str, base: str, by: Score, common: bool
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Scores of both, and their differences, of accuracies in points: seeds x clients."""
    value_SK, base_SK = _values(run, method, by, common).align(_values(run, base, by, common), join="inner")
    return value_SK, base_SK, differences.of(value_SK, base_SK, by).dropna(how="all").dropna(how="all", axis=1)


def _tested(point_SK: pd.DataFrame) -> dict[int, float | None]:
    return {
        int(seed): signed_rank(row[~np.isnan(row)])
        for seed, row in zip(point_SK.index, point_SK.to_numpy(), strict=True)
    }


def p_value(run: Run, method: str, base: str) -> float | None:
    """``Comparison.p_value`` of two labels; None if there is nothing to test."""
    return combined(list(_tested(_points(run, method, base, run.score, True)[2]).values()) or [None])


def smallest_p(clients: int, seeds: int = 1) -> float:
    """The smallest p-value that tests over so many clients and seeds can give: if all differ in one direction.

    >>> smallest_p(5), smallest_p(6), smallest_p(6, seeds=3)
    (0.0625, 0.03125, 0.0625)
    """
    return min(1.0, 2.0 ** (1 - min(clients, 1000)) * (1 if seeds == 1 else 2))


def too_few(comparison: Comparison) -> str:
    """A sentence if so few clients cannot show a difference at all; "" if they can."""
    clients, seeds = comparison.better + comparison.worse + comparison.equal, len(comparison.p_values)
    least = smallest_p(clients, seeds)
    if least < _LEVEL:
        return ""
    many = "1 client" if clients == 1 else f"{clients} clients"
    of = "" if seeds == 1 else f" and {seeds} seeds"
    return (
        f"With {many}{of} no test can show a difference: the smallest p that this test can give is {least:.3g}. The "
        "interval, too, describes only these clients."
    )


def comparisons(run: Run) -> list[Comparison]:
    """The best method against every other that has results, in the study's order; empty if there is no other.

    As in the table, only the clients count that all methods have.
    """
    rows = summary(run)
    if not (whole_rows := finished(rows)):
        return []
    best = next(r for r in whole_rows if is_best(r, rows))
    pairs = (_compared(run, best.label, r.label, run.score, common=True) for r in whole_rows if r is not best)
    return [c for c in pairs if c is not None]


def named(text: str) -> tuple[str, str]:
    """The two methods of ``A,B``.

    Raises:
        InputError: there are not two.

    >>> named("fedpac:alignment=0,threshold=0.1,fedavg")
    ('fedpac:alignment=0,threshold=0.1', 'fedavg')
    """
    pieces = split_list(text)
    if len(pieces) != 2:
        raise InputError(f"cannot compare {text}, which names {len(pieces)} methods: write two, as fedpac,fedavg")
    return pieces[0], pieces[1]


def signed_rank(point_K: np.ndarray) -> float | None:
    """The two-sided p-value of Wilcoxon's signed-rank test of paired differences; None if all are 0.

    The ranks of equal clients are divided between both signs (``zsplit``), as is usual when methods are compared.

    Source: Wilcoxon, 1945; Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006, 3.1.3.
    """
    from scipy.stats import permutation_test, rankdata, wilcoxon  # slow to import

    if not point_K.any():
        return None
    size_K = np.abs(point_K)
    if len(size_K) > _ALL_SIGNS or ((size_K > 0).all() and len(np.unique(size_K)) == len(size_K)):
        return float(wilcoxon(point_K, zero_method="zsplit").pvalue)

    # few clients, some of them alike: scipy's own way to this number ranks all signs one by one, in a second
    def statistic(rank_BK: np.ndarray, axis: int) -> Any:
        return np.where(rank_BK > 0, rank_BK, 0).sum(axis)

    signed_K = np.sign(point_K) * rankdata(size_K)
    return float(permutation_test((signed_K,), statistic, permutation_type="samples", vectorized=True).pvalue)


def combined(p_values: Sequence[float | None]) -> float | None:
    """One p-value of several seeds: twice their mean, at most 1.

    All seeds have the same clients and samples, so their tests depend on each other. Fisher's and Stouffer's methods do
    not allow this; twice the mean is valid for any dependence. A seed in which all clients are equal counts as 1.

    Source: Vovk & Wang, Combining p-values via averaging, Biometrika 2020.
    """
    if all(p is None for p in p_values):
        return None
    if len(p_values) == 1:
        return p_values[0]
    return min(1.0, 2 * float(np.mean([1.0 if p is None else p for p in p_values])))


def interval(point_SK: np.ndarray, weight_K: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of a weighted mean over clients and seeds, by a two-level bootstrap.

    Each of 10,000 resamples draws seeds with replacement, and clients with replacement, the same for all its seeds.
    With one seed, the interval is about other clients only, not about other seeds.

    Args:
        point_SK: differences; NaN if a client has no result for a seed.
        weight_K: weights of the clients, above 0.
    """
    rng = np.random.default_rng(0)
    seeds, clients = point_SK.shape
    there_SK = ~np.isnan(point_SK) * weight_K
    total_SK = np.nan_to_num(point_SK) * weight_K
    means = []
    for _ in range(_RESAMPLES // _AT_A_TIME):
        times_BS = rng.multinomial(seeds, np.full(seeds, 1 / seeds), _AT_A_TIME)
        times_BK = _drawn(clients, rng)
        total_B, there_B = (((times_BS @ part_SK) * times_BK).sum(1) for part_SK in (total_SK, there_SK))
        means.append(total_B[there_B > 0] / there_B[there_B > 0])  # no drawn client took part in a drawn seed
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def _drawn(clients: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """How often each client is drawn, for each of some resamples."""
    if clients <= _FEW:
        return rng.multinomial(clients, np.full(clients, 1 / clients), _AT_A_TIME)
    # the same distribution as a multinomial, which would be the slowest part of a page with thousands of clients
    drawn_BK = rng.integers(clients, size=(_AT_A_TIME, clients)) + np.arange(_AT_A_TIME)[:, None] * clients
    return np.bincount(drawn_BK.ravel(), minlength=_AT_A_TIME * clients).reshape(_AT_A_TIME, clients)


def _label(run: Run, name: str) -> str:
    title_text = name.replace(":", ", ", 1)  # a title's options, which ``named`` has read as those of a label
    by_title = {title: label for label, title in run.titles.items()}
    label = name if name in run.titles else by_title.get(title_text) or run.find(name)
    if label is None:
        raise InputError(f"cannot compare {name!r}: it is not in the run {run.name}; {nearest(name, run.titles)}")
    return label


def _metric(run: Run, by: Score) -> str:
    """The metric that is compared, as it is recorded: the run's own score may be that of validation samples."""
    return run.metric if by == run.score else by.metric


@once
def _values(run: Run, label: str, by: Score, common: bool) -> pd.DataFrame:
    """Final scores: seeds x clients."""
    metric = _metric(run, by)
    values = counted(run, metric) if common else run.last_of(metric)
    mine = values[values["method"] == label]
    return mine.pivot(index="seed", columns="client", values="value")


def _mean(point_SK: np.ndarray, weight_K: np.ndarray) -> float:
    """The mean over seeds of the weighted means over clients."""
    there_SK = ~np.isnan(point_SK) * weight_K
    return float(((np.nan_to_num(point_SK) * there_SK).sum(1) / there_SK.sum(1)).mean())


def _worst(value_SK: pd.DataFrame, by: Score) -> float:
    seeds = [value_K[~np.isnan(value_K)] for value_K in value_SK.to_numpy()]
    return float(np.mean([worst_mean(row, by) for row in seeds if len(row)]))


@once
def _harmed(run: Run, label: str, by: Score, common: bool) -> int | None:
    alone = run.find("local")
    if alone is None or alone == label:
        return None
    if alone != "local" and sum(m["name"] == "local" for m in run.manifest["methods"].values()) > 1:
        return None  # it is not clear which
    mine, base = _values(run, label, by, common).align(_values(run, alone, by, common), join="inner")
    if mine.empty:
        return None
    return int((by.sign * differences.over_seeds(differences.of(mine, base, by)) < 0).sum())


def p_text(p: float | None) -> str:
    """A p-value as text.

    >>> [p_text(p) for p in (0.2, 0.0312, 0.00002, None)]
    ['0.20', '0.031', '< 0.001', 'all equal']
    """
    if p is None:
        return "all equal"
    return "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def render_comparison(run: Run, comparison: Comparison) -> Table:
    """A comparison for a terminal: a line for each number, and a sentence about the tests."""
    title, base = run.titles[comparison.method], run.titles[comparison.base]
    part = part_of(_metric(run, comparison.by))
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False,
        caption=_about_tests(comparison, part, run.protocol.said(samples=part)), caption_justify="left",
    )  # fmt: skip
    table.add_column(Text(f"{title} against {base}"), overflow="fold")
    table.add_column("", overflow="fold")
    for name, text in _lines(comparison, title, base):
        table.add_row(name, Text(text))
    return table


def _about_tests(comparison: Comparison, part: str = "", protocol: str = "") -> str:
    """What was compared, and what the interval says; ``part`` are the samples, test or validation."""
    clients, seeds = comparison.better + comparison.worse + comparison.equal, len(comparison.p_values)
    count = f"{clients} clients, {seeds} seeds" if seeds > 1 else f"{clients} clients, one seed"
    what = f"{part} {comparison.by.name.removeprefix(f'{part} ')}".strip()
    what = f"points of {what}" if comparison.by.is_share else what
    what += "" if comparison.by.more_is_better else ", less is better"
    parts = [f"{count}; {what}{f': {protocol}' if protocol else ''}."]
    if seeds > 1:
        parts.append("Interval: 95 %, bootstrap over seeds and clients.")
    else:
        parts.append("Interval: 95 %, bootstrap over clients; it says nothing about other seeds.")
    return " ".join([*parts, *filter(None, [too_few(comparison)])])


def _lines(comparison: Comparison, title: str, base: str) -> list[tuple[str, str]]:
    """The numbers of a comparison, in words."""
    by, low, high = comparison.by, comparison.low, comparison.high
    p = p_text(comparison.p_value)
    if len(comparison.p_values) > 1:
        each = ", ".join(f"{p_text(value)} (seed {seed})" for seed, value in comparison.p_values.items())
        p = f"{p}; {each}"
    if too_few(comparison):
        p = "-"
    if comparison.p_value is None:
        p = "not tested, because the two are equal for every client"
    lines = [
        ("Difference", f"{by.change(comparison.difference)}{by.points}, {by.change(low)} to {by.change(high)}"),
        ("Clients", f"better {comparison.better}, worse {comparison.worse}, equal {comparison.equal}"),
        (
            worst(comparison.better + comparison.worse + comparison.equal).capitalize(),
            f"{by.text(comparison.worst_decile, 1)}{by.unit} against "
            f"{by.text(comparison.base_worst_decile, 1)}{by.unit}",
        ),
        ("Wilcoxon p", p),
    ]
    counts = [(t, n) for t, n in ((title, comparison.harmed), (base, comparison.base_harmed)) if n is not None]
    if counts:
        lines.append(("Worse than alone", f"clients harmed: {', '.join(f'{t} {n}' for t, n in counts)}"))
    return lines
