"""FedPool: Gaussian classes that each client pools with everyone's, as far as its own samples ask for it."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from idiolect.core.method import ClientValue, Data, Down, Method, Task, Up, Weights, keys, reduce, tree
from idiolect.statistics import covariance, mixture
from idiolect.statistics.gaussian import Gaussian, LinearHead, estimate, lda_head, log_prior
from idiolect.statistics.mixture import Mixture
from idiolect.statistics.moments import Moments, moments, weights_by_class
from idiolect.training import Batch, add, batches, cross_entropy_mean, features, rows, sgd, stateless, trained_loss

Pooling = Literal["part", "everyone", "own"]
REPORTS = {
    "trust": ClientValue(
        name="trust in its own means",
        symbol="r",
        meaning="weight of a client's own class means, the mean over its samples",
        shows="how far each client relies on its own class means",
        ends="At 1 a client uses its own means alone, at 0 everyone's",
        limits=(0.0, 1.0),
    )
}
_HEADS: tuple[tuple[Pooling, float], ...] = (
    ("part", 0.1), ("part", 0.3), ("part", 1.0), ("part", 3.0), ("everyone", 1.0), ("own", 1.0),
)  # fmt: skip


class Shared(NamedTuple):
    """What the server keeps and sends, and what a client sends the increments of."""

    body: Weights
    mean_Cd: Tensor
    cov: Tensor
    """Upper triangle of the (d, d) covariance."""
    spread: Tensor
    """How far clients' class means lie from everyone's, in units of the covariance."""


class Counts(NamedTuple):
    """What weighs an upload."""

    n: Tensor
    n_C: Tensor


class Estimates(NamedTuple):
    """What a client knows of its classes before it pools: everyone's estimate, its own, and how far they are apart."""

    everyone: Gaussian
    own: Gaussian
    n_C: Tensor
    found: Tensor
    """Its own spread, q / n."""
    spread: Tensor
    """Its own and everyone's, t_i."""


def fedpool(
    task: Task,
    *,
    ridge: PositiveFloat = 1.0,
    spread_samples: NonNegativeFloat = 100.0,
    covariance_samples: NonNegativeFloat = 100.0,
    share_samples: PositiveFloat = 20.0,
    folds: Annotated[int, Field(ge=2)] = 5,
    normalise: bool = True,
    train_with: Pooling = "part",
    personal: Literal["mixture"] | Pooling = "mixture",
) -> Method:
    """FedPool: partial pooling of Gaussian classes (idiolect's own).

    Client, with the received body theta, means mu (C, d), covariance S (d, d) and spread t, and its log-prior log pi:
        z = sqrt(d) f(x; theta) / |f(x; theta)|        every feature vector has the same length                 [1]
        m_c, W = class means, and scatter within classes, of its n samples, n_c of them in class c              [2]
        q = sum over its classes of (n_c (m_c - mu_c)' (S + ridge I)^-1 (m_c - mu_c) / d - 1)                   [3]
        t_i = (max(q, 0) + a t) / (n + a)              how far its means lie from everyone's                    [4]
        mu_ic = mu_c + r_c (m_c - mu_c),   r_c = n_c t_i / (n_c t_i + 1)                                        [5]
        S_i = (W + b S) / (n + b)                                                                               [6]
        head: w_c = (S_i + ridge I)^-1 mu_ic,   b_c = -1/2 mu_ic' w_c + log pi_c, frozen                        [7]
        theta_i <- SGD(CE)                                                                                      [8]
    Server:
        mu_c <- mean of the clients' m_c, weighted by n_c                                                       [9]
        theta, S, t <- means of theta_i, W / (n - 1) and q / n, weighted by n                                   [10]
    Personal, under the body received:
        heads k as [7]: with 0.1, 0.3, 1 and 3 times the ridge, and with r = 0 and r = 1                        [11]
        a = argmax over the simplex of sum over samples of log sum_k a_k p_k(y | z) + prior, by folds           [12]
        p(y | x) = sum_k a_k p_k(y | z)                                                                         [13]

    Up: increments of theta, mu (C, d), S (d (d + 1) / 2), t, weighted by n and n_c. Down: theta, mu, S, t. At the
    client: nothing until ``personalise``, which needs forward passes only; a new client joins in the same way.

    [3] is an estimate by moments: where a client's true means lie about everyone's with covariance t S, the expectation
    of a term of [3] is n_c t, if ridge is 0. [5] is then the mean of the posterior of its means: a class with many
    samples keeps its own mean, one with few takes most from everyone. [1] keeps the scale of the features, which the
    loss of a head like [7] does not see, from drifting in training. In [12] the heads that predict a sample are
    estimated from the other folds; the prior is that of ``share_samples`` samples, divided evenly.

    Args:
        task: the problem.
        ridge: added to the covariance's diagonal; the mean square of a feature is 1.
        spread_samples: a of [4]: for how many samples of the client everyone's spread counts.
        covariance_samples: b of [6], the same for the covariance.
        share_samples: the same for even shares in [12].
        folds: of [12].
        normalise: False leaves out [1] (ablation).
        train_with: "everyone" takes mu and r = 0 in [7] for training, "own" r = 1 (ablations).
        personal: one head in place of [11] to [13]: that of [7], or with r = 0 or r = 1 (ablations).

    Known faults: [3] takes 1 for what noise gives to a term, which with a ridge is tr((S + ridge I)^-1 S) / d, and so
    less. t then comes out as 0, and a client uses everyone's means. docs/results/fedpool.md says where it loses, and
    FedShrink is what became of it.

    Source: docs/methods/fedpool-protocol.md says how it was developed and is judged. The head is that of FedLDA and
    pFedFDA (McLaughlin & Su), with the smoothed prior and the shrinkage of 1e-4 of pFedFDA's released code; [5] is the
    empirical Bayes estimator of Efron & Morris (JASA, 1973), [12] the EM algorithm for the shares of a mixture.
    """
    network, classes, width = task.network, task.classes, task.network.width

    def init_server(key: Tensor) -> Shared:
        cov = covariance.pack(torch.eye(width))
        return Shared(network.init(key).body, torch.zeros(classes, width), cov, torch.ones(()))

    def everyone(shared: Shared) -> Gaussian:
        return Gaussian(shared.mean_Cd.double(), covariance.unpack(shared.cov.double(), width))

    def unit(z_Bd: Tensor) -> Tensor:
        length_B1 = z_Bd.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()
        return z_Bd * (width**0.5 / length_B1) if normalise else z_Bd  # [1]

    def head_for(g: Gaussian, n_C: Tensor, amount: float = ridge) -> LinearHead:
        head = lda_head(Gaussian(g.mean_Cd, covariance.ridge(g.cov_dd, amount)), log_prior(n_C))  # [7]
        return LinearHead(*(a.to(torch.get_default_dtype()) for a in head))

    def distance(own: Gaussian, g: Gaussian) -> Tensor:
        """Squared distances of the means (C,), in units of g's covariance, per feature."""
        factor_dd, failed = torch.linalg.cholesky_ex(covariance.ridge(g.cov_dd, ridge))
        apart_Cd = own.mean_Cd - g.mean_Cd
        scaled_Cd = torch.cholesky_solve(apart_Cd.mT, factor_dd).mT
        return torch.where(failed == 0, (apart_Cd * scaled_Cd).sum(1) / width, torch.nan)

    def estimates(sums: Moments, shared: Shared) -> Estimates:
        g, n_C, n = everyone(shared), sums.n_C, sums.n_C.sum()
        own = estimate(sums, g.mean_Cd)  # [2]
        q = (n_C * distance(own, g) - (n_C > 0).double()).sum()  # [3]
        a = spread_samples
        spread = (q.clamp(min=0) + a * shared.spread.double().clamp(min=0)) / (n + a).clamp(min=1e-9)  # [4]
        return Estimates(g, own, n_C, q / n.clamp(min=1), spread)

    def trust(e: Estimates, how: Pooling) -> Tensor:
        if how == "part":
            return e.n_C * e.spread / (e.n_C * e.spread + 1)  # [5]
        return 0 * e.n_C if how == "everyone" else (e.n_C > 0).double()

    def pool(e: Estimates, how: Pooling) -> Gaussian:
        n, b = e.n_C.sum(), covariance_samples
        mean_Cd = e.everyone.mean_Cd + trust(e, how)[:, None] * (e.own.mean_Cd - e.everyone.mean_Cd)  # [5]
        cov_dd = ((n - 1).clamp(min=1) * e.own.cov_dd + b * e.everyone.cov_dd) / (n + b).clamp(min=1e-9)  # [6]
        return Gaussian(mean_Cd, cov_dd)

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        shared = down.shared
        z_Nd, y_N = features(task, shared.body, data)
        e = estimates(moments(unit(z_Nd), y_N, data.real_N, classes), shared)  # [2]
        head = head_for(pool(e, train_with), e.n_C)  # [7]

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = unit(network.features(body, task.inputs(x_B)))  # [1]
            error = cross_entropy_mean(linear(z_Bd, *head), y_B, batch.used_B)
            return error, (error, batch.used_B.sum())

        new, seen = sgd(loss, shared.body, batches(data, task.training, key), task.training.optimiser)  # [8]
        up = Shared(
            tree.sub(new, shared.body),
            (e.own.mean_Cd - e.everyone.mean_Cd).to(shared.mean_Cd.dtype),
            covariance.pack(e.own.cov_dd - e.everyone.cov_dd).to(shared.cov.dtype),
            e.found.to(shared.spread.dtype) - shared.spread,
        )
        trusted = (e.n_C * trust(e, train_with)).sum() / e.n_C.sum()
        counts = Counts(data.real_N.sum(), e.n_C.to(data.real_N.dtype))
        return client, Up(up, counts), {"train_loss": trained_loss(seen), "trust": trusted}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Mixture:
        z_Nd, y_N = features(task, down.shared.body, data)
        z_Nd, real_N = unit(z_Nd), data.real_N
        n_C = weights_by_class(y_N, real_N, classes).sum(0)
        wanted = _HEADS if personal == "mixture" else ((personal, 1.0),)

        def heads_from(weight_N: Tensor) -> LinearHead:
            e = estimates(moments(z_Nd, y_N, weight_N, classes), down.shared)
            return tree.stack([head_for(pool(e, how), n_C, times * ridge) for how, times in wanted])  # [11]

        return mixture.fit(
            heads_from, z_Nd, y_N, real_N, keys.fold(key, "folds"), folds=folds, prior=share_samples
        )  # [12]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        z_Bd = unit(network.features(down.shared.body, task.inputs(x_B)))
        if not client:
            return log_softmax(linear(z_Bd, *head_for(everyone(down.shared), torch.ones(classes))), -1)
        return mixture.log_probabilities(client, z_Bd)  # [13]

    parts = Shared(
        body=reduce.increment("n"), mean_Cd=reduce.mean("n_C"), cov=reduce.mean("n"), spread=reduce.mean("n")
    )  # [9] [10]
    return Method(init_server, stateless, send, local, parts, add, personalise, predict)  # [9] [10]
