"""The weights with which FedPAC combines clients' heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from idiolect.report.figures.figure import Figure
from idiolect.report.figures.vega_lite import inline_data, side_by_side, tooltip
from idiolect.report.figures.view import PAIRS, View, sample_note
from idiolect.runs.reader import Run, last

_EARLY = (1, 20, 50)  # rounds that are shown before the last


def combination(view: View) -> Iterator[Figure | str]:
    """Whose heads each client combines, at a few rounds up to the last on record."""
    run = view.run
    records = run.records[(run.records["stage"] == "server") & run.records["metric"].str.match(r"combination\[\d+\]$")]
    records = records[records["value"].notna()]
    if records.empty and run.find("fedpac"):
        yield "No combination weights are on record for FedPAC, so their figure is left out."
    for label in run.titles:
        mine = records[records["method"] == label]
        if mine.empty:
            continue
        final = last(mine, "seed")["round"].min()
        chosen = _near(mine["round"], (*_EARLY, final))
        mine = mine[mine["round"].isin(chosen)].assign(
            giver=lambda f: f["metric"].str.extract(r"(\d+)", expand=False).astype("int64")
        )
        frame = mine.groupby(["round", "client", "giver"])["value"].mean().reset_index(name="weight")
        frame = frame[frame["giver"].isin(list(view.clients))]
        ends = frame[frame["round"] == chosen[-1]]
        own = ends.loc[ends["client"] == ends["giver"], "weight"].mean()
        shown, met = list(view.clients), len(view.clients)
        if met > PAIRS:  # of one round and seed: clients that never met have no weights
            there = mine[mine["round"] == chosen[-1]]
            ids = set(there.loc[there["seed"] == there["seed"].min(), "client"])
            shown, met = view.sample(ids, PAIRS, PAIRS), len(ids)
            frame = frame[frame["client"].isin(shown) & frame["giver"].isin(shown)]
            seen = frame.groupby("round")["client"].nunique()
            chosen = [r for r in chosen if 2 * seen.get(r, 0) >= len(shown)]
            frame = frame[frame["round"].isin(chosen)]
        frame["weight"] = frame["weight"].round(4)
        frame["client"] = frame["client"].map(view.clients)
        alike = _alike(run, shown)
        order = [view.names[c] for c in alike]
        frame["giver"] = frame["giver"].map(view.names)
        frame["round"] = frame["round"].map("round {}".format)
        axis = {"orient": "bottom", "labelOverlap": True, "labelLimit": 90, "domain": False, "ticks": False}
        axis["labelAngle"] = 0 if all(name.isdecimal() for name in order) else -40
        x = {
            "field": "giver",
            "type": "nominal",
            "title": "gives its head",
            "scale": {"domain": order, "padding": 0.05},
            "axis": axis,
        }
        y = view.client_axis(alike) | {"title": "receives a combined head"}
        y["scale"]["padding"] = 0.05
        y["axis"]["domain"] = False
        colour = {
            "field": "weight",
            "type": "quantitative",
            "scale": {"type": "sqrt", "domainMin": 0, "range": "ramp", "interpolate": "lab"},
            "legend": {"title": "weight", "orient": "bottom", "direction": "horizontal", "gradientLength": 180},
        }
        title = run.titles[label]
        yield Figure(
            f"combination-{list(run.titles).index(label)}",
            f"{title}: a client's own head carries {100 * own:.0f} % of its combined head on average"
            if own == own
            else f"{title}: whose heads each client combines",
            "Each row is a receiving client, its colours the weights of the heads given to it, on a square-root scale "
            "(mean over seeds; the last evaluation round and those on record nearest to rounds 1, 20 and 50). Clients "
            "with alike classes and shifts stand side by side." + sample_note(shown, met),
            side_by_side(
                "round",
                [f"round {r}" for r in chosen],
                inline_data(frame),
                {
                    "width": 200,
                    "height": 200,
                    "mark": {"type": "rect"},
                    "encoding": {
                        "x": x,
                        "y": y,
                        "color": colour,
                        "tooltip": tooltip("round", "client=receives", "giver=gives", "weight"),
                    },
                },
            ),
            wide=len(chosen) > 2,
        )


def _near(rounds: pd.Series[int], wanted: Sequence[int]) -> list[int]:
    """The rounds on record that are nearest to the wanted ones, without repetition."""
    there = np.unique(rounds)
    return sorted({int(there[np.abs(there - r).argmin()]) for r in wanted})


def _alike(run: Run, clients: Sequence[int]) -> list[int]:
    """Clients in an order in which each is followed by the remaining one with the most similar classes and shift."""
    from scipy.spatial.distance import cdist  # slow to import

    about = {c["id"]: c for c in run.manifest["clients"]}
    samples_KC = np.array([about[i]["train"] for i in clients], float)
    share_KC = samples_KC / samples_KC.sum(1, keepdims=True).clip(min=1)
    shifted_KS = pd.get_dummies(pd.Series([about[i]["shift"] for i in clients])).to_numpy(float)
    points = np.hstack([share_KC, shifted_KS])
    apart_KK = cdist(points, points)
    order, left = [0], list(range(1, len(clients)))
    while left:
        order.append(left.pop(int(apart_KK[order[-1], left].argmin())))
    return [clients[i] for i in order]
