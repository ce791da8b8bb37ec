"""Values between two clients that a method's server reports, such as the weights with which it combines models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from idiolect.core.reports import PairValue
from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import Json, inline_data, side_by_side, tooltip
from idiolect.report.figures.view import PAIRS, View, sample_note
from idiolect.report.formatting import capital
from idiolect.runs.reader import Run, last

_EARLY = (1, 20, 50)  # rounds that are shown besides the last
_POSITIVE: Json = {"type": "sqrt", "domainMin": 0, "range": "ramp"}


def between_clients(view: View) -> Iterator[Figure | str]:
    """Every recorded metric of pairs of clients, at a few rounds up to the last.

    A method provides the words of the figure; if it does not, they are general.
    """
    run = view.run
    records = run.records[(run.records["stage"] == "server") & run.records["other"].notna()]
    records = records[records["value"].notna()]
    for label, title in run.titles.items():
        reports = {metric: report for metric, report in run.reports[label].items() if isinstance(report, PairValue)}
        mine = records[records["method"] == label]
        for metric in dict.fromkeys([*reports, *mine["metric"]]):
            records_of = mine[mine["metric"] == metric]
            if metric not in reports:
                colours = f"Each row is a client; its colours are the values of {metric} between it and the others"
                reports[metric] = PairValue(metric, f"{metric} between clients", colours, value=metric)
            if records_of.empty:
                yield f"No {reports[metric].name} are recorded for {title}, so their figure is left out."
            else:
                yield _matrices(view, view.name_of(metric, label), title, reports[metric], records_of)


def _matrices(view: View, name: str, title: str, report: PairValue, records: pd.DataFrame) -> Figure:
    """A metric of one method: a matrix of clients for each of a few rounds."""
    final = last(records, "seed")["round"].min()
    rounds = _near(records["round"], (*_EARLY, final))
    records = records[records["round"].isin(rounds)].astype({"other": "int64"})
    frame = records.groupby(["round", "client", "other"])["value"].mean().reset_index()
    frame = frame[frame["other"].isin(list(view.clients))]
    ends = frame[frame["round"] == rounds[-1]]
    own = ends.loc[ends["client"] == ends["other"], "value"].mean()
    clients, total = list(view.clients), len(view.clients)
    if total > PAIRS:  # from one round and seed: clients that never met have no value
        there = records[records["round"] == rounds[-1]]
        ids = set(there.loc[there["seed"] == there["seed"].min(), "client"])
        clients, total = view.sample(ids, PAIRS, PAIRS), len(ids)
        frame = frame[frame["client"].isin(clients) & frame["other"].isin(clients)]
        per_round = frame.groupby("round")["client"].nunique()
        rounds = [r for r in rounds if 2 * per_round.get(r, 0) >= len(clients)]
        frame = frame[frame["round"].isin(rounds)]
    frame["value"] = frame["value"].round(4)
    frame["client"] = frame["client"].map(view.clients)
    alike = _alike(view.run, clients)
    order = [view.names[c] for c in alike]
    frame["other"] = frame["other"].map(view.names)
    frame["round"] = frame["round"].map("round {}".format)
    axis = {"orient": "bottom", "labelOverlap": True, "labelLimit": 90, "domain": False, "ticks": False}
    axis["labelAngle"] = 0 if all(client.isdecimal() for client in order) else -40
    x = {
        "field": "other",
        "type": "nominal",
        "title": report.column,
        "scale": {"domain": order, "padding": 0.05},
        "axis": axis,
    }
    y = view.client_axis(alike) | {"title": report.row}
    y["scale"]["padding"] = 0.05
    y["axis"]["domain"] = False
    largest, with_sign = float(frame["value"].abs().max()), bool((frame["value"] < 0).any())
    scale = {"domain": [-largest, largest], "range": "diverging"} if with_sign else _POSITIVE
    colour = {
        "field": "value",
        "type": "quantitative",
        "scale": scale | {"interpolate": "lab"},
        "legend": {"title": report.value, "orient": "bottom", "direction": "horizontal", "gradientLength": 180},
    }
    tip = tooltip("round", f"client={report.row}", f"other={report.column}", f"value={report.value}")
    scaling = "orange below 0 and blue above" if with_sign else "on a square-root scale"
    share = report.own.replace("{}", f"{100 * own:.0f} %")
    return Figure(
        name,
        f"{title}: {share} on average" if share and own == own else f"{title}: {report.shows}",
        f"{capital(report.name)}. {report.colours}, {scaling} (mean over seeds; the last evaluation round and the "
        "recorded rounds nearest to 1, 20 and 50). Clients with similar classes and shifts are next to each other."
        + sample_note(clients, total),
        side_by_side(
            "round",
            [f"round {r}" for r in rounds],
            inline_data(frame),
            {
                "width": 200,
                "height": 200,
                "mark": {"type": "rect"},
                "encoding": {"x": x, "y": y, "color": colour, "tooltip": tip},
            },
        ),
        wide=len(rounds) > 2,
    )


def _near(rounds: pd.Series[int], targets: Sequence[int]) -> list[int]:
    """The recorded rounds that are nearest to the wanted ones, without repetition."""
    there = np.unique(rounds)
    return sorted({int(there[np.abs(there - r).argmin()]) for r in targets})


def _alike(run: Run, clients: Sequence[int]) -> list[int]:
    """Clients in an order in which the next is always the remaining one with the most similar classes and shift."""
    from scipy.spatial.distance import cdist  # slow to import

    about = {c["id"]: c for c in run.manifest["clients"]}
    samples_KC = np.array([about[i]["train"] for i in clients], float)
    share_KC = samples_KC / samples_KC.sum(1, keepdims=True).clip(min=1)
    shifted_KS = pd.get_dummies(pd.Series([about[i]["shift"] for i in clients])).to_numpy(float)
    points = np.hstack([share_KC, shifted_KS])
    apart_KK = cdist(points, points)
    order, rest = [0], list(range(1, len(clients)))
    while rest:
        order.append(rest.pop(int(apart_KK[order[-1], rest].argmin())))
    return [clients[i] for i in order]
