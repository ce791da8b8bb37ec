"""A round of six methods against bare PyTorch loops of the same definitions, the two in turns, in one run.

The loops are what one would write by hand, without a federation and without keys: torch.nn.Module, autograd,
torch.optim.SGD(fused=True), channels-last, what does not change computed once. Clients, network and batches are those
of methods.py: five clients of 200 random images, FMNIST-CNN, 5 epochs of batches of 50, one process of one thread. A
round is the local work of all clients and the mean. Processor seconds, which other programs touch least; each of our
rounds is held against the mean of the loop's rounds before and after it.

    python benchmarks/method_loops.py [--methods fedala,moon] [--turns 7]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, linear, normalize, softplus

from common import CLASSES, SHAPES, federation
from idiolect import methods, models
from methods import CLIENTS, MODEL, ROWS, Rounds, setting

BATCH, EPOCHS = 50, 5
State = dict[str, Any]


class Network(nn.Module):
    """Body and head."""

    def __init__(self) -> None:
        super().__init__()
        body, head = models.NETWORKS[MODEL](SHAPES[MODEL], CLASSES)
        self.body = body.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.head, self.width = head, int(models.build(MODEL, SHAPES[MODEL], CLASSES).width)

    def forward(self, x_B: Tensor) -> Tensor:
        """Logits."""
        logit_BC: Tensor = self.head(self.body(x_B))
        return logit_BC


def sgd(weights: Any, **how: Any) -> torch.optim.SGD:
    """The optimiser of all methods."""
    return torch.optim.SGD(weights, **({"lr": 0.01, "momentum": 0.5, "weight_decay": 5e-4, "fused": True} | how))


class Client:
    """One client's images, and what it keeps."""

    def __init__(self, x_N: Tensor, y_N: Tensor) -> None:
        self.x_N, self.y_N, self.own = x_N, y_N, State()

    def batches(self, size: int = BATCH, epochs: int = EPOCHS) -> Iterator[Tensor]:
        """Places of samples."""
        for _ in range(epochs):
            yield from torch.split(torch.randperm(len(self.y_N)), size)

    def images(self, at_B: Tensor) -> Tensor:
        """Ready for the network."""
        x_B = self.x_N[at_B].float().contiguous(memory_format=torch.channels_last)
        return x_B.mul_(1 / 76.5).sub_(1.67)

    @torch.no_grad()
    def features(self, body: nn.Module) -> Tensor:
        """Of all images, (N, d)."""
        return torch.cat([body(self.images(at_B)) for at_B in torch.split(torch.arange(len(self.y_N)), BATCH)])


def train(network: Network, client: Client) -> None:
    """The usual local epochs."""
    optimiser = sgd(network.parameters())
    for at_B in client.batches():
        optimiser.zero_grad()
        cross_entropy(network(client.images(at_B)), client.y_N[at_B]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()


def fedala(network: Network, client: Client, server: State) -> None:
    """Weights of the head's entries by one pass over four fifths of the samples, then the local epochs."""
    if client.own:
        some = torch.randperm(len(client.y_N))[: int(0.8 * len(client.y_N))]
        with torch.no_grad():
            z_Nd = torch.cat([network.body(client.images(at_B)) for at_B in torch.split(some, BATCH)])
        old, weight = client.own["head"], client.own["weight"]
        gap = {k: w.detach() - old[k] for k, w in network.head.named_parameters()}
        for at_B in torch.split(torch.randperm(len(some)), BATCH):
            mixed = {k: (old[k] + gap[k] * weight[k]).requires_grad_() for k in gap}
            logit_BC = linear(z_Nd[at_B], mixed["weight"], mixed["bias"])
            slopes = torch.autograd.grad(cross_entropy(logit_BC, client.y_N[some[at_B]]), list(mixed.values()))
            for k, slope in zip(mixed, slopes, strict=True):
                weight[k] = (weight[k] - slope * gap[k]).clamp_(0, 1)
        network.head.load_state_dict({k: old[k] + gap[k] * weight[k] for k in gap})
    train(network, client)
    head = {k: w.detach().clone() for k, w in network.head.named_parameters()}
    client.own = {"head": head, "weight": client.own.get("weight") or {k: torch.ones_like(w) for k, w in head.items()}}


def feddbe(network: Network, client: Client, server: State) -> None:
    """A bias of the features, and a penalty on their running mean."""
    bias_d = client.own.setdefault("bias", torch.zeros(network.width)).requires_grad_()
    mean_d = torch.zeros_like(bias_d)
    common_d = server.setdefault("mean", torch.zeros_like(bias_d).detach())
    optimiser = sgd([*network.parameters(), bias_d])
    for at_B in client.batches():
        optimiser.zero_grad()
        z_Bd = network.body(client.images(at_B))
        mean_d = 0.9 * mean_d.detach() + 0.1 * z_Bd.mean(0)
        error = cross_entropy(network.head(z_Bd + bias_d), client.y_N[at_B])
        (error + (mean_d - common_d).square().mean() / 2).backward()
        optimiser.step()


class Branch(nn.Module):
    """Of GPFL's valve."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(d, d), nn.LayerNorm(d)

    def forward(self, u_d: Tensor) -> Tensor:
        """What the valve adds or multiplies by."""
        value_d: Tensor = self.norm(torch.relu(self.layer(u_d)))
        return value_d


def gpfl(network: Network, client: Client, server: State) -> None:
    """Two conditional inputs, embeddings of classes and a valve."""
    d = network.width
    parts = server.setdefault("parts", nn.ModuleList([Branch(d), Branch(d), nn.Embedding(CLASSES, d)]))
    scale, shift, embedding = copy.deepcopy(parts)
    first_Cd = embedding.weight.detach().clone()
    share_C = torch.bincount(client.y_N, minlength=CLASSES) / len(client.y_N)
    all_d, own_d = first_Cd.mean(0), share_C @ first_Cd
    moving = [*scale.parameters(), *shift.parameters(), *embedding.parameters()]
    optimiser = sgd([{"params": network.parameters()}, {"params": moving, "weight_decay": 0.1 + 5e-4}])
    for at_B in client.batches():
        optimiser.zero_grad()
        z_Bd, y_B = network.body(client.images(at_B)), client.y_N[at_B]
        own_Bd, all_Bd = (torch.relu(z_Bd * (scale(u_d) + 1) + shift(u_d)) for u_d in (own_d, all_d))
        cosine_BC = normalize(all_Bd) @ normalize(embedding.weight).T
        apart = (all_Bd - first_Cd[y_B]).norm(dim=1).mean()
        (cross_entropy(network.head(own_Bd), y_B) + cross_entropy(cosine_BC, y_B) + 0.01 * apart).backward()
        optimiser.step()


def fedas(network: Network, client: Client, server: State) -> None:
    """The body is aligned with the client's own prototypes; after training, squared gradients are added up."""
    own = client.own.setdefault("body", copy.deepcopy(network.body))
    hot_NC = nn.functional.one_hot(client.y_N, CLASSES).float()
    mean_Cd = hot_NC.T @ client.features(own) / hot_NC.sum(0).clamp(min=1)[:, None]
    optimiser = sgd(network.body.parameters(), momentum=0.0, weight_decay=0.0)
    for at_B in client.batches(16, 1):
        optimiser.zero_grad()
        gap_B = (network.body(client.images(at_B)) - mean_Cd[client.y_N[at_B]]).square().mean(1)
        (gap_B @ hot_NC[at_B] / hot_NC[at_B].sum(0).clamp(min=1)).sum().backward()
        optimiser.step()
    train(network, client)
    trace = torch.zeros(())
    for at_B in client.batches(epochs=1):
        error = cross_entropy(network(client.images(at_B)), client.y_N[at_B])
        trace += sum(g.square().sum() for g in torch.autograd.grad(error, list(network.parameters())))
    client.own["body"] = copy.deepcopy(network.body)


def moon(network: Network, client: Client, server: State) -> None:
    """A contrast between representations; those of the two constant models are computed once."""
    near_Nd = client.features(network.body)
    far_Nd = client.features(client.own["body"]) if client.own else near_Nd
    optimiser = sgd(network.parameters())
    for at_B in client.batches():
        optimiser.zero_grad()
        z_Bd = network.body(client.images(at_B))
        near_B, far_B = (cosine_similarity(z_Bd, other_Nd[at_B]) for other_Nd in (near_Nd, far_Nd))
        contrast = softplus((far_B - near_B) / 0.5).mean()
        (cross_entropy(network.head(z_Bd), client.y_N[at_B]) + 1.0 * contrast).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    client.own["body"] = copy.deepcopy(network.body)


def perfedavg(network: Network, client: Client, server: State) -> None:
    """Steps along the gradient after a step, of two mini-batches each."""
    optimiser, weights, first = sgd(network.parameters()), list(network.parameters()), None
    for at_B in client.batches():
        if first is None:
            first = at_B
            continue
        slopes = torch.autograd.grad(cross_entropy(network(client.images(first)), client.y_N[first]), weights)
        torch._foreach_add_([w.data for w in weights], slopes, alpha=-0.01)
        optimiser.zero_grad()
        cross_entropy(network(client.images(at_B)), client.y_N[at_B]).backward()  # type: ignore[no-untyped-call]
        torch._foreach_add_([w.data for w in weights], slopes, alpha=0.01)
        optimiser.step()
        first = None


LOOPS: dict[str, Callable[[Network, Client, State], None]] = {
    "fedala": fedala, "feddbe": feddbe, "gpfl": gpfl, "fedas": fedas, "moon": moon, "perfedavg": perfedavg,
}  # fmt: skip


class Loop:
    """Rounds of a bare loop, each from where the last one ended."""

    def __init__(self, name: str) -> None:
        data = federation(CLIENTS, ROWS, SHAPES[MODEL])
        self.clients = [Client(data.x_R[rows], data.y_R[rows]) for rows in data.train]
        self.network, self.server, self.work = Network(), State(), LOOPS[name]

    def one(self) -> float:
        """Processor seconds of the next round."""
        start = time.process_time()
        received = {k: w.clone() for k, w in self.network.state_dict().items()}
        total = {k: torch.zeros_like(w) for k, w in received.items()}
        for client in self.clients:
            self.network.load_state_dict(received)
            self.work(self.network, client, self.server)
            for k, w in self.network.state_dict().items():
                total[k] += w
        self.network.load_state_dict({k: w / len(self.clients) for k, w in total.items()})
        return time.process_time() - start


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=",".join(LOOPS))
    parser.add_argument("--turns", type=int, default=7, help="rounds of each, after three that are not counted")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(setting(MODEL, ROWS))
    for name in arguments.methods.split(","):
        data = federation(CLIENTS, ROWS, SHAPES[MODEL])
        mine, loop = Rounds(name, methods.settle(name, {}), data), Loop(name)
        for _ in range(3):  # in the first ones some methods do other work
            mine.one(), loop.one()
        theirs, ratios = [loop.one()], []
        for _ in range(arguments.turns):
            seconds = mine.one()
            theirs.append(loop.one())
            ratios.append(2 * seconds / (theirs[-2] + theirs[-1]))
        low, high = min(ratios), max(ratios)
        print(f"{methods.get(name).title:12} {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
