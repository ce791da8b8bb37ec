"""FedLDA: personalised federated learning through collaborative linear discriminant analysis."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from idiolect.core.errors import InputError
from idiolect.core.method import Data, Down, Method, Reduced, Task, Up, Weights, keys, reduce, tree
from idiolect.statistics import covariance
from idiolect.statistics.gaussian import Gaussian, LinearHead, estimate, interpolate, lda_head, log_prior
from idiolect.statistics.moments import Moments, moments, weights_by_class
from idiolect.training import (
    Batch,
    batches,
    cross_entropy_mean,
    features,
    require_classes,
    require_unweighted,
    rows,
    sgd,
    stateless,
    trained_loss,
)

PERSONAL = ("tune_body", "head_ridge")
SEARCH = {"global_weight": "0..1", "decorrelation": "0.01..1:log", "ridge": "0.1..10:log"}
PRESETS: dict[str, dict[str, Any]] = {"paper": {"ridge": 0.0, "centre": "interpolated", "decorrelate": "batch"}}


class Own(NamedTuple):
    """A body, and the statistics of its own features over the participants of a round."""

    body: Weights
    mean_Cd: Tensor
    cov: Tensor
    """Upper triangle of the (d, d) covariance within classes."""


class Shared(NamedTuple):
    """What the server keeps and sends, and what a client sends the increments of."""

    body: Weights
    mean_Cd: Tensor
    cov: Tensor
    """Upper triangle of the (d, d) covariance."""
    before: Any = ()
    """``Own`` of the body before the last round, with ``head=recent``; a client sends ``Moments`` in its place."""


class Personal(NamedTuple):
    """A client's own head, and its own body where ``tune_body`` asks for one."""

    head: LinearHead
    body: Weights


def fedlda(
    task: Task,
    *,
    global_weight: Annotated[float, Field(ge=0, le=1)] = 0.5,
    decorrelation: NonNegativeFloat = 0.1,
    decorrelate: Literal["within", "batch"] = "within",
    ridge: NonNegativeFloat = 1.0,
    centre: Literal["local", "interpolated"] = "local",
    tune_body: bool = False,
    head: Literal["carried", "recent"] = "carried",
    head_ridge: NonNegativeFloat = 0.02,
) -> Method:
    """FedLDA: collaborative linear discriminant analysis on shared features (McLaughlin & Su, FL@FM-NeurIPS 2023).

    Client, with the received body theta, means mu (C, d) and covariance S (d, d), and its log-prior log pi:
        head: w_c = S^-1 mu_c,  b_c = -1/2 mu_c' w_c + log pi_c, frozen      (Eq. 4)     [1]
        theta_i <- SGD(CE + decorrelation / d sum_{a != b} |S_batch[a, b]|)  (Eq. 5)     [2]
        mu^, S^ = class means, and tied covariance (over n - 1) + ridge I, of all samples under theta_i  [3]
        mu_i = beta mu + (1 - beta) mu^,   S_i = beta S + (1 - beta) S^      (section 4)  [4]
    Server:
        theta, mu, S <- means of the clients', weighted by n_i                           [5]
    Personal:
        the head of the global statistics with the client's own prior, as in [1]         [6]

    With ``head=recent`` the statistics of [6] are those of the body itself. A client also sends the sums over its
    samples under the theta that it received; from all of them the server has means and scatter within classes (mu', S')
    of that theta. Personal, with that theta and the client's own (mu^, S^) under it:
        mu_i = beta mu' + (1 - beta) mu^,   S_i = beta S' + (1 - beta) S^ + head_ridge (tr S_i / d) I            [7]
    So after T rounds it predicts with the body of T - 1 rounds; the rounds themselves are the same.

    Up: increments of theta, mu (C, d), S (d (d + 1) / 2), weighted by n. Down: theta, mu, S. At the client: nothing
    until ``personalise``, which forms the head of the global statistics with the client's own class prior: only the
    bias is personal, and a new client joins by counting its labels. beta is the weight of the **global** estimate
    (pFedFDA's is of the local). No eigenvalue of S is below min(1, ridge): S starts at 1 and [3] adds ridge. Noise for
    privacy can push some lower: the server lifts those below half of it to that half, so that [1] has a solution; with
    a ridge of 0, those that are no larger than the noise become their mean. The sums of ``head=recent`` must come as
    they were sent: that head is refused with privacy, robust rules and steps that change uploads.

    Args:
        task: the problem.
        global_weight: beta.
        decorrelation: lambda, the weight of the penalty on covariances between features.
        decorrelate: the batch covariance within classes, or about the batch mean (the paper says "batch covariance"
            only).
        ridge: added to the local covariance's diagonal. The paper has none, and without it training diverged within 10
            rounds on Fashion-MNIST: the loss does not depend on the scale of the features, and only an absolute lower
            bound keeps it stable. With 0.1, the default of earlier versions, rounding on another processor changed the
            accuracy on digits by some points, and a trial on Fashion-MNIST diverged (docs/fidelity.md).
        centre: the local scatter about the local means, or about the interpolated ones (the paper's formula).
        tune_body: whether the personal model has the body after local training in ``personalise``; the paper does not
            say.
        head: "carried" takes the statistics of [5], a moving average over the rounds and so over bodies that are no
            longer there; "recent" those of [7].
        head_ridge: added in [7], as a share of the mean variance; only with ``head=recent``.

    Source: Algorithm 1 and section 4, whose moments and interpolation have no equation number; appendix A derives the
    head. There is no released code.
    Differs from source: the ridge; absent classes take the global mean and a smoothed prior, and the head is solved
    with a shrinkage of 1e-4, as in the released code of pFedFDA, its successor; the body is initialised as torch's
    layers are, by Kaiming's method at a smaller scale.
    """
    require_classes(task, "fedlda", "its head is made from a Gaussian of each class")
    require_unweighted(task, "fedlda")
    recent = head == "recent"
    if recent and tune_body:
        raise InputError("fedlda: head=recent is of the body that the server sent: use tune_body=false with it")
    network, classes, width = task.network, task.classes, task.network.width
    eye = covariance.pack(torch.eye(width))

    def init_server(key: Tensor) -> Shared:
        draw = torch.Generator().manual_seed(int(keys.fold(key, "means")))
        start = Own(network.init(key).body, torch.rand((classes, width), generator=draw) * 0.2 - 0.1, eye)
        return Shared(*start, start if recent else ())

    def everyone(shared: Shared | Own) -> Gaussian:
        return Gaussian(shared.mean_Cd.double(), covariance.unpack(shared.cov.double(), width))

    def widened(g: Gaussian) -> Gaussian:
        ridge_d = (head_ridge * g.cov_dd.diagonal().mean()).expand(width)
        return g._replace(cov_dd=g.cov_dd + torch.diag_embed(ridge_d))

    def sums_under(body: Weights, data: Data) -> Moments:
        z_Nd, y_N = features(task, body, data)
        return moments(z_Nd, y_N, data.real_N, classes)

    def head_for(g: Gaussian, data: Data) -> LinearHead:
        n_C = weights_by_class(data.y_R[data.row_N], data.real_N, classes).sum(0)
        return LinearHead(*(a.to(torch.get_default_dtype()) for a in lda_head(g, log_prior(n_C))))

    def penalty(z_Bd: Tensor, y_B: Tensor, used_B: Tensor) -> Tensor:
        peer_BB = used_B[:, None] * used_B
        if decorrelate == "within":
            peer_BB = peer_BB * (y_B[:, None] == y_B)
        value_Bd = z_Bd.detach()  # the gradient, 2 slope / d, is written out: autograd's takes twice as long
        mean_BB = peer_BB / peer_BB.sum(1).clamp(min=1)
        centre_Bd = torch.addmm(used_B[:, None] * value_Bd, mean_BB, value_Bd, alpha=-1)
        sign_dd = (centre_Bd.T @ centre_Bd).sign()
        slope_Bd = torch.addmm(centre_Bd, centre_Bd, sign_dd, beta=-1)  # no diagonal, which is never negative
        return ((2 * z_Bd - value_Bd) * slope_Bd).sum() / (width * (used_B.sum() - 1).clamp(min=1))  # [2]

    def train(shared: Shared, data: Data, key: Tensor) -> tuple[Weights, Tensor]:
        head = head_for(everyone(shared), data)  # [1]

        def loss(body: Weights, batch: Batch) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            x_B, y_B = rows(task, data, batch)
            z_Bd = network.features(body, task.inputs(x_B))
            error = cross_entropy_mean(linear(z_Bd, *head), y_B, batch.used_B)
            extra = decorrelation * penalty(z_Bd, y_B, batch.used_B) if decorrelation else 0.0
            return error + extra, (error, batch.used_B.sum())  # [2]

        new, extras = sgd(loss, shared.body, batches(data, task.training, key), task.training.optimiser)  # [2]
        return new, trained_loss(extras)

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        g = everyone(down.shared)
        new, loss = train(down.shared, data, key)
        sums, dtype = sums_under(new, data), down.shared.cov.dtype
        own = estimate(sums, g.mean_Cd)  # [3]
        if centre == "interpolated":
            about_Cd = interpolate(own, g, 1 - global_weight).mean_Cd
            own = Gaussian(own.mean_Cd, estimate(sums, about_Cd, min_count=len(data.row_N) + 1).cov_dd)
        mixture = interpolate(Gaussian(own.mean_Cd, covariance.ridge(own.cov_dd, ridge)), g, 1 - global_weight)  # [4]
        up = Shared(
            tree.sub(new, down.shared.body),
            (mixture.mean_Cd - g.mean_Cd).to(dtype),
            covariance.pack(mixture.cov_dd - g.cov_dd).to(dtype),
            sums_under(down.shared.body, data) if recent else (),
        )
        return client, Up(up, data.real_N.sum()), {"train_loss": loss}

    def renew(server: Shared, up: Reduced, ids: Tensor) -> tuple[Shared, dict[str, Tensor]]:
        new = tree.add(Shared(*server[:3]), Shared(*up.value[:3]))  # [5]
        cov_dd = covariance.ridged_above_noise(covariance.unpack(new.cov, width), ridge)
        new = new._replace(cov=covariance.pack(cov_dd))
        if not recent:
            return new, {}
        mean_Cd, cov_dd = estimate(up.value.before, everyone(server.before).mean_Cd)
        return new._replace(before=Own(server.body, mean_Cd.to(new.cov), covariance.pack(cov_dd).to(new.cov))), {}

    def own_head(before: Own, data: Data) -> LinearHead:
        g = everyone(before)
        mixture = interpolate(estimate(sums_under(before.body, data), g.mean_Cd), g, 1 - global_weight)
        return head_for(widened(mixture), data)  # [7]

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Personal:
        if recent:
            return Personal(own_head(down.shared.before, data), {})
        body = train(down.shared, data, key)[0] if tune_body else {}
        return Personal(head_for(everyone(down.shared), data), body)  # [6]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        even = Data(x_B, torch.arange(classes), torch.arange(classes), torch.ones(classes))
        shared = down.shared.before if recent else down.shared
        g = everyone(shared)
        head, body = client or Personal(head_for(widened(g) if recent else g, even), {})
        z_Bd = network.features(body or shared.body, task.inputs(x_B))
        return log_softmax(linear(z_Bd, *head), -1)

    before = reduce.sum(exact=True) if recent else ()
    parts = Shared(body=reduce.increment(), mean_Cd=reduce.mean(), cov=reduce.mean(), before=before)  # [5]
    return Method(init_server, stateless, send, local, parts, renew, personalise, predict)  # [5]
