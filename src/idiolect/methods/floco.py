"""Floco: a simplex of heads, of which each client gets its own region."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from idiolect.core.errors import InputError
from idiolect.core.method import Data, Down, Method, Model, Reduced, Task, Up, Weights, keys, reduce, tree, unchanged
from idiolect.training import (
    Batch,
    Personal,
    batches,
    log_softmax_of,
    mean,
    rows,
    sgd,
    stateless,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"radius": "0.01..0.5:log", "endpoints": "3..10"}
PRESETS: dict[str, dict[str, Any]] = {"official": {"personal_region": "whole", "pull_form": "released"}}
VARIANTS: dict[str, dict[str, Any]] = {"Floco+": {"personal_epochs": 5}}
_SIZES = 1000  # of the simplex on which the clients' points are projected
_NEAR = 1e-4  # a smaller distance counts as this

# M endpoints, K clients, m participants


class Simplex(NamedTuple):
    """A network whose head is a point of a simplex."""

    body: Weights
    ends: Weights
    """The head's matrices at each endpoint: (M, ...)."""
    rest: Weights
    """The head's vectors, which are the same everywhere."""


class Server(NamedTuple):
    """What the server keeps."""

    model: Simplex
    beta_KM: Tensor
    """The centre of each client's region; a row of zeros is the centre of the simplex."""
    known_K: Tensor
    """1 for clients that have a region."""
    round: Tensor


class Region(NamedTuple):
    """Where a client draws its points."""

    beta_M: Tensor
    known: Tensor
    """0: on the whole simplex."""
    finding: Tensor
    """1 in the round in which regions are found, in which no copy trains."""


def floco(
    task: Task,
    *,
    endpoints: PositiveInt | None = None,
    start_round: NonNegativeInt = 10,
    radius: NonNegativeFloat = 0.1,
    personal_epochs: NonNegativeInt = 0,
    pull: NonNegativeFloat = 1.0,
    pull_form: Literal["proximal", "released"] = "proximal",
    personal_region: Literal["client", "whole"] = "client",
) -> Method:
    """Floco: regions of a solution simplex for heterogeneous clients (Grinwald, Wiesner & Nakajima, NeurIPS 2024).

    The head's matrices at a point a of the simplex of M endpoints W_1 .. W_M are sum_j a_j W_j                     [1]
    Client, for each mini-batch, from the received body, endpoints and bias:
        a uniform on the simplex                                     until the client has a region                  [2]
        a = beta_i + r u / |u|_1,  u uniform in [-1, 1]^M, r uniform in [0, ``radius``]              from then on    [3]
        (body, W, bias) <- SGD step of the loss at a                                                                [4]
    Server:
        (body, W, bias) <- means of the participants', weighted by n_i samples                                      [5]
    Server, after round ``start_round`` + 1, in which all clients train and no mean is taken:
        kappa_i = the first M principal components of the W of client i, over all clients                           [6]
        b_i(z) = projection of kappa_i on {b >= 0, sum b = z}, divided by z;  of z = 1e-4 .. 1, 1000 in a row,
        beta_i = b_i(z) with the least mean over pairs of 1 / |b_i(z) - b_j(z)|^2                                   [7]
    Personal: the server's model at beta_i; at the centre until the client has a region                             [8]
    Personal, with ``personal_epochs`` (Floco+): a copy v_i of body, W and bias, at the same point, trained after [4]:
        v_i <- SGD(loss at points as in [2] or [3] + ``pull`` / 2 |v_i - received|^2)                               [9]

    Points of [3] may lie outside of the simplex. A client's region is found once.

    Up: increments of body, endpoints and bias, weighted by n_i samples. Down: body, endpoints, bias, and to each client
    its beta_i. At the client: nothing; with ``personal_epochs`` v_i, which an absent client keeps. Secure aggregation
    cannot hide the endpoints, because [6] compares them. A new client has no region: it takes the centre, and trains
    v_i from the received model.

    Args:
        task: the problem.
        endpoints: M; None: 10, or the number of clients if that is less (released code: 10; for CIFAR-10: 20).
        start_round: tau, rounds before the clients' regions are found (released code: 10; for CIFAR-10: 250 of 500). In
            a run with no more rounds than this nobody gets a region.
        radius: rho (released code: 0.1; for CIFAR-10: 0.01).
        personal_epochs: of v_i; 0 has no v_i. Floco+ with 5 (released code for CIFAR-10).
        pull: lambda of [9] (released code: 1).
        pull_form: the gradient of the pull: lambda (v_i - received), or lambda v_i - received, without brackets as in
            the released code; with a lambda of 1 they are the same.
        personal_region: whether v_i is drawn and measured in the client's region, or on the whole simplex and at its
            centre (released code).

    Raises:
        InputError: more endpoints than clients.

    Source: the paper's algorithm; released code (dennis-grinwald/floco).
    Differs from source: [6] takes a round of its own here; there the clients that are drawn train a second time in that
    round. Endpoints start as torch's layers do; there by Xavier's method. Of a large head the principal components are
    estimated at random there, and exact here. The momentum of v_i is fresh in every round. v_i starts at the model that
    the client receives first; there at the initial model.
    """
    network, training = task.network, task.training
    count = min(10, task.clients) if endpoints is None else endpoints
    if count > task.clients:
        raise InputError(
            f"method floco: endpoints={count} are more than the {task.clients} clients, whose differences they span: "
            f"choose at most {task.clients}"
        )

    def init_server(key: Tensor) -> Server:
        heads = [network.init(k).head for k in keys.members(key, count)]
        ends = {n: torch.stack([head[n] for head in heads]) for n, w in heads[0].items() if w.ndim > 1}
        rest = {n: w for n, w in heads[0].items() if w.ndim <= 1}
        beta_KM = torch.zeros((task.clients, count))
        model = Simplex(network.init(key).body, ends, rest)
        return Server(model, beta_KM, torch.zeros(task.clients), torch.tensor(0))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        return untrained(init_server(key).model)

    def send(server: Server, ids: Tensor) -> Down:
        row_m, member_m = ids.clamp(max=task.clients - 1), ids < task.clients
        beta_mM = torch.where(member_m[:, None], server.beta_KM[row_m], 0.0)
        beta_mM = torch.where(beta_mM.sum(1, keepdim=True) > 0, beta_mM, 1 / count)
        known_m = torch.where(member_m, server.known_K[row_m], 0.0)
        return Down(server.model, Region(beta_mM, known_m, torch.full_like(known_m, int(server.round) == start_round)))

    def at(simplex: Simplex, point_M: Tensor) -> Model:
        mixed = {n: torch.tensordot(point_M, w_M, 1) for n, w_M in simplex.ends.items()}
        return Model(simplex.body, simplex.rest | mixed)  # [1]

    def train(
        start: Simplex,
        region: Region,
        data: Data,
        key: Tensor,
        epochs: int | None = None,
        anchor: Simplex | None = None,
    ) -> tuple[Simplex, Tensor]:
        def loss(simplex: Simplex, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            point_M = draw(keys.fold(keys.fold(key, "points"), batch.step), region, radius)  # [2] [3]
            x_B, y_B = rows(task, data, batch)
            error = mean(task.loss(network(at(simplex, point_M), task.inputs(x_B)), y_B), batch.used_B)  # [4]
            total = error
            if anchor is not None and pull_form == "proximal":
                total = error + pull / 2 * tree.square_distance(simplex, anchor)  # [9]
            elif anchor is not None:
                total = error + pull / 2 * tree.dot(simplex, simplex) - tree.dot(simplex, anchor)  # [9]
            return total, (error, batch.used_B.sum())

        end, extras = sgd(loss, start, batches(data, training, key, epochs=epochs), training.optimiser)  # [4]
        return end, trained_loss(extras)

    def of_copy(region: Region) -> Region:
        if personal_region == "client":
            return region
        return region._replace(beta_M=torch.full_like(region.beta_M, 1 / count), known=torch.zeros_like(region.known))

    def copy(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        """With v_i after its training."""
        start = tree.when(client.trained, lambda: client.value, lambda: down.shared)
        end, _ = train(start, of_copy(down.own), data, keys.fold(key, "copy"), personal_epochs, down.shared)  # [9]
        return trained(end)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        end, loss = train(down.shared, down.own, data, key)
        if personal_epochs:
            client = tree.when(down.own.finding, lambda: client, lambda: copy(down, client, data, key))
        return client, Up(tree.sub(end, down.shared), data.real_N.sum()), {"train_loss": loss}

    def aggregate(server: Server, up: Reduced, ids: Tensor) -> tuple[Server, dict[str, Tensor]]:
        if int(server.round) == start_round:
            flat_mP = torch.cat([w_m.flatten(1) for w_m in tree.leaves(up.value.ends)], 1)
            beta_mM = regions(components(flat_mP.double(), count)).to(server.beta_KM.dtype)
            beta_KM = server.beta_KM.index_copy(0, ids, beta_mM)
            known_K = server.known_K.index_fill(0, ids, 1.0)
            return Server(server.model, beta_KM, known_K, server.round + 1), {}
        step = up.value._replace(ends=tree.mean(up.value.ends, up.weight_m))  # [5]
        return server._replace(model=tree.add(server.model, step), round=server.round + 1), {}  # [5]

    def personalise(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        state: Personal = tree.when(client.trained, lambda: client, lambda: copy(down, client, data, key))
        return state

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        if personal_epochs:
            return log_softmax_of(task, at(client.value, of_copy(down.own).beta_M), x_B)
        return log_softmax_of(task, at(down.shared, down.own.beta_M), x_B)  # [8]

    parts = Simplex(body=reduce.mean(), ends=reduce.each(), rest=reduce.mean())  # [5] [6]
    start, finish = (init_client, personalise) if personal_epochs else (stateless, unchanged)
    return Method(
        init_server, start, send, local, parts, aggregate, finish, predict, full_rounds=(start_round + 1,)
    )  # [6]


def draw(key: Tensor, region: Region, radius: float) -> Tensor:
    """A point (M,): near the centre of the region, or anywhere on the simplex where that is not known."""
    size = len(region.beta_M)
    share = ((keys.bits(key, 2 * size + 1) & (2**53 - 1)).double() + 1) / 2**53
    length_M, side_M = -share[:size].log(), 2 * share[size : 2 * size] - 1
    anywhere_M = length_M / length_M.sum()  # [2]
    near_M = region.beta_M + radius * share[-1] * side_M / side_M.abs().sum()  # [3]
    return torch.where(region.known > 0, near_M, anywhere_M).to(region.beta_M.dtype)


def components(flat_mP: Tensor, count: int) -> Tensor:
    """The first principal components of each row, (m, M); the largest entry of each direction is positive."""
    u, s, v = torch.linalg.svd(flat_mP - flat_mP.mean(0), full_matrices=False)
    sign_r = v.gather(1, v.abs().argmax(1, keepdim=True)).sign()[:, 0]
    kappa_mr = (u * s * sign_r)[:, :count]  # [6]
    return torch.nn.functional.pad(kappa_mr, (0, count - kappa_mr.shape[1]))


def regions(kappa_mM: Tensor) -> Tensor:
    """beta (m, M) of each client, from its principal components."""
    if len(kappa_mM) == 1:
        return onto_simplex(kappa_mM, 1.0)
    size_S = torch.linspace(1e-4, 1, _SIZES, dtype=kappa_mM.dtype)
    beta_SmM = torch.stack([onto_simplex(kappa_mM, float(size)) / size for size in size_S])
    first, second = torch.triu_indices(len(kappa_mM), len(kappa_mM), 1)
    # one size after another: all pairs of some hundred clients at all sizes would take gigabytes
    apart_Sp = [(beta_mM[first] - beta_mM[second]).norm(dim=-1).clamp(min=_NEAR) for beta_mM in beta_SmM]
    return beta_SmM[torch.stack([apart_p.pow(-2).mean() for apart_p in apart_Sp]).argmin()]  # [7]


def onto_simplex(point_mM: Tensor, size: float) -> Tensor:
    """The nearest points with no negative coordinate and this sum."""
    high_mM = point_mM.sort(dim=1, descending=True).values
    over_mM = (high_mM.cumsum(1) - size) / torch.arange(1, point_mM.shape[1] + 1)
    last_m1 = ((high_mM > over_mM).sum(1, keepdim=True) - 1).clamp(min=0)
    return (point_mM - over_mM.gather(1, last_m1)).clamp(min=0)
