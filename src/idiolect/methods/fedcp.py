"""FedCP: each sample's features are divided between a common head and a personal one."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import layer_norm, linear, relu

from idiolect.core.method import Data, Down, Method, Task, Tree, Up, Weights, keys, new_linear, reduce, tree
from idiolect.training import (
    Batch,
    Personal,
    add,
    batch_features,
    batches,
    joins_by_training,
    mean,
    require_linear_head,
    rows,
    sgd,
    trained,
    trained_loss,
    untrained,
)

SEARCH = {"alignment": "0.1..10:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "official": {"noise": True, "context": "random", "renewed": "participants"},
}
_WIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels
_EPS = 1e-12  # the least length of a context


class Policy(NamedTuple):
    """A linear layer d -> 2 d, a layer normalisation over all its outputs, then relu."""

    layer: Weights
    norm: Weights


class Shared(NamedTuple):
    """What the server sends, and what a client sends the increments of."""

    body: Weights
    head: Weights
    policy: Policy


class Kept(NamedTuple):
    """The common head and the policy as a client has them."""

    head: Weights
    policy: Policy
    newest: Tensor
    """1 where the client gets the server's next ones."""


class Own(NamedTuple):
    """What stays at a client."""

    head: Weights
    context_d: Tree
    """v before the client's first round, where it is random; else ()."""
    kept: Tree
    """``Kept`` where the participants alone are given the common head and the policy; else ()."""


class Moving(NamedTuple):
    """What a client trains."""

    body: Weights
    head: Weights
    policy: Policy


def fedcp(
    task: Task,
    *,
    alignment: NonNegativeFloat = 5.0,
    noise: bool = False,
    context: Literal["head", "random"] = "head",
    renewed: Literal["all", "participants"] = "all",
) -> Method:
    """FedCP: a conditional policy divides features between a common head and a personal one (Zhang et al., KDD 2023).

    (r, s) = softmax over the two rows of policy(z * v_i / |v_i|),  z = body(x); r + s = 1 in each dimension   [1]
    v_i = the sum of the rows of the weights of head_i                                                        [2]
    logits = head_i(z * r) + head(z * s)                                                                      [3]
    Client, with the received body, head and policy, and its own head_i:
        (body_i, head_i, policy_i) <- SGD(CE(logits) + alignment MMD(z, z_0)),  z_0 = the received body(x)    [4]
        MMD = mean over all pairs a, b of a batch of  sum_w k_w(z_a, z_b) + k_w(z_0a, z_0b) - 2 k_w(z_a, z_0b),
        k_w(p, q) = exp(-|p - q|^2 / (2 w)),  w = 10, 15, 20, 50                                               [5]
    Server, over the participants i of a round, weighted by n_i samples:
        body <- mean body_i,  head <- mean (head_i + head) / 2,  policy <- mean policy_i                      [6]
    Personal:
        logits, with the received body, head and policy                                                       [7]

    The received head and v_i do not move in [4].

    Up: increments of body, head and policy, weighted by n_i samples. Down: body, head, policy. At the client: head_i. A
    client that has never trained begins with the received head as its own. A new client does one round's local work and
    keeps head_i.

    Args:
        task: the problem; the network's head is one linear layer.
        alignment: lambda (released code: 0 by default, 5 in its script).
        noise: whether Gumbel noise is added to the policy's outputs in training (released code), with new draws for
            every batch. The authors' slides have none.
        context: v_i before a client's first round: by [2], or random, uniform in 0..1 (released code).
        renewed: who gets the newest head and policy: all clients, or the participants of the last round alone (released
            code); the others then go on with those that they have, and with the newest body.

    Raises:
        InputError: the network's head is not one linear layer.

    Source: the paper's algorithm; released code TsingZ0/FedCP.
    Differs from source: predictions have no noise; the released code adds it there too, so that two tests of one model
    differ. It leaves out an incomplete last batch, which is the study's drop_last.
    """
    require_linear_head(task, "fedcp", "its context is the sum of the rows of the head's weights")
    network = task.network
    own_context, keeps = context == "random", renewed == "participants"

    def init_server(key: Tensor) -> Shared:
        d = network.width
        norm = {"weight": torch.ones(2 * d), "bias": torch.zeros(2 * d)}
        model = network.init(key)
        return Shared(model.body, model.head, Policy(new_linear(keys.fold(key, "policy"), d, 2 * d), norm))

    def init_client(key: Tensor, id: Tensor) -> Personal:
        server = init_server(key)
        context_d: Tree = ()
        if own_context:
            bits_d = keys.bits(keys.fold(keys.fold(key, "context"), id), network.width)
            context_d = (bits_d & (2**53 - 1)).to(torch.get_default_dtype()) / 2**53
        kept: Tree = Kept(server.head, server.policy, torch.ones(())) if keeps else ()
        return untrained(Own(server.head, context_d, kept))

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def common(down: Down, client: Personal) -> Shared:
        """The newest body, and the head and the policy that the client uses."""
        newest: Shared = down.shared
        if not keeps:
            return newest
        kept: Kept = client.value.kept
        return tree.when(kept.newest, lambda: newest, lambda: newest._replace(head=kept.head, policy=kept.policy))

    def context_of(client: Personal, head: Weights) -> Tensor:
        v_d: Tensor = head["weight"].sum(0)  # [2]
        if own_context:
            v_d = torch.where(client.trained > 0, v_d, client.value.context_d)
        unit_d: Tensor = v_d / v_d.norm().clamp(min=_EPS)
        return unit_d

    def logits(z_Bd: Tensor, own: Weights, head: Weights, policy: Policy, v_d: Tensor, noise_B2d: Any = 0.0) -> Tensor:
        a_Be = linear(z_Bd * v_d, **policy.layer)
        a_Be = relu(layer_norm(a_Be, a_Be.shape[1:], policy.norm["weight"], policy.norm["bias"]))
        a_B2d = a_Be.view(-1, 2, network.width)
        r_Bd, s_Bd = torch.softmax(a_B2d + noise_B2d, 1).unbind(1)  # [1]
        return network.logits(own, z_Bd * r_Bd) + network.logits(head, z_Bd * s_Bd)  # [3]

    def local(down: Down, client: Personal, data: Data, key: Tensor) -> tuple[Personal, Up, dict[str, Tensor]]:
        body, head, policy = shared = common(down, client)
        own_head: Weights = tree.when(client.trained, lambda: client.value.head, lambda: head)
        v_d = context_of(client, own_head)
        received = batch_features(task, body, data)

        def loss(moving: Moving, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(moving.body, task.inputs(x_B))
            draw: Any = 0.0
            if noise:
                draw = gumbel(keys.fold(keys.fold(key, "noise"), batch.step), (len(z_Bd), 2, z_Bd.shape[1]))
            logit_BC = logits(z_Bd, moving.head, head, moving.policy, v_d, draw)
            error = mean(task.loss(logit_BC, y_B), batch.used_B)
            apart = discrepancy(z_Bd, received(batch)[0], batch.used_B)
            return error + alignment * apart, (error, batch.used_B.sum(), apart)  # [4]

        plan = batches(data, task.training, key)
        moving, seen = sgd(loss, Moving(body, own_head, policy), plan, task.training.optimiser)  # [4]
        mixture = tree.map(lambda a, b: (a + b) / 2, moving.head, head)  # [6]
        up = Up(tree.sub(Shared(moving.body, mixture, moving.policy), down.shared), data.real_N.sum())
        kept: Tree = Kept(shared.head, shared.policy, torch.ones(())) if keeps else ()
        info = {
            "train_loss": trained_loss([s[:2] for s in seen]),
            "alignment": trained_loss([(s[2], s[1]) for s in seen]),
        }
        return trained(client.value._replace(head=moving.head, kept=kept)), up, info

    def stand_by(down: Down, client: Personal, data: Data, key: Tensor) -> Personal:
        shared = common(down, client)
        kept = Kept(shared.head, shared.policy, torch.zeros(()))
        return client._replace(value=client.value._replace(kept=kept))

    def predict(down: Down, client: Personal, x_B: Tensor) -> Tensor:
        body, head, policy = common(down, client)
        own: Weights = client.value.head
        z_Bd = network.features(body, task.inputs(x_B))
        output: Tensor = task.output(logits(z_Bd, own, head, policy, context_of(client, own)))  # [7]
        return output

    parts = reduce.increment()  # [6]
    method = Method(init_server, init_client, send, local, parts, add, joins_by_training(local), predict)
    return method._replace(stand_by=stand_by if keeps else None, own_start=own_context)


def gumbel(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Standard Gumbel draws."""
    count = torch.Size(shape).numel()
    open_unit = ((keys.bits(key, count) & (2**53 - 1)).double() + 0.5) / 2**53
    return -(-open_unit.log()).log().to(torch.get_default_dtype()).reshape(shape)


def discrepancy(z_Bd: Tensor, other_Bd: Tensor, used_B: Tensor) -> Tensor:
    """MMD of two sets of features, by pairs of the samples that are not padding."""
    both_Md = torch.cat([z_Bd, other_Bd])
    length_M = both_Md.square().sum(1)
    # from products, because differences would need (M, M, d) numbers
    square_MM = (length_M[:, None] + length_M - 2 * both_Md @ both_Md.T).clamp(min=0)
    kernel_MM = torch.stack([(-square_MM / (2 * width)).exp() for width in _WIDTHS]).sum(0)  # [5]
    sign_M = torch.cat([used_B, -used_B]) / used_B.sum().clamp(min=1)
    return sign_M @ kernel_MM @ sign_M  # [5]
