"""FedCAC: recorded rounds, rounds by hand, its options and its traps.

The record is of the authors' released code. Every array of it is compared, within 1e-5 and the masks exactly; the
custom models, which the method does not keep, are formed here from its own weights of the clients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle as o
import pytest
import recorded as r
import replay
import torch
from oracle import close

from idiolect import methods
from idiolect.core import tree
from idiolect.core.method import SGD
from idiolect.core.network import Model
from idiolect.methods import fedcac

ROWS = o.federation()
START = o.weights(1)
TEST = np.random.default_rng(5).normal(size=(7, o.INPUTS))
CRITICAL, BETA = 0.5, 4.0  # of the record


@pytest.mark.parametrize("part", ["all", "partial"])
def test_recorded_rounds(part: str) -> None:
    f = r.read("fedcac")
    method = methods.build("fedcac", {"critical": CRITICAL, "beta": BETA}, r.task(f, SGD(0.05, 0.0, 0.0), 2))
    start = r.model(f, "init")
    server, clients = begin(method, start), [()] * len(r.clients(f))
    for number in range(r.count(f, part)):
        at = f"{part}/round{number}"
        before, ids = server, f[f"{at}/participants"].tolist()
        server, clients, ups = replay.round_of(method, server, clients, f, ids)
        current = tree.map(
            lambda old, *new, ids=ids: old.index_copy(0, torch.tensor(ids), torch.stack(new)),
            before.models,
            *[up.value for up in ups],
        )
        for k in r.clients(f):
            r.same(tree.rows(current, k), r.model(f, f"{at}/trained", k))
            r.same(tree.rows(server.models, k), r.model(f, f"{at}/clients", k))
            mask = torch.cat([m[k].flatten() for m in tree.leaves(server.critical)])
            np.testing.assert_array_equal(mask.numpy(), f[f"{at}/critical"][k])
        r.same(server.common, r.model(f, f"{at}/global"))
        known_K = server.n_K > 0
        share_KK = fedcac.partners(fedcac.overlaps(server.critical, known_K), known_K, (number + 1) / BETA)
        custom = tree.map(lambda w_K, s=share_KK: torch.tensordot(s, w_K, 1), current)
        for k in r.clients(f):
            r.same(tree.rows(custom, k), r.model(f, f"{at}/customised", k))
    for k in r.clients(f):
        right = replay.logits_agree(method, o.one(method, server, k), (), f, k, f"{part}/final/logits")
        close(right / len(r.rows(f, k, "_test")[1]), f[f"{part}/final/accuracy"][k], rtol=1e-6)


def begin(method: Any, start: Model) -> Any:
    server = method.init_server(o.key())
    models = tree.map(lambda w, like: w.expand_as(like).clone(), start, server.models)
    return server._replace(models=models, common=start)


# --- by hand --------------------------------------------------------------------------------------------------------


def flat(p: o.Params) -> np.ndarray:
    return np.concatenate([p[n].ravel() for n in "WbUc"])


def mask_of(old: o.Params, new: o.Params, share: float) -> np.ndarray:
    masks = []
    for n in "WbUc":
        c = np.abs((new[n] - old[n]) * new[n]).ravel()
        q = int(share * len(c))
        if q == 0:
            masks.append(np.zeros(len(c)))
            continue
        least = np.sort(c)[::-1][q - 1]
        if least <= 1e-10 and (c > 1e-20).any():
            least = c[c > 1e-20].min()
        masks.append((c >= least).astype(float))
    return np.concatenate(masks)


class Hand:
    """The method in numpy, with flat weights."""

    def __init__(self, share: float, beta: float) -> None:
        self.share, self.beta, self.t = share, beta, 0
        self.w = {k: START for k in range(len(o.SIZES))}
        self.mask: dict[int, np.ndarray] = {}
        self.common = flat(START)

    def round(self, ids: tuple[int, ...]) -> None:
        for k in ids:
            old = self.w[k] if k in self.mask else unflat(self.common)
            x, y = ROWS[k]
            self.w[k] = o.descend(old, "WbUc", o.batches(len(y)), o.whole_gradient(x, y))
            self.mask[k] = mask_of(old, self.w[k], self.share)
        known = sorted(self.mask)
        whole = {k: flat(self.w[k]) for k in known}
        self.common = o.average([whole[k] for k in known], [o.SIZES[k] for k in known])
        pairs = {}
        for i in known:
            for j in known:
                if i != j and self.mask[i].sum():
                    pairs[i, j] = 1 - np.abs(self.mask[i] - self.mask[j]).sum() / (2 * self.mask[i].sum())
        mean, high = np.mean(list(pairs.values())), max(pairs.values())
        least = mean + (self.t + 1) / self.beta * (high - mean)
        for i in known:
            near = [i] + [j for j in known if j != i and pairs[i, j] >= least]
            custom = np.mean([whole[j] for j in near], 0)
            self.w[i] = unflat(self.mask[i] * custom + (1 - self.mask[i]) * self.common)
        self.t += 1


def unflat(a: np.ndarray) -> o.Params:
    p, at = {}, 0
    for n in "WbUc":
        p[n] = a[at : at + START[n].size].reshape(START[n].shape)
        at += START[n].size
    return p


def same(model: Model, p: o.Params) -> None:
    for got, want in zip(tree.leaves(model), (p["W"], p["b"], p["U"], p["c"]), strict=True):
        close(got, want)


@pytest.mark.parametrize(
    "options", [{"critical": 0.3, "beta": 5.0}, {"critical": 0.7, "beta": 2.5}, {"critical": 1.0}, {"beta": 0.5}]
)
def test_rounds_by_hand(options: dict[str, Any]) -> None:
    """Client 2 never takes part, clients 1 and 3 not in the second round, and one comes late."""
    method = methods.build("fedcac", options, o.task())
    server, hand = begin(method, o.model_of(START)), Hand(options.get("critical", 0.5), options.get("beta", 100.0))
    for ids in ((0, 1, 3), (0, 4), (1, 3, 4)):
        server, _, _, info = o.round_of(method, server, dict.fromkeys(ids, ()), ROWS)
        hand.round(ids)
        assert info["overlap"].shape == (len(ids), len(ids))
        for k in hand.mask:
            same(o.one(method, server, k).own, hand.w[k])
        for k in (2, 99):  # never drawn, and new
            same(o.one(method, server, k).own, unflat(hand.common))
            down = o.one(method, server, k)
            close(method.predict(down, (), torch.tensor(TEST)), o.log_probability(unflat(hand.common), TEST))


# --- traps ----------------------------------------------------------------------------------------------------------


def test_ties_are_all_critical_and_a_tensor_that_stands_still_is_critical_as_a_whole() -> None:
    c_m = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], [1e-15, 0.0, 0.0, 1e-12, 0.0]])
    want = [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 0, 0, 1, 0]]
    close(fedcac.largest(c_m, 0.6), want)
    close(fedcac.largest(c_m, 0.1), np.zeros((3, 5)))


def test_from_round_beta_on_critical_weights_are_the_client_s_own() -> None:
    method = methods.build("fedcac", {"beta": 1.5}, o.task())
    server = begin(method, o.model_of(START))
    for _ in range(2):
        server, _, ups, info = o.round_of(method, server, dict.fromkeys(o.IDS, ()), ROWS)
    assert info["partners"].tolist() == [1] * len(o.IDS)
    for at, k in enumerate(o.IDS):
        for w, m, got, common in zip(
            *map(tree.leaves, (tree.rows(ups.value, at), tree.rows(server.critical, k), tree.rows(server.models, k),
                               server.common)),
            strict=True,
        ):  # fmt: skip
            close(got, torch.where(m > 0, w, common))


def test_the_nearest_pair_still_works_together_in_round_beta() -> None:
    overlap_KK = torch.tensor([[0.0, 0.61, 0.3], [0.61, 0.0, 0.4], [0.3, 0.4, 0.0]], dtype=torch.float64)
    known_K = torch.ones(3, dtype=torch.bool)
    half = [0.5, 0.5, 0.0]
    close(fedcac.partners(overlap_KK, known_K, 1.0), [half, half, [0.0, 0.0, 1.0]])
    close(fedcac.partners(overlap_KK, known_K, 1.01), np.eye(3))


def test_one_client_alone_has_no_partner() -> None:
    method = methods.build("fedcac", {}, o.task())
    server = begin(method, o.model_of(START))
    server, _, ups, _ = o.round_of(method, server, {1: ()}, ROWS)
    r.same(o.one(method, server, 1).own, tree.rows(ups.value, 0))
