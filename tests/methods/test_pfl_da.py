"""PFL-DA: rounds by hand in numpy, and the traps of public versions."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.methods.pfl_da import Own
from idiolect.training import trained, untrained

ROWS = o.federation()
COMMON = o.weights(1)
OWN = {k: o.weights(20 + k) for k in range(len(o.SIZES))}
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
NEW = 4  # of the participants, the one that has never trained


def state(p: o.Params) -> Own:
    return Own(o.body_of(p), o.head_of(p))


def held(k: int, p: o.Params, head: o.Params, pull: float, epochs: int | None) -> o.Params:
    """The client's own head, trained on the body of ``p`` near to the head of ``head``."""
    error = o.head_gradient(*ROWS[k])

    def gradient(p: o.Params, rows: np.ndarray) -> o.Params:
        return {n: g + pull * (p[n] - head[n]) for n, g in error(p, rows).items()}

    return o.descend(p, "Uc", o.batches(o.SIZES[k], epochs or o.EPOCHS), gradient)


def expected(k: int, p: o.Params, w: o.Params, options: dict[str, Any]) -> tuple[o.Params, o.Params]:
    """What client k keeps after a round from ``p`` and the common head, and the model that gives the upload."""
    pull, epochs = options.get("pull", 1.0), options.get("head_epochs")
    both = o.descend(p | {n: w[n] for n in "Uc"}, "WbUc", o.batches(o.SIZES[k]), o.whole_gradient(*ROWS[k]))
    body_first = options.get("first", "body") == "body"
    start = {n: both[n] for n in "Wb"} if body_first else {n: p[n] for n in "Wb"}
    head = held(k, start | {n: p[n] for n in "Uc"}, w, pull, epochs)
    return {n: both[n] for n in "Wb"} | {n: head[n] for n in "Uc"}, both


OPTIONS: list[dict[str, Any]] = [
    {},
    {"pull": 0.0, "weighting": "samples"},
    {"pull": 3.0, "head_epochs": 4},
    {"first": "head", "pull": 0.4},
    {"preset": "pfllib", "head_epochs": 1},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_rounds_by_hand(options: dict[str, Any]) -> None:
    """Client 2 stays away, and client 4 has never trained."""
    method = methods.build("pfl_da", options, o.task())
    settled = methods.settle("pfl_da", options)
    before = OWN | {NEW: {n: OWN[NEW][n] for n in "Wb"} | {n: COMMON[n] for n in "Uc"}}
    clients = {k: (untrained if k == NEW else trained)(state(OWN[k])) for k in o.IDS}
    after, new, up, _ = o.round_of(method, o.head_of(COMMON), clients, ROWS)
    ends = {k: expected(k, before[k], COMMON, settled) for k in o.IDS}
    for at, k in enumerate(o.IDS):
        mine, both = ends[k]
        tree.map(close, new[k].value, state(mine))
        tree.map(close, tree.rows(up.value, at), o.head_of({n: both[n] - COMMON[n] for n in "Uc"}))
        down = o.one(method, after, k)
        kept = method.personalise(down, new[k], o.data(*ROWS[k]), o.key())
        close(method.predict(down, kept, torch.tensor(TEST)), o.log_probability(mine, TEST))
    weight = [o.SIZES[k] if settled["weighting"] == "samples" else 1 for k in o.IDS]
    close(up.weight, weight)
    want = {n: o.average([ends[k][1][n] for k in o.IDS], weight) for n in "Uc"}
    tree.map(close, after, o.head_of(want))


@pytest.mark.parametrize("first", ["body", "head"])
def test_the_pull_reaches_the_head(first: str) -> None:
    """In PFLlib it has no gradient: the stronger it is, the nearer the head must be."""
    gaps = []
    for pull in (0.0, 0.5, 5.0):
        method = methods.build("pfl_da", {"pull": pull, "first": first}, o.task())
        down = o.one(method, o.head_of(COMMON), 0)
        new, _, info = method.local(down, trained(state(OWN[0])), o.data(*ROWS[0]), o.key())
        gaps.append(float(tree.square_distance(new.value.head, o.head_of(COMMON)).sqrt()))
        close(info["distance"], gaps[-1])
    assert gaps[0] > 1.2 * gaps[1] > 1.44 * gaps[2]


@pytest.mark.parametrize("k", [0, 3, 4])
def test_a_new_client_does_one_rounds_work_from_the_initial_body_and_the_received_head(k: int) -> None:
    method = methods.build("pfl_da", {}, o.task())
    down = o.one(method, o.head_of(COMMON), 1000 + k)
    start = {n: OWN[k][n] for n in "Wb"} | {n: COMMON[n] for n in "Uc"}
    mine = method.personalise(down, untrained(state(OWN[k])), o.data(*ROWS[k]), o.key())
    want, _ = expected(k, start, COMMON, {})
    close(method.predict(down, mine, torch.tensor(TEST)), o.log_probability(want, TEST))


def test_only_the_head_is_sent() -> None:
    method = methods.build("pfl_da", {}, o.task())
    down = o.one(method, method.init_server(o.key()), 0)
    _, up, _ = method.local(down, untrained(state(OWN[0])), o.data(*ROWS[0]), o.key())
    head = o.head_of(COMMON)
    assert tree.same_form(up.value, head)
    assert tree.same_form(down.shared, head)


@pytest.mark.parametrize("options", [{"pull": -1}, {"head_epochs": 0}, {"first": "both"}, {"weighting": "rounds"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="is not valid"):
        methods.settle("pfl_da", options)
