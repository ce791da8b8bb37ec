"""FedShrink: class means that each client shrinks towards everyone's, and features that are pulled towards them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor
from torch.nn.functional import linear

from idiolect.core.method import ClientValue, Data, Down, Method, Reduced, Task, Up, Weights, keys, reduce, tree
from idiolect.methods._fedshrink_numbers import of_numbers
from idiolect.statistics import class_shares, covariance, label_pairs, logistic, mixture, spread
from idiolect.statistics.gaussian import Gaussian, LinearHead, estimate, lda_head, log_prior
from idiolect.statistics.mixture import Mixture
from idiolect.statistics.moments import Moments, moments
from idiolect.training import (
    Batch,
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
PERSONAL = ("personal", "folds", "share_samples", "head_ridge")
SEARCH = {"ridge": "0.03..3:log", "alignment": "0.3..30:log", "head_ridge": "1..20:log"}
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
_LINEAR, _LINEAR_SAMPLES = 0.02, 15.0
_HEADS: tuple[tuple[Means, float], ...] = (
    ("shrunk", 0.1), ("shrunk", 0.3), ("shrunk", 1.0), ("shrunk", 3.0), ("shrunk", 10.0),
    ("everyone", 1.0), ("own", 1.0),
)  # fmt: skip


class Shared(NamedTuple):
    """What the server keeps and sends."""

    body: Weights
    mean_Cd: Tensor
    cov: Tensor
    """Upper triangle of the (d, d) covariance."""
    spread: Tensor
    """How far clients' class means lie from everyone's, beside what the noise of one sample gives."""
    share_C: Tensor
    """Class frequencies; of each label, where a sample can have several."""
    agreement: Tensor
    """How often two samples of a client are of one class."""
    linear_CD: Tensor
    """Everyone's linear head (C, d + 1), for features of which each has a variance near 1; the last is the bias."""
    known: Tensor
    """0 before the first round, then 1."""


class Report(NamedTuple):
    """What a client sends, in units of the features' variance, before each part is multiplied by ``SCALE``."""

    body: Weights
    mean_Cd: Tensor
    cov: Tensor
    square: Tensor
    share_C: Tensor
    agreement: Tensor
    slope_CD: Tensor
    pairs: Tensor
    one: Tensor


SCALE = Report({}, 1.0, 2.0, 0.5, 0.3, 0.3, 1.0, 0.3, 1.0)  # type: ignore[arg-type]


class Estimates(NamedTuple):
    """What a client knows of its classes: everyone's estimate, its own, and how far they are apart."""

    everyone: Gaussian
    own: Gaussian
    n_C: Tensor
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
    head_ridge: PositiveFloat = 5.0,
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.0,
    train_with: Means = "shrunk",
    personal: Literal["mixture", "gaussians"] | Means = "mixture",
) -> Method:
    """FedShrink: class means shrunk by empirical Bayes, in head and features (idiolect's own).

    Client, with the received body theta, means mu (C, d), covariance S (d, d), spread t, class frequencies rho and
    their agreement h:
        m_c, W = class means, and scatter within classes, of its n samples of k classes, n_c of class c         [1]
        q = sum over its classes of (n_c |m_c - mu_c|^2 / tr S - 1)                                             [2]
        t_i = (max(q, 0) + a max(t, 0)) / (n + a)      how far its means lie from everyone's                    [3]
        mu_ic = mu_c + r_c (m_c - mu_c),   r_c = n_c t_i / (n_c t_i + 1)                                        [4]
        S_i = (W + b S) / (n - k + b)                                                                           [5]
        head: w_c = (S_i + ridge I)^-1 mu_ic,   b_c = -1/2 mu_ic' w_c + log pi_c, frozen                        [6]
        theta_i <- SGD(CE + alignment |z - mu_iy|^2 / d)                                                        [7]
    Server, with means over clients weighted by n:
        rho_c, h <- means of n_c / n and of sum_c n_c (n_c - 1) / (n (n - 1))                                   [8]
        mu_c <- mu_c + mean of n_c / n (m_c - mu_c), divided by the new rho_c                                   [9]
        theta <- mean of theta_i;   S <- (mean of W / n + f s I / d) / (mean of (n - k) / n + f)               [10]
        t <- (mean of sum_c n_c / n |m_c - mu_c|^2 / tr S - mean of k / n + C / sum n) / (1 - h / (K sum_c rho_c^2))
            + sum_c rho_c |mu_c - its last|^2 / tr S, with the new rho, mu, S, h; C classes, K clients         [11]
        U <- U + (M / 2 + 0.02 I)^-1 (mean of g_i - 0.02 U),   M = mean of Z Z', by the new rho, mu, S         [12]
    where g_i is a client's gradient of the mean over its samples of log softmax(U Z + log pi)_y, and
        Z = (z sqrt(d / v), 1),   v = tr S + sum_c rho_c |mu_c - sum_k rho_k mu_k|^2                           [13]
    Personal, under the body received, with lambda = head_ridge v / d in place of ridge in [6], and pi of [15]:
        pi' = (n_c + A rho_c) / (n + A),   A = (1 - h) / (h - sum_c rho_c^2)                                   [14]
        pi = (1 - u) n_c / n, and u divided as rho over the other classes;   u = its classes of n_c = 1 / (n + 1)  [15]
        U_i = argmax over its samples' sum of log softmax(U_i Z + log pi)_y - 15/2 |U_i - U|^2, by 20 steps    [16]
        heads k as [6]: with 0.1, 0.3, 1, 3 and 10 times lambda; with r = 1; with r = 0 and pi' in place of pi;
            linear ones: U with pi' and U_i with pi                                                            [17]
        a = argmax over the simplex of sum over samples of log sum_k a_k p_k(y | z) + prior, by folds          [18]
        p(y | x) = sum_k a_k p_k(y | z)                                                                        [19]

    Where a sample can have several labels, each label is two classes, and a sample counts once for each label.
    Where the target y is numbers, with Z = (z, 1), everyone's weights w and how far a client's may lie from them, l,
    and its bias, m; D = diag(l, ..., l, m):
    Client:
        A = Z'Z,   b = Z'y,   w_i = w + (A + D^-1)^-1 (b - A w)   the mean of w_i ~ N(w, s^2 D) given samples  [20]
        theta_i <- SGD(|Z u - y|^2),   u = (A + D^-1 + n ridge I)^-1 (b + D^-1 w), frozen                      [21]
        for each l and m of a grid, with r = y - Z w:   q = r' V^-1 r,   v = log |V|,   V = I + Z D Z'         [22]
    Server:
        theta <- mean of theta_i, weighted by n;   A, b, y'y, q, v, n <- sums over clients                     [23]
        l, m <- argmax of - n / 2 log q - v / 2, the likelihood of all clients' samples                        [24]
        w <- (A + I / t)^-1 b,   t <- argmax of - n / 2 log (y'y - b' w) - log |I + t A| / 2, w ~ N(0, s^2 t I) [25]
    Personal: w_i of [20] under the body received; a new client needs forward passes only.                     [26]

    Up: the increment of theta, and those of [8] to [12], S as d (d + 1) / 2 numbers, in units of the features' variance
    and each on a scale of its own, so that no part takes most of the norm that privacy clips; all weighted by n. Down:
    theta, mu, S, t, rho, h, U. At the client: nothing until ``personalise``, which needs forward passes only; a new
    client joins in the same way. A class that a client does not have has everyone's mean. Of numbers: increments of
    theta, and A, b, y'y, q, v and n to be summed; down: theta, w, l, m.

    [2] and [11] are estimates by moments: the mean of n_c samples lies 1 / n_c from its class's true mean, and where
    the true means lie t from everyone's, the expectation of a term of [2] is n_c t. The last term of [11], 0 in the
    first round, is for the way that means go in a round, since mu is of the last body; t stays within -1 to 100. In
    [10] f is what the mean of (n - k) / n lacks of 0.05, and s the mean of sum_c n_c |m_c - mu_c|^2 / n, with the new
    mu, by that of k / n less C / sum n: where hardly any client has two samples of a class, S takes clients as alike.
    [4] is the mean of the posterior, if the true means spread as the samples do (covariance t S). ``ridge`` keeps
    features from shrinking in training: with one that follows their scale they do, heads grow, and training diverges.
    [7] pulls the features of a class together. [12] and [16] go up by a bound of the curvature, so that no step is too
    long; a linear head is better where the features of classes are no Gaussians of one covariance. In [18] means,
    covariance, frequencies and U_i of the heads that predict a sample are from the other folds; the prior is that of
    ``share_samples`` samples, divided evenly. [14] takes clients' frequencies as drawn from a Dirichlet distribution
    about everyone's: where clients are alike, a class that one of them has not seen is as likely as for others. [15] is
    Good and Turing's estimate. u is w_i pulled towards 0: w_i is long where features hardly differ, and the steps of
    [21], which grow with its length, destroy the features.

    Under privacy the noise can make S no covariance: it keeps its trace, and all eigenvalues that are no larger than
    the noise become one size (``covariance.above_noise``).

    Args:
        task: the problem.
        ridge: added to the covariance's diagonal in training, in squared feature units; of numbers to that of A / n in
            [21].
        alignment: weight of the pull in [7]; 0 turns it off (ablation).
        spread_samples: a of [3]: for how many samples of the client everyone's spread counts.
        covariance_samples: b of [5], the same for the covariance.
        share_samples: the same for even shares in [18].
        folds: of [18].
        head_ridge: of personal heads, in units of a feature's mean variance, which follows the scale. Not of numbers.
        memory: weight of the server's own statistics in [8] to [12] from the second round on, where 0 forgets those of
            earlier rounds; under strong privacy 0.3 averages the noise of some rounds. Not of numbers.
        train_with: "everyone" takes mu and r = 0 in [6] and [7] for training, "own" r = 1 (ablations).
        personal: "gaussians" has no linear heads among those of [17]; the others are one head in place of [14] to [19]:
            that of [6], or with r = 0 or r = 1 (ablations). Of numbers, the last two are w or the client's own least
            squares, and all others w_i of [20].

    Known faults: the body is trained on the samples that [18] chooses with, so that after long training, with a
    training loss near 0, the shares trust sharp heads too much. Of numbers, w is of the body of the round before.

    Source: docs/methods/fedshrink-protocol.md says how it was developed and is judged. The head is that of FedLDA and
    pFedFDA (McLaughlin & Su), with the smoothed prior and the shrinkage of 1e-4 of pFedFDA's released code; the pull is
    FedPAC's (Xu, Tong & Huang, Eq. 3) towards other means; [4] is the empirical Bayes estimator of Efron & Morris
    (JASA, 1973), [18] the EM algorithm for the shares of a mixture; [12] and [16] are Böhning's (Annals of the
    Institute of Statistical Mathematics, 1992); [20] to [25] are Bayesian linear regression in the hierarchy of Lindley
    & Smith (JRSS B, 1972).
    """
    if task.kind == "regression":
        return of_numbers(task, ridge, train_with, personal)
    require_unweighted(task, "fedshrink")
    labels = task.classes if task.kind == "multilabel" else 0
    network, classes, width = task.network, 2 * labels or task.classes, task.network.width
    normalised = label_pairs.log_probabilities if labels else mixture.softmax
    each = (labels, 2) if labels else (1, classes)

    def init_server(key: Tensor) -> Shared:
        cov, share_C = covariance.pack(torch.eye(width)), torch.full((classes,), each[0] / classes)
        return Shared(
            network.init(key).body, torch.zeros(classes, width), cov, torch.ones(()), share_C,
            torch.ones(()) / each[1], torch.zeros(classes, width + 1), torch.zeros(()),
        )  # fmt: skip

    def gaussian_of(shared: Shared) -> Gaussian:
        return Gaussian(shared.mean_Cd.double(), covariance.unpack(shared.cov.double(), width))

    def total(shared: Shared) -> Tensor:
        """v, of the features of a sample of any class."""
        g, share_C1 = gaussian_of(shared), shared.share_C.double()[:, None] / each[0]
        apart_Cd = g.mean_Cd - (share_C1 * g.mean_Cd).sum(0)
        return (g.cov_dd.diagonal().sum() + (share_C1 * apart_Cd.square()).sum()).clamp(min=1e-12)

    def scale(v: Tensor) -> Tensor:
        return (width / v).sqrt()

    def long(z_Nd: Tensor, v: Tensor) -> Tensor:
        """Z."""
        return torch.cat([z_Nd.double() * scale(v), torch.ones(len(z_Nd), 1, dtype=torch.float64)], 1)  # [13]

    def widened(g: Gaussian, amount: Tensor) -> Gaussian:
        return g._replace(cov_dd=g.cov_dd + torch.diag_embed(amount.expand(width)))

    def head_for(g: Gaussian, logprior_C: Tensor, amount: Tensor) -> LinearHead:
        head = lda_head(widened(g, amount), logprior_C)  # [6]
        return LinearHead(*(a.to(torch.get_default_dtype()) for a in head))

    def priors(shared: Shared, n_C: Tensor) -> list[Tensor]:
        """Logarithms of pi' and pi for a client with such counts."""
        n_GC, share_GC = n_C.reshape(each), shared.share_C.double().reshape(each)
        likely_GC = class_shares.shrunk(n_GC, share_GC, shared.agreement.double())  # [14]
        return [log_prior(a.flatten()) for a in (likely_GC, class_shares.with_unseen(n_GC, share_GC))]  # [15]

    def estimates(sums: Moments, shared: Shared) -> Estimates:
        g, n_C, n, a = gaussian_of(shared), sums.n_C, sums.n_C.sum(), spread_samples
        own = estimate(sums, g.mean_Cd)  # [1]
        q = spread.excess(n_C, own.mean_Cd - g.mean_Cd, g.cov_dd.trace())  # [2]
        t = (q.clamp(min=0) + a * shared.spread.double().clamp(min=0)) / (n + a).clamp(min=1e-9)  # [3]
        return Estimates(g, own, n_C, t)

    def scatter(e: Estimates) -> Tensor:
        return (e.n_C.sum() - 1).clamp(min=1) * e.own.cov_dd  # W

    def trust(e: Estimates, how: Means) -> Tensor:
        if how == "shrunk":
            return e.n_C * e.spread / (e.n_C * e.spread + 1)  # [4]
        return 0 * e.n_C if how == "everyone" else (e.n_C > 0).double()

    def means(e: Estimates, how: Means) -> Tensor:
        return e.everyone.mean_Cd + trust(e, how)[:, None] * (e.own.mean_Cd - e.everyone.mean_Cd)  # [4]

    def shrunk(e: Estimates) -> Tensor:
        n, b = e.n_C.sum(), covariance_samples
        return (scatter(e) + b * e.everyone.cov_dd) / (n - (e.n_C > 0).sum() + b).clamp(min=1e-9)  # [5]

    def samples(body: Weights, data: Data) -> tuple[Tensor, Tensor, Tensor]:
        z_Nd, y_N = features(task, body, data)
        if not labels:
            return z_Nd, y_N, data.real_N
        z_Nd, real_N = (label_pairs.repeated(a, labels) for a in (z_Nd, data.real_N))
        return z_Nd, label_pairs.of_samples(y_N), real_N

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        shared, amount = down.shared, torch.full((), ridge, dtype=torch.float64)
        z_Nd, y_N, real_N = samples(shared.body, data)
        e = estimates(moments(z_Nd, y_N, real_N, classes), shared)  # [1]
        gaussian = Gaussian(means(e, train_with), shrunk(e))
        head, target_Cd = head_for(gaussian, log_prior(e.n_C), amount), gaussian.mean_Cd.to(z_Nd.dtype)  # [6]

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
        v, n, linear_CD = total(shared), e.n_C.sum().clamp(min=1), shared.linear_CD.double()
        slope_CD = logistic.gradient(linear_CD, long(z_Nd, v), y_N, real_N.double(), log_prior(e.n_C), groups=each[0])
        apart_Cd, share_C, alike = e.own.mean_Cd - e.everyone.mean_Cd, e.n_C * each[0] / n, shared.agreement.double()
        pairs = (e.n_C > 0).sum() / n
        report = Report(
            {},
            share_C[:, None] * apart_Cd / v.sqrt(),
            covariance.pack(scatter(e) / n - shared.known * (1 - pairs) * e.everyone.cov_dd) / v,
            (e.n_C * apart_Cd.square().sum(1)).sum() / n / v,
            share_C - shared.share_C,
            class_shares.agreement(e.n_C.reshape(each), alike) - alike,
            slope_CD / n / width**0.5,
            pairs,
            1 / n,
        )  # [8] to [13]
        up = tree.map(lambda a, scale: (scale * a).to(shared.cov.dtype), report, SCALE)
        mean_trust = (e.n_C * trust(e, train_with)).sum() / e.n_C.sum()
        info = {"train_loss": trained_loss(extras), "trust": mean_trust}
        return client, Up(up._replace(body=tree.sub(new, shared.body)), data.real_N.sum()), info

    def renew(server: Shared, up: Reduced, ids: Tensor) -> tuple[Shared, dict[str, Tensor]]:
        v, old = total(server), tree.map(torch.Tensor.double, server._replace(body={}))
        sent = tree.map(lambda a, scale: a.double() / scale, up.value._replace(body={}), SCALE)
        new, least = 1 - memory * old.known, 1e-3 / classes
        share_C, now_C = ((old.share_C + part * sent.share_C).clamp(min=0) for part in (new, 1))  # [8]
        step_Cd = v.sqrt() * sent.mean_Cd
        mean_Cd = old.mean_Cd + new * step_Cd / share_C.clamp(min=least)[:, None]  # [9]
        moved, free = (step_Cd.square().sum(1) / now_C.clamp(min=least)).sum() / each[0], 1 - sent.pairs
        old_dd, apart = covariance.unpack(old.cov, width), v * sent.square - moved
        scatter_dd = covariance.unpack(v * sent.cov, width) + old.known * free * old_dd
        means = (now_C > least).sum() * sent.one.clamp(min=0) / len(ids)  # everyone's, for a sample
        pooled_dd = spread.within(scatter_dd, free, apart / (sent.pairs - means).clamp(min=1e-9))
        cov_dd = covariance.above_noise(old_dd + new * (pooled_dd - old_dd))  # [10]
        variance = cov_dd.trace().clamp(min=1e-12)
        agreement = (old.agreement + new * sent.agreement).clamp(0, 1)
        same = (agreement / share_C.reshape(each).square().sum(1).mean().clamp(min=1e-9) / len(ids)).clamp(0, 1)
        between = spread.Between(apart / variance, sent.pairs, means, same)
        t = (spread.among(between) + old.known * moved / variance).clamp(-1, 100)
        t = old.spread + new * (t - old.spread)  # [11]
        outer_dd, mean_d = cov_dd + (mean_Cd.T * share_C) @ mean_Cd / each[0], share_C @ mean_Cd / each[0]
        outer_DD = logistic.with_one(scale(v) ** 2 * outer_dd, scale(v) * mean_d)  # M
        up_CD = width**0.5 * sent.slope_CD - _LINEAR * old.linear_CD
        linear_CD = old.linear_CD + new * logistic.step(up_CD, outer_DD, _LINEAR)  # [12]
        made = Shared({}, mean_Cd, covariance.pack(cov_dd), t, share_C, agreement, linear_CD, torch.ones(()))
        unit_D = torch.cat([(scale(v) / scale(total(made))).expand(width), torch.ones(1, dtype=torch.float64)])
        made = tree.map(lambda a: a.to(server.cov.dtype), made._replace(linear_CD=linear_CD * unit_D))
        return made._replace(body=tree.add(server.body, up.value.body)), {}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Mixture:
        z_Nd, y_N, real_N = samples(down.shared.body, data)
        kinds = _HEADS if personal == "mixture" or personal == "gaussians" else ((personal, 1.0),)
        hows, ridges = list(dict.fromkeys(how for how, _ in kinds)), dict.fromkeys(times for _, times in kinds)
        v, linear_CD = total(down.shared), down.shared.linear_CD.double()
        amount, z_ND = head_ridge * v / width, long(z_Nd, v)

        def short(weight_CD: Tensor, logprior_C: Tensor) -> LinearHead:
            return LinearHead(scale(v) * weight_CD[:, :-1], weight_CD[:, -1] + logprior_C)

        def linear_heads(weight_N: Tensor, prior_C: Tensor, own_prior_C: Tensor) -> LinearHead:
            own_CD = logistic.fit(
                linear_CD, z_ND, y_N, weight_N.double(), own_prior_C, pull=_LINEAR_SAMPLES, groups=each[0]
            )  # [16]
            heads = tree.stack([short(linear_CD, prior_C), short(own_CD, own_prior_C)])
            return tree.map(lambda a: a.to(torch.get_default_dtype()), heads)

        def heads_from(sums: Moments, weight_N: Tensor) -> LinearHead:
            e = estimates(sums, down.shared)
            g = Gaussian(torch.stack([means(e, how) for how in hows]), shrunk(e))
            prior_C, own_C = priors(down.shared, e.n_C)
            prior_KC = torch.stack([prior_C if how == "everyone" else own_C for how in hows])
            heads = {times: head_for(g, prior_KC, times * amount) for times in ridges}  # costly: once for each
            gaussians = tree.stack([tree.rows(heads[times], hows.index(how)) for how, times in kinds])
            if personal != "mixture":
                return gaussians
            return tree.map(lambda *parts: torch.cat(parts), gaussians, linear_heads(weight_N, prior_C, own_C))  # [17]

        group_N, inner_N = groups(data), inner(data)
        if labels:  # the pairs of a sample are in one fold, and count as one
            group_N = label_pairs.repeated(torch.arange(len(data.row_N)) if group_N is None else group_N, labels)
            inner_N = label_pairs.repeated((data.real_N if inner_N is None else inner_N) / labels, labels)
        return mixture.fit(
            heads_from, z_Nd, y_N, real_N, keys.fold(key, "folds"), classes=classes, folds=folds, prior=share_samples,
            group_N=group_N, inner_N=inner_N, normalised=normalised,
        )  # fmt: skip # [18]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        shared = down.shared
        z_Bd = network.features(shared.body, task.inputs(x_B))
        if client:
            logp_BC = mixture.log_probabilities(client, z_Bd, normalised)  # [19]
        else:
            amount = head_ridge * total(shared) / width
            logp_BC = normalised(linear(z_Bd, *head_for(gaussian_of(shared), log_prior(shared.share_C), amount)))
        return logp_BC.reshape(-1, labels, 2) if labels else logp_BC

    means_by_n = Report(reduce.increment(), *(reduce.mean() for _ in Report._fields[1:]))
    return Method(init_server, stateless, send, local, means_by_n, renew, personalise, predict)
