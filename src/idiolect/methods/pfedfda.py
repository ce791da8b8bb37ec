"""pFedFDA: personalised federated learning via feature distribution adaptation."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from idiolect.core.method import ClientValue, Data, Down, Method, Reduced, Task, Up, Weights, keys, reduce, tree
from idiolect.statistics import covariance
from idiolect.statistics.gaussian import Gaussian, LinearHead, estimate, interpolate, lda_head, log_prior
from idiolect.statistics.interpolation import search, search_moments, stratified_folds
from idiolect.statistics.moments import moments, total, weights_by_class
from idiolect.training import (
    Batch,
    batches,
    cross_entropy_mean,
    features,
    groups,
    inner,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    stateless,
    trained_loss,
)

PERSONAL = ("min_count_adapt", "drop_last_adapt")
SEARCH = {"ridge": "0.01..10:log"}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"ridge": 1e-4, "clip_correlation": True, "initial_means": "normal"},  # diverges on real images
    "official": {"ridge": 1.0, "ridge_everywhere": 1e-4, "drop_last_adapt": True},
}
REPORTS = {
    "beta": ClientValue(
        name="local weights (beta)",
        symbol="β",
        meaning="weight of the local estimate",
        shows="how far each client trusts its own statistics",
        ends="At 1 a client uses its own estimate alone, at 0 the global one",
        limits=(0.0, 1.0),
    )
}


class Shared(NamedTuple):
    """What the server keeps and sends, and what a client sends the increments of."""

    body: Weights
    mean_Cd: Tensor
    cov: Tensor
    """Upper triangle of the (d, d) covariance."""


class Counts(NamedTuple):
    """What weighs an upload."""

    n: Tensor
    n_C: Tensor


class Personal(NamedTuple):
    """A client's own head, and the weight of its local estimate."""

    head: LinearHead
    beta: Tensor


def pfedfda(
    task: Task,
    *,
    ridge: NonNegativeFloat = 1.0,
    ridge_everywhere: NonNegativeFloat = 0.0,
    clip_correlation: bool = False,
    beta: Literal["single", "separate", "local"] = "single",
    initial_means: Literal["uniform", "normal"] = "uniform",
    statistics: Literal["training", "fresh"] = "training",
    folds_of: Literal["rows", "samples"] = "rows",
    min_count: PositiveInt = 1,
    min_count_adapt: PositiveInt = 3,
    drop_last: bool = True,
    drop_last_adapt: bool = False,
    class_weighted_means: bool = False,
) -> Method:
    """pFedFDA: local and global Gaussians of the features, mixed by cross-validation (McLaughlin & Su, NeurIPS 2024).

    Client, with the received body theta, means mu_g (C, d) and covariance S_g (d, d), and its log-prior log pi:
        head: w_c = S_g^-1 mu_gc,  b_c = -1/2 mu_gc' w_c + log pi_c, frozen                         (Eq. 4)         [1]
        theta_i <- SGD(CE)                                                                          (Eq. 5)         [2]
        mu^, S^ = class means and tied covariance of the features seen while training, repaired     (Eqs. 6 to 8)   [3]
        beta = argmin over [0, 1] of the 2-fold cross-entropy under beta local + (1 - beta) global  (Eq. 9)         [4]
        mu_i = beta mu^ + (1 - beta) mu_g,  S_i = beta S^ + (1 - beta) S_g                         (section 4.3)   [5]
    Server:
        theta, mu_g, S_g <- means of the clients', weighted by n_i                                                  [6]
    Personal:
        the head of (mu_i, S_i), estimated under the body received                                                  [7]

    Up: increments of theta, mu (C, d), S (d (d + 1) / 2), weighted by n. Down: theta, mu_g, S_g. At the client: nothing
    until ``personalise``, which estimates, searches beta again and forms the head by forward passes only; a new client
    joins in the same way. With too few samples for two folds beta is 0. beta is the weight of the **local** estimate
    (FedLDA's is of the global). No eigenvalue of S_g is below min(1, ridge): S_g starts at 1 and [3] adds ridge. Noise
    for privacy can push some lower: the server lifts those below half of it to that half, so that [1] has a solution;
    with a ridge of 0, those that are no larger than the noise become their mean.

    Args:
        task: the problem.
        ridge: added to the covariance's diagonal. The released code adds 1 (a slip for 1e-4, but its numbers depend on
            it). The paper says a small number and names none; with 1e-4 training diverged within 5 rounds on
            Fashion-MNIST and CIFAR-10, and with 0.03 or less rounding changes the accuracy on digits by some points.
        ridge_everywhere: added to every entry; the released code's 1e-4.
        clip_correlation: raise the eigenvalues of the correlation matrix to 1e-15 (paper and released code; acts only
            where ridge is 0).
        beta: one weight (the paper's main results), one each for means and covariance (the released code's default), or
            1 always (ablations of section 5.3).
        initial_means: U(0, 1) per coordinate (released code) or N(0, 1) (paper: a spherical Gaussian of
            unstated variance).
        statistics: "training": of the samples of all epochs, as seen before each step (paper and released code);
            "fresh": of one pass afterwards.
        folds_of: "rows" lets the epochs' copies of one sample fall into both folds (released code); "samples" keeps
            them in one.
        min_count: samples that a class needs to have a local mean while training.
        min_count_adapt: the same in ``personalise`` (released code: 3); the scatter is always about each class's own
            mean.
        drop_last: leave out an incomplete last batch in training (released code); a client of one batch keeps it.
        drop_last_adapt: the same for the statistics in ``personalise`` (released code: yes).
        class_weighted_means: average means by n_ic in place of n_i.

    Source: Algorithm 1, sections 4.2 and 4.3; new clients: appendix C.3. Eq. 5 lacks its minus sign. From the released
    code: a prior smoothed by 1e-4, a head solved with a shrinkage of 1e-4, the second search of beta in ``personalise``
    (the paper takes the client's estimate as it is), and every default but those of ``ridge_everywhere``,
    ``clip_correlation``, ``beta`` and ``drop_last_adapt``.
    Differs from source: the search is a bounded scalar one in float64 with a fixed number of steps (released code:
    L-BFGS from 0.5 with the gradient cut to zero outside [0, 1]).
    """
    require_classes(task, "pfedfda", "its head is made from a Gaussian of each class")
    require_unweighted(task, "pfedfda")
    network, classes, width = task.network, task.classes, task.network.width

    def repair(cov_dd: Tensor) -> Tensor:
        cov_dd = covariance.ridge(cov_dd, ridge, everywhere=ridge_everywhere)
        return covariance.clip_correlation(cov_dd) if clip_correlation else cov_dd

    def init_server(key: Tensor) -> Shared:
        draw = torch.Generator().manual_seed(int(keys.fold(key, "means")))
        shape = (classes, width)
        mean_Cd = (
            torch.rand(shape, generator=draw) if initial_means == "uniform" else torch.randn(shape, generator=draw)
        )
        return Shared(network.init(key).body, mean_Cd, covariance.pack(torch.eye(width)))

    def everyone(shared: Shared) -> Gaussian:
        return Gaussian(shared.mean_Cd.double(), covariance.unpack(shared.cov.double(), width))

    def prior(y_N: Tensor, real_N: Tensor) -> Tensor:
        return log_prior(weights_by_class(y_N, real_N, classes).sum(0))

    def personal(z_Nd: Tensor, same_N: Tensor | None, inner_N: Tensor, y_N: Tensor, used_N: Tensor, key: Tensor,
                 g: Gaussian, logprior_C: Tensor, count: int) -> tuple[Gaussian, Tensor]:  # fmt: skip
        if beta == "local":
            sums, weight = moments(z_Nd, y_N, used_N, classes), torch.ones((), dtype=torch.float64)
        else:
            fold_N = stratified_folds(y_N, used_N, key, sample_N=same_N)
            parts, lone = search_moments(z_Nd, y_N, used_N, fold_N, classes=classes)
            sums, separate = total([*parts, lone]), beta == "separate"
            weight = search(
                z_Nd, y_N, used_N, fold_N, g, logprior_C, repair=repair, separate=separate, parts=parts, inner_N=inner_N
            )  # [4]
        mean_Cd = estimate(sums, g.mean_Cd, min_count=count).mean_Cd
        own = Gaussian(mean_Cd, repair(estimate(sums, g.mean_Cd).cov_dd))  # [3]
        return interpolate(own, g, weight), weight  # [5]

    def same(data: Data, at_N: Tensor) -> Tensor | None:
        group_N = groups(data)
        return group_N[at_N] if group_N is not None else at_N if folds_of == "samples" else None

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        body, g = down.shared.body, everyone(down.shared)
        y_N = data.y_R[data.row_N]
        logprior_C = prior(y_N, data.real_N)
        head = cast(lda_head(g, logprior_C))  # [1]

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, ...]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(body, task.inputs(x_B))
            value = cross_entropy_mean(linear(z_Bd, *head), y_B, batch.used_B)
            return value, (z_Bd, batch.at_B, batch.used_B, value)

        plan = batches(data, task.training, keys.fold(key, "body"), drop_last=drop_last)
        new, extras = sgd(loss, body, plan, task.training.optimiser)  # [2]
        if statistics == "training":
            z_Nd, at_N, used_N = (torch.cat([s[part] for s in extras]) for part in range(3))
        else:
            z_Nd, at_N, used_N = features(task, new, data)[0], torch.arange(len(y_N)), data.real_N
        same_N, folds_key = same(data, at_N), keys.fold(key, "folds")
        inner_N = inner(data)[at_N]
        mixture, weight = personal(z_Nd, same_N, inner_N, y_N[at_N], used_N, folds_key, g, logprior_C, min_count)
        up = Shared(
            tree.sub(new, body),
            (mixture.mean_Cd - g.mean_Cd).to(z_Nd.dtype),
            covariance.pack(mixture.cov_dd - g.cov_dd).to(z_Nd.dtype),
        )
        counts = Counts(data.real_N.sum(), weights_by_class(y_N, data.real_N, classes).sum(0).to(z_Nd.dtype))
        info = {"train_loss": trained_loss([(s[3], s[2].sum()) for s in extras])}
        return client, Up(up, counts), info | betas(weight)

    def betas(weight: Tensor) -> dict[str, Tensor]:
        return {"beta_mean": weight[0], "beta_cov": weight[1]} if beta == "separate" else {"beta": weight}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Personal:
        g = everyone(down.shared)
        z_Nd, y_N = features(task, down.shared.body, data)
        at_N, used_N = torch.arange(len(y_N)), data.real_N
        logprior_C = prior(y_N, data.real_N)
        if drop_last_adapt:
            plan = batches(data, task.training, keys.fold(key, "rows"), epochs=1, drop_last=True)
            at_N, used_N = torch.cat([b.at_B for b in plan]), torch.cat([b.used_B for b in plan])
        mixture, weight = personal(
            z_Nd[at_N], same(data, at_N), inner(data)[at_N], y_N[at_N], used_N, keys.fold(key, "folds"), g, logprior_C,
            min_count_adapt,
        )  # fmt: skip
        return Personal(cast(lda_head(mixture, logprior_C)), weight)  # [7]

    def cast(head: LinearHead) -> LinearHead:
        return LinearHead(*(a.to(torch.get_default_dtype()) for a in head))

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        head = client.head if client else cast(lda_head(everyone(down.shared), log_prior(torch.ones(classes))))
        z_Bd = network.features(down.shared.body, task.inputs(x_B))
        return log_softmax(linear(z_Bd, *head), -1)

    def renew(server: Shared, up: Reduced, ids: Tensor) -> tuple[Shared, dict[str, Tensor]]:
        new = tree.add(server, up.value)  # [6]
        cov_dd = covariance.ridged_above_noise(covariance.unpack(new.cov, width), ridge)
        return new._replace(cov=covariance.pack(cov_dd)), {}

    means = reduce.mean("n_C") if class_weighted_means else reduce.mean("n")
    parts = Shared(body=reduce.increment("n"), mean_Cd=means, cov=reduce.mean("n"))  # [6]
    return Method(init_server, stateless, send, local, parts, renew, personalise, predict)  # [6]
