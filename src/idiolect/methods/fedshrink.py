"""FedShrink: class means that each client shrinks towards everyone's, and features that are pulled towards them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import linear

from idiolect.core.method import ClientValue, Data, Down, Method, Reduced, Task, Up, Weights, keys, reduce, tree
from idiolect.statistics import covariance, label_pairs, mixture, random_effects
from idiolect.statistics.gaussian import Gaussian, LinearHead, estimate, lda_head, log_prior
from idiolect.statistics.mixture import Mixture
from idiolect.statistics.moments import Moments, moments, weights_by_class
from idiolect.training import (
    Batch,
    add,
    batches,
    cross_entropy_mean,
    features,
    groups,
    inner,
    mean,
    require_unweighted,
    rows,
    sgd,
    stateless,
    trained_loss,
)

Means = Literal["shrunk", "everyone", "own"]
PERSONAL = ("personal", "folds", "share_samples")
SEARCH = {"ridge": "0.03..3:log", "alignment": "0.3..30:log"}
REPORTS = {
    "trust": ClientValue(
        name="trust in its own means",
        symbol="r",
        meaning="weight of a client's own class means, or of its own weights, the mean over its samples",
        shows="how far each client relies on its own samples",
        ends="At 1 a client uses its own means alone, at 0 everyone's",
        limits=(0.0, 1.0),
    )
}
_HEADS: tuple[tuple[Means, float], ...] = (
    ("shrunk", 0.1), ("shrunk", 0.3), ("shrunk", 1.0), ("shrunk", 3.0), ("everyone", 1.0), ("own", 1.0),
)  # fmt: skip


class Shared(NamedTuple):
    """What the server keeps and sends, and what a client sends the increments of."""

    body: Weights
    mean_Cd: Tensor
    cov: Tensor
    """Upper triangle of the (d, d) covariance."""
    spread: Tensor
    """How far clients' class means lie from everyone's, beside what the noise of one sample gives."""


class Counts(NamedTuple):
    """What weighs an upload."""

    n: Tensor
    n_C: Tensor


class Everyone(NamedTuple):
    """Everyone's estimate, as a client has received it."""

    gaussian: Gaussian
    factor_dd: Tensor
    """Cholesky's factor of S + ridge I; not a number where there is none."""
    noise: Tensor
    """tr(P S)."""
    spread: Tensor
    """t."""


class Estimates(NamedTuple):
    """What a client knows of its classes: everyone's estimate, its own, and how far they are apart."""

    everyone: Gaussian
    own: Gaussian
    n_C: Tensor
    found: Tensor
    """Its own spread, q / n."""
    spread: Tensor
    """Its own and everyone's, t_i."""


def fedshrink(
    task: Task,
    *,
    ridge: PositiveFloat = 0.3,
    alignment: NonNegativeFloat = 3.0,
    spread_samples: NonNegativeFloat = 100.0,
    covariance_samples: NonNegativeFloat = 100.0,
    share_samples: PositiveFloat = 20.0,
    folds: Annotated[int, Field(ge=2)] = 5,
    train_with: Means = "shrunk",
    personal: Literal["mixture"] | Means = "mixture",
) -> Method:
    """FedShrink: class means shrunk by empirical Bayes, in head and features (idiolect's own).

    Client, with the received body theta, means mu (C, d), covariance S (d, d) and spread t, and its log-prior log pi:
        m_c, W = class means, and scatter within classes, of its n samples, n_c of them in class c              [1]
        q = sum over its classes of (n_c (m_c - mu_c)' P (m_c - mu_c) / tr(P S) - 1),   P = (S + ridge I)^-1    [2]
        t_i = (max(q, 0) + a max(t, 0)) / (n + a)      how far its means lie from everyone's                    [3]
        mu_ic = mu_c + r_c (m_c - mu_c),   r_c = n_c t_i / (n_c t_i + 1)                                        [4]
        S_i = (W + b S) / (n + b)                                                                               [5]
        head: w_c = (S_i + ridge I)^-1 mu_ic,   b_c = -1/2 mu_ic' w_c + log pi_c, frozen                        [6]
        theta_i <- SGD(CE + alignment |z - mu_iy|^2 / d)                                                        [7]
    Server:
        mu_c <- mean of the clients' m_c, weighted by n_c                                                       [8]
        theta, S, t <- means of theta_i, W / (n - 1) and q / n, weighted by n                                   [9]
    Personal, under the body received:
        heads k as [6]: with 0.1, 0.3, 1 and 3 times the ridge, and with r = 0 and r = 1                        [10]
        a = argmax over the simplex of sum over samples of log sum_k a_k p_k(y | z) + prior, by folds           [11]
        p(y | x) = sum_k a_k p_k(y | z)                                                                         [12]

    Where a sample can have several labels, each label is two classes, and a sample counts once for each label.

    Where the target y is numbers, with Z = (z, 1), everyone's weights w and how far a client's may lie from them, l,
    and its bias, m; D = diag(l, ..., l, m):
    Client:
        A = Z'Z,   b = Z'y,   w_i = w + (A + D^-1)^-1 (b - A w)   the mean of w_i ~ N(w, s^2 D) given samples   [13]
        theta_i <- SGD(|Z u - y|^2),   u = (A + D^-1 + n ridge I)^-1 (b + D^-1 w), frozen                       [14]
        for each l and m of a grid, with r = y - Z w:   q = r' V^-1 r,   v = log |V|,   V = I + Z D Z'          [15]
    Server:
        theta <- mean of theta_i, weighted by n;   A, b, y'y, q, v, n <- sums over clients                      [16]
        l, m <- argmax of - n / 2 log q - v / 2, the likelihood of all clients' samples                         [17]
        w <- (A + I / t)^-1 b,   t <- argmax of - n / 2 log (y'y - b' w) - log |I + t A| / 2, w ~ N(0, s^2 t I) [18]
    Personal: w_i of [13] under the body received; a new client needs forward passes only.                      [19]

    Up: increments of theta, mu (C, d), S (d (d + 1) / 2), t, weighted by n and n_c. Down: theta, mu, S, t. At the
    client: nothing until ``personalise``, which needs forward passes only; a new client joins in the same way. A class
    that a client does not have has everyone's mean. Of numbers: increments of theta, and A, b, y'y, q, v and n to be
    summed; down: theta, w, l, m.

    [2] is an estimate by moments: the mean of n_c samples lies tr(P S) / n_c from its class's true mean, and where the
    true means lie t tr(P S) from everyone's, the expectation of a term is n_c t. [4] is the mean of the posterior, if
    the true means spread as the samples do (covariance t S): a class with many samples keeps its own mean, one with few
    takes most from everyone. [7] pulls the features of a class together and keeps their scale, which CE with a head
    like [6] hardly sees. In [11] the means and the covariance of the heads that predict a sample are estimated from the
    other folds; the prior is that of ``share_samples`` samples, divided evenly. u is w_i pulled towards 0: w_i is long
    where features hardly differ, and the steps of [14], which grow with its length, destroy the features (on the
    schools of docs/results/natural.md, with a learning rate of 0.06).

    Args:
        task: the problem.
        ridge: added to the covariance's diagonal, in squared feature units; of numbers to that of A / n in [14].
        alignment: weight of the pull in [7]; 0 turns it off (ablation).
        spread_samples: a of [3]: for how many samples of the client everyone's spread counts.
        covariance_samples: b of [5], the same for the covariance.
        share_samples: the same for even shares in [11].
        folds: of [11].
        train_with: "everyone" takes mu and r = 0 in [6] and [7] for training, "own" r = 1 (ablations).
        personal: one head in place of [10] to [12]: that of [6], or with r = 0 or r = 1 (ablations). Of numbers, the
            last two options are w_i of [13], w, or the client's own least squares; the others are for classes.

    Known faults: [2] takes mu and S as exact. S from few samples is too small, and both are of the body of the round
    before, so that t is too large, the more so with few samples. The body is trained on the samples that [11] chooses
    with, so that after long training, with a training loss near 0, the shares trust sharp heads too much. Of numbers,
    w is of the body of the round before.

    Source: docs/methods/fedshrink-protocol.md says how it was developed and is judged. It is FedPool with the noise of
    [2] put right, the pull of [7] in place of features of one length, and so a smaller ridge. The head is that of
    FedLDA and pFedFDA (McLaughlin & Su), with the smoothed prior and the shrinkage of 1e-4 of pFedFDA's released code;
    the pull is FedPAC's (Xu, Tong & Huang, Eq. 3) towards other means; [4] is the empirical Bayes estimator of Efron &
    Morris (JASA, 1973), [11] the EM algorithm for the shares of a mixture; [13] to [18] are Bayesian linear
    regression in the hierarchy of Lindley & Smith (JRSS B, 1972).
    """
    if task.kind == "regression":
        return of_numbers(task, ridge, train_with, "shrunk" if personal == "mixture" else personal)
    require_unweighted(task, "fedshrink")
    labels = task.classes if task.kind == "multilabel" else 0
    network, classes, width = task.network, 2 * labels or task.classes, task.network.width
    normalised = label_pairs.log_probabilities if labels else mixture.softmax

    def init_server(key: Tensor) -> Shared:
        cov = covariance.pack(torch.eye(width))
        return Shared(network.init(key).body, torch.zeros(classes, width), cov, torch.ones(()))

    def gaussian_of(shared: Shared) -> Gaussian:
        return Gaussian(shared.mean_Cd.double(), covariance.unpack(shared.cov.double(), width))

    def everyone(shared: Shared) -> Everyone:
        g = gaussian_of(shared)
        factor_dd, failure = torch.linalg.cholesky_ex(covariance.ridge(g.cov_dd, ridge))
        factor_dd = torch.where(failure == 0, factor_dd, torch.nan)
        noise = width - ridge * torch.cholesky_inverse(factor_dd).diagonal().sum()  # P S = I - ridge P
        return Everyone(g, factor_dd, noise, shared.spread.double())

    def head_for(g: Gaussian, n_C: Tensor, amount: float = ridge) -> LinearHead:
        head = lda_head(Gaussian(g.mean_Cd, covariance.ridge(g.cov_dd, amount)), log_prior(n_C))  # [6]
        return LinearHead(*(a.to(torch.get_default_dtype()) for a in head))

    def estimates(sums: Moments, others: Everyone) -> Estimates:
        g, n_C, n = others.gaussian, sums.n_C, sums.n_C.sum()
        own = estimate(sums, g.mean_Cd)  # [1]
        apart_Cd = own.mean_Cd - g.mean_Cd
        distance_C = (apart_Cd * torch.cholesky_solve(apart_Cd.mT, others.factor_dd).mT).sum(1)
        q = torch.where(n_C > 0, n_C * distance_C / others.noise.clamp(min=1e-12) - 1, 0.0).sum()  # [2]
        a = spread_samples
        spread = (q.clamp(min=0) + a * others.spread.clamp(min=0)) / (n + a).clamp(min=1e-9)  # [3]
        return Estimates(g, own, n_C, q / n.clamp(min=1), spread)

    def trust(e: Estimates, how: Means) -> Tensor:
        if how == "shrunk":
            return e.n_C * e.spread / (e.n_C * e.spread + 1)  # [4]
        return 0 * e.n_C if how == "everyone" else (e.n_C > 0).double()

    def means(e: Estimates, how: Means) -> Tensor:
        return e.everyone.mean_Cd + trust(e, how)[:, None] * (e.own.mean_Cd - e.everyone.mean_Cd)  # [4]

    def shrunk(e: Estimates) -> Tensor:
        n, b = e.n_C.sum(), covariance_samples
        return ((n - 1).clamp(min=1) * e.own.cov_dd + b * e.everyone.cov_dd) / (n + b).clamp(min=1e-9)  # [5]

    def samples(body: Weights, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        z_Nd, y_N = features(task, body, data)
        if not labels:
            return z_Nd, y_N, data.real_N
        z_Nd, real_N = (label_pairs.repeated(a, labels) for a in (z_Nd, data.real_N))
        return z_Nd, label_pairs.of_samples(y_N), real_N

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        shared = down.shared
        z_Nd, y_N, real_N = samples(shared.body, data)
        e = estimates(moments(z_Nd, y_N, real_N, classes), everyone(shared))  # [1]
        gaussian = Gaussian(means(e, train_with), shrunk(e))
        head, target_Cd = head_for(gaussian, e.n_C), gaussian.mean_Cd.to(z_Nd.dtype)  # [6]

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(body, task.inputs(x_B))
            used_B, logit_BC = batch.used_B, linear(z_Bd, *head)
            if labels:
                z_Bd, used_B = (label_pairs.repeated(a, labels) for a in (z_Bd, used_B))
                error = cross_entropy_mean(logit_BC.reshape(-1, 2), y_B.flatten().long(), used_B)
                y_B = label_pairs.of_samples(y_B)
            else:
                error = cross_entropy_mean(logit_BC, y_B, used_B)
            distance = mean((z_Bd - target_Cd[y_B]).square().mean(1), used_B)
            return error + alignment * distance, (error, batch.used_B.sum())  # [7]

        new, extras = sgd(loss, shared.body, batches(data, task.training, key), task.training.optimiser)  # [7]
        up = Shared(
            tree.sub(new, shared.body),
            (e.own.mean_Cd - e.everyone.mean_Cd).to(shared.mean_Cd.dtype),
            covariance.pack(e.own.cov_dd - e.everyone.cov_dd).to(shared.cov.dtype),
            e.found.to(shared.spread.dtype) - shared.spread,
        )
        mean_trust = (e.n_C * trust(e, train_with)).sum() / e.n_C.sum()
        counts = Counts(data.real_N.sum(), e.n_C.to(data.real_N.dtype))
        return client, Up(up, counts), {"train_loss": trained_loss(extras), "trust": mean_trust}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Mixture:
        z_Nd, y_N, real_N = samples(down.shared.body, data)
        n_C = weights_by_class(y_N, real_N, classes).sum(0)
        kinds = _HEADS if personal == "mixture" else ((personal, 1.0),)
        hows, ridges = list(dict.fromkeys(how for how, _ in kinds)), dict.fromkeys(times for _, times in kinds)
        others = everyone(down.shared)

        def heads_from(sums: Moments) -> LinearHead:
            e = estimates(sums, others)
            g = Gaussian(torch.stack([means(e, how) for how in hows]), shrunk(e))
            heads = {times: head_for(g, n_C, times * ridge) for times in ridges}  # the costly part, once for each ridge
            return tree.stack([tree.rows(heads[times], hows.index(how)) for how, times in kinds])  # [10]

        group_N, inner_N = groups(data), inner(data)
        if labels:  # the pairs of a sample are in one fold, and count as one
            group_N = label_pairs.repeated(torch.arange(len(data.row_N)) if group_N is None else group_N, labels)
            inner_N = label_pairs.repeated((data.real_N if inner_N is None else inner_N) / labels, labels)
        return mixture.fit(
            heads_from, z_Nd, y_N, real_N, keys.fold(key, "folds"), classes=classes, folds=folds, prior=share_samples,
            group_N=group_N, inner_N=inner_N, normalised=normalised,
        )  # fmt: skip # [11]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        z_Bd = network.features(down.shared.body, task.inputs(x_B))
        if client:
            logp_BC = mixture.log_probabilities(client, z_Bd, normalised)  # [12]
        else:
            logp_BC = normalised(linear(z_Bd, *head_for(gaussian_of(down.shared), torch.ones(classes))))
        return logp_BC.reshape(-1, labels, 2) if labels else logp_BC

    parts = Shared(
        body=reduce.increment("n"), mean_Cd=reduce.mean("n_C"), cov=reduce.mean("n"), spread=reduce.mean("n")
    )  # [8] [9]
    return Method(init_server, stateless, send, local, parts, add, personalise, predict)  # [8] [9]


class Prior(NamedTuple):
    """What the server knows of numbers: everyone's weights, and how far clients' lie from them."""

    body: Weights
    weight_dD: Tensor
    """(d + 1, D); the last row is the bias."""
    spread: Tensor
    """l and m."""


class Sums(NamedTuple):
    """What a client sends of numbers; G are the pairs of l and m."""

    body: Weights
    gram: Tensor
    """Upper triangle of A (d + 1, d + 1)."""
    cross_dD: Tensor
    square_D: Tensor
    square_GD: Tensor
    log_det_G: Tensor
    n: Tensor


def of_numbers(task: Task, ridge: float, train_with: Means, personal: Means) -> Method:
    """FedShrink where the target is numbers: see [13] to [19] of ``fedshrink``."""
    network, width, outputs = task.network, task.network.width + 1, task.classes

    def init_server(key: Tensor) -> Prior:
        return Prior(network.init(key).body, torch.zeros(width, outputs), torch.ones(2))

    def send(server: Prior, ids: Tensor) -> Down:
        return Down(shared=server)

    def with_bias(z_Nd: Tensor) -> Tensor:
        return torch.cat([z_Nd, torch.ones_like(z_Nd[:, :1])], 1)

    def products(body: Weights, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        z_Nd, y_ND = features(task, body, data)
        real_N = data.real_N.double()
        z_Nd, y_ND = with_bias(z_Nd).double() * real_N[:, None], y_ND.double() * real_N[:, None]
        return z_Nd.T @ z_Nd, z_Nd.T @ y_ND, y_ND.square().sum(0)  # [13]

    def posterior(gram_dd: Tensor, cross_dD: Tensor, prior: Prior, how: Means, pull: Tensor | float = 0) -> Tensor:
        weight_dD: Tensor = prior.weight_dD.double()
        if how == "everyone":
            return weight_dD
        inverse = 1 / prior.spread.double() if how == "shrunk" else 1e-6 * torch.ones_like(prior.spread).double()
        inverse_d = torch.cat([inverse[:1].expand(width - 1), inverse[1:]])  # D^-1
        rest_dD = cross_dD - gram_dd @ weight_dD - pull * weight_dD
        change_dD: Tensor = torch.linalg.solve(gram_dd + torch.diag(inverse_d + pull), rest_dD)  # [13] [14]
        return weight_dD + change_dD

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        prior = down.shared
        gram_dd, cross_dD, square_D = products(prior.body, data)
        pull = ridge * data.real_N.sum().double()
        head_dD = posterior(gram_dd, cross_dD, prior, train_with, pull).to(prior.weight_dD.dtype)  # [14]

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_BD = rows(task, data, batch)
            value_BD = with_bias(network.features(body, task.inputs(x_B))) @ head_dD
            error = mean(task.loss(value_BD, y_BD), batch.used_B)
            return error, (error, batch.used_B.sum())

        new, extras = sgd(loss, prior.body, batches(data, task.training, key), task.training.optimiser)  # [14]
        weight_dD, spread = prior.weight_dD.double(), prior.spread[0]
        fit_dD = gram_dd @ weight_dD
        rest_D = square_D - (weight_dD * (2 * cross_dD - fit_dD)).sum(0)  # r' r
        square_GD, log_det_G, e_d = random_effects.by_spread(gram_dd, cross_dD - fit_dD, rest_D)  # [15]
        sums = (covariance.pack(gram_dd), cross_dD, square_D, square_GD, log_det_G, data.real_N.sum())
        up = Sums(tree.sub(new, prior.body), *(part.to(head_dD.dtype) for part in sums))
        info = {
            "train_loss": trained_loss(extras),
            "trust": (spread * e_d / (spread * e_d + 1)).mean().to(head_dD.dtype),
        }
        return client, Up(up, data.real_N.sum()), info

    def aggregate(server: Prior, up: Reduced, ids: Tensor) -> tuple[Prior, dict[str, Tensor]]:
        s, dtype = tree.map(torch.Tensor.double, up.value._replace(body={})), server.weight_dD.dtype
        spread = random_effects.likeliest(s.n, s.square_GD, s.log_det_G)  # [17]
        weight_dD = random_effects.ridge(covariance.unpack(s.gram, width), s.cross_dD, s.square_D, s.n)  # [18]
        return Prior(tree.add(server.body, up.value.body), weight_dD.to(dtype), spread.to(dtype)), {}  # [16]

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Tensor:
        gram_dd, cross_dD, _ = products(down.shared.body, data)
        return posterior(gram_dd, cross_dD, down.shared, personal).to(down.shared.weight_dD.dtype)  # [19]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        z_Bd = with_bias(network.features(down.shared.body, task.inputs(x_B)))
        value_BD: Tensor = task.output(z_Bd @ (client if len(client) else down.shared.weight_dD))
        return value_BD

    parts = Sums(reduce.increment(), *(reduce.sum() for _ in Sums._fields[1:]))  # [16]
    return Method(init_server, stateless, send, local, parts, aggregate, personalise, predict)
