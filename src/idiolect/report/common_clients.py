"""The clients that all methods of a run have: only over these are the methods compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from idiolect.core.errors import listed
from idiolect.runs.reader import Run, once

_NAMED = 5  # clients that a sentence lists


class LeftOut(NamedTuple):
    """A client that does not count, or not with every seed."""

    client: int
    name: str
    """Its name, or its number as text."""
    why: str
    never: bool
    """Whether it counts with no seed."""


@once
def counted(run: Run, metric: str | None = None) -> pd.DataFrame:
    """The values of a metric in the protocol's round of each method and seed, over the clients that all methods have.

    Within a seed, all methods with results have the same clients here. If the protocol is about the participants of a
    round, this holds for the methods that are measured in the same round. A method that shares no client with any other
    one has no rows. None is the score of the run's samples (``Run.metric``). A client counts for another metric of the
    same samples only if its score counts.
    """
    frame = run.last_of(metric or run.metric)
    if metric and metric not in (run.score.metric, run.score.validation):
        keys = ["method", "seed", "client"]
        frame = frame[frame.set_index(keys).index.isin(counted(run).set_index(keys).index)]
    return shared(frame, *_groups(run))


def shared(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    """The rows of the clients that all methods have, for each value of some columns; see ``counted``."""
    if frame.empty:
        return frame
    many, methods = _counts(frame, by)
    most = many.groupby([frame[column] for column in (*by, "method")]).transform("max")
    rest = frame[(most > 1) | (methods == 1)]
    many, methods = _counts(rest, by)
    return rest[many == methods]


def _counts(frame: pd.DataFrame, by: Iterable[str]) -> tuple[pd.Series[int], pd.Series[int]]:
    """For each row, how many methods have its client, and how many there are."""
    method = [frame.groupby(list(columns))["method"].transform("nunique") for columns in ((*by, "client"), by)]
    return method[0], method[1]


def _groups(run: Run) -> tuple[str, ...]:
    return ("seed", "round") if run.protocol.clients == "participants" else ("seed",)


def expected(run: Run) -> list[int]:
    """The clients that the protocol is about, with results or without: no attackers."""
    new = run.of_new_clients
    there = set(run.final["client"])
    if run.protocol.clients == "participants":
        return sorted(there)
    ids = [c["id"] for c in run.manifest["clients"] if (c["id"] in run.new_clients) == new]
    return [i for i in ids if i not in run.attackers]


def names(run: Run) -> dict[int, str]:
    """The name of each client, or its number as text."""
    return {c["id"]: c.get("name") or str(c["id"]) for c in run.manifest["clients"]}


@once
def left_out(run: Run) -> list[LeftOut]:
    """The clients of the protocol that do not count, with the reason; empty if the run has no results yet."""
    clients, name_of = list[LeftOut](), names(run)
    has: dict[tuple[int, int], set[str]] = {}
    for method, seed, client in run.final[["method", "seed", "client"]].itertuples(index=False):
        has.setdefault((int(seed), int(client)), set()).add(str(method))
    counts = set(zip(counted(run)["seed"], counted(run)["client"], strict=True))
    without = set(alone(run))
    methods_of: dict[int, list[str]] = {}
    for method, seed in _pairs(run.final):
        if (method, seed) not in without:
            methods_of.setdefault(seed, []).append(method)
    for client in expected(run):
        if not run.sizes.get(client):
            clients.append(LeftOut(client, name_of[client], f"no {run.part} samples", True))
            continue
        lacking: dict[str, list[int]] = {}
        for seed, methods in methods_of.items():
            there = has.get((seed, client), set())
            if (seed, client) in counts or (run.protocol.clients == "participants" and not there):
                continue
            if missing := [run.titles[m] for m in methods if m not in there]:
                lacking.setdefault(f"no results of {_and(missing)}" if there else "no results", []).append(seed)
        if lacking:
            whole = len(methods_of)
            why = [w if len(seeds) == whole else f"{w} with {_seeds(seeds)}" for w, seeds in lacking.items()]
            clients.append(
                LeftOut(client, name_of[client], "; ".join(why), all((s, client) not in counts for s in methods_of))
            )
    return clients if len(run.final) else []


def alone(run: Run) -> list[tuple[str, int]]:
    """The methods that share no client with any other method, with the seed: they have no number to compare."""
    there = set(_pairs(counted(run)))
    frame = run.final
    many, methods = _counts(frame, _groups(run)) if len(frame) else (frame["seed"], frame["seed"])
    single = frame[many.groupby([frame["method"], frame["seed"]]).transform("max").eq(1) & (methods > 1)]
    return [pair for pair in dict.fromkeys(_pairs(single)) if pair not in there]


def _pairs(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return [(str(m), int(s)) for m, s in frame[["method", "seed"]].drop_duplicates().itertuples(index=False)]


@once
def whose(run: Run) -> str:
    """How many clients count, as a text for a sentence about the protocol; "" if all do."""
    count = sum(c.never for c in left_out(run))
    kind = {"all": "clients", "participants": "of the round's participants", "new": "clients"}
    total, new = len(expected(run)), "new " * run.of_new_clients
    return f"{total - count} of {total} {new}{kind[run.protocol.clients]}" if count else ""


@once
def sentences(run: Run) -> list[str]:
    """Which clients do not count and why, and which methods have no number or lack seeds; empty if all is there."""
    lines, clients = [], left_out(run)
    if clients:
        why: dict[str, list[str]] = {}
        for c in clients:
            why.setdefault(c.why, []).append(c.name)
        few = "; ".join(f"{listed(who, _NAMED)} ({reason})" for reason, who in why.items())
        over, total = whose(run), len(expected(run))
        if sum(c.never for c in clients) == total:
            start = f"There are no numbers, because none of the {total} clients has results of all methods"
        elif over:
            start = f"Numbers are over {over}, the same for every method"
        else:
            start = "Numbers are over the same clients for every method"
        lines.append(f"{start}. Not counted: {few}.")
    by_seed: dict[int, list[str]] = {}
    for method, seed in alone(run):
        by_seed.setdefault(seed, []).append(run.titles[method])
    every = {int(s) for s in run.final["seed"].unique()}
    for titles in dict.fromkeys(map(tuple, by_seed.values())):
        seeds = [seed for seed, those in by_seed.items() if tuple(those) == titles]
        when = "" if set(seeds) == every else f" with {_seeds(seeds)}"
        verb, lack = ("shares", "it has no number") if len(titles) == 1 else ("share", "they have no numbers")
        lines.append(f"{_and(titles)} {verb} no client with another method{when}, so {lack} to compare{when}.")
    for method, title in run.titles.items():
        own = {int(s) for s in run.final.loc[run.final["method"] == method, "seed"]}
        if own and own != every:
            lines.append(f"{title} has no results of {_seeds(every - own)}: its numbers are of {_seeds(own)} alone.")
    new = run.settled(run.select("new", run.score.metric))
    absent = sorted(set(new["client"]) - set(shared(new, "seed")["client"]))
    if not run.of_new_clients and absent:
        client_names = names(run)
        who = listed(dict.fromkeys(client_names.get(c, str(c)) for c in absent), _NAMED)
        lines.append(f"New clients count only where all methods have results of them. Not counted: {who}.")
    return lines


def _seeds(seeds: Iterable[int]) -> str:
    each = sorted(seeds)
    return f"seed{'s' * (len(each) > 1)} {_and(map(str, each))}"


def _and(names: Iterable[str]) -> str:
    each = list(names)
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"
