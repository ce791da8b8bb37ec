"""Methods whose training seems not to be finished, so that a table compares how fast they learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from idiolect.core.errors import listed, option
from idiolect.report.common_clients import counted
from idiolect.runs.reader import Run, once

_FEWEST = 6  # rounds
_FALL = 0.1
_RISK = 0.01
_NEAR = 0.01  # to the accuracy and to the balanced accuracy of the most frequent class


@once
def advice(run: Run) -> list[str]:
    """A sentence for each sign that training was not finished: which methods, and what to try. Usually none.

    Only methods count whose last evaluation is in the study's last round. See ``still_falls`` and ``_one_class``.
    """
    lines = []
    ends = run.final.groupby("method")["round"].min()
    labels = [label for label in run.titles if ends.get(label, 0) == run.study["rounds"]]
    stuck = [label for label in labels if _one_class(run, label)]
    falling = [label for label in labels if label not in stuck and _learns(run, label)]
    if falling:
        title = listed(run.titles[label] for label in falling)
        sign = f"Training may not be finished: the training loss of {title} still falls steadily"
        lines.append(f"{sign}. Try {_what(run, falling)}.")
    if stuck:
        title = listed(run.titles[label] for label in stuck)
        sign = f"Accuracy is that of always predicting the most frequent class: {title}"
        lines.append(f"{sign}. Try {_what(run, stuck)}.")
    return lines


def _what(run: Run, labels: Sequence[str]) -> str:
    """What to try for some methods; a learning rate in numbers, if all of them have that of the study."""
    uses = [use for use in run.study["methods"] if isinstance(use, Mapping) and use["label"] in labels]
    lr, own = run.study.get("lr"), any("lr" in use["options"] or "lr" in use.get("settings", {}) for use in uses)
    number = f" ({option('lr', 3 * lr)})" if isinstance(lr, int | float) and not own else ""
    return f"more rounds ({option('rounds', 2 * int(run.study['rounds']))}), or a larger learning rate{number}"


def still_falls(loss_T: Sequence[float]) -> bool:
    """Whether a loss still falls steadily in the last third of the rounds.

    A line is fitted to the last third, at least four rounds. The loss falls if the line falls, in a third of the
    rounds, by a tenth or more of the difference between the largest and the smallest loss of the run. It falls steadily
    if the line ends below every loss before the last third, and p < 0.01 in a one-sided t test of its slope. With fewer
    than six rounds, nothing is said.

    >>> still_falls([3.0, 2.5, 2.1, 1.8, 1.6, 1.4]), still_falls([3.0, 1.0, 0.4, 0.2, 0.15, 0.13])
    (True, False)
    """
    from scipy.special import stdtr  # slow to import

    if len(loss_T) < _FEWEST or not np.isfinite(loss_T).all():
        return False
    value_T = np.asarray(loss_T, float)
    last_t = value_T[-max(4, -(-len(value_T) // 3)) :]
    place_t = np.arange(len(last_t)) - (len(last_t) - 1) / 2
    slope = float(place_t @ last_t / (place_t @ place_t))
    rest_t = last_t - last_t.mean() - slope * place_t
    error = float(np.sqrt(rest_t @ rest_t / (len(last_t) - 2) / (place_t @ place_t)))
    if slope >= 0 or -slope * (len(value_T) - 1) / 3 < _FALL * float(np.ptp(value_T)):
        return False
    if last_t.mean() + slope * place_t[-1] >= value_T[: -len(last_t)].min():
        return False
    return error < 1e-12 * abs(slope) or float(stdtr(len(last_t) - 2, slope / error)) < _RISK


def _learns(run: Run, label: str) -> bool:
    """Whether a method's training loss still falls, and its score is not worse than that of earlier evaluations."""
    loss = run.select("local", "train_loss")
    mean_T = loss[loss["method"] == label].groupby("round")["value"].mean()  # over participants and seeds
    score = run.score.sign * run.scores[run.scores["method"] == label].groupby("round")["value"].mean()
    if len(score) > 1 and score.iloc[-1] < score.iloc[:-1].mean():
        return False  # more of the same would not help
    return still_falls(mean_T.tolist())


def _one_class(run: Run, label: str) -> bool:
    """Whether a method predicts, for nearly all samples, the class that is most frequent: of all clients, or of each.

    Clients whose measured samples have one class say nothing about it. Where balanced accuracy was recorded, its mean
    must be that of a constant prediction, too; otherwise, every client's accuracy must be that of the class.
    """
    if run.task != "classification":
        return False
    clients = {c["id"]: c for c in run.manifest["clients"] if np.count_nonzero(c.get(run.part, ())) > 1}
    mine = _of(counted(run), label, clients)
    if mine.empty:
        return False
    total_C = np.sum([c["train"] for c in run.manifest["clients"]], axis=0)
    macro = _of(counted(run, "balanced_accuracy"), label, clients)
    even = macro["client"].map({i: 1 / np.count_nonzero(c[run.part]) for i, c in clients.items()})
    if len(macro) and abs(macro["value"].mean() - even.mean()) > _NEAR:
        return False
    for of_all in (True, False):
        most = {i: int(np.argmax(total_C if of_all else c["train"])) for i, c in clients.items()}
        share = mine["client"].map({i: c[run.part][most[i]] / sum(c[run.part]) for i, c in clients.items()})
        apart = (mine["value"] - share).abs().max() if macro.empty else abs(mine["value"].mean() - share.mean())
        if apart <= (1e-9 if macro.empty else _NEAR):
            return True
    return False


def _of(frame: pd.DataFrame, label: str, clients: dict[int, object]) -> pd.DataFrame:
    return frame[(frame["method"] == label) & frame["client"].isin(list(clients))]
