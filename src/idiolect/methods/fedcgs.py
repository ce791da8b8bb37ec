"""FedCGS: one round, in which clients send sums of a pretrained network's features, and the server makes a head."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from idiolect.core.method import Data, Down, Method, Reduced, Task, Up, Weights, reduce
from idiolect.statistics import covariance as matrices
from idiolect.statistics.gaussian import Gaussian, LinearHead, estimate, lda_head, log_prior
from idiolect.statistics.moments import Moments, moments, weights_by_class
from idiolect.training import features, require_classes, require_unweighted, stateless

PERSONAL = ("prior",)
SEARCH = {"shrinkage": "0.0001..1:log"}

_ROUNDING = 1e-12  # variances below this share of the mean square are rounding


class Shared(NamedTuple):
    """What the server keeps and sends."""

    body: Weights
    head: LinearHead
    """Without a prior."""
    logprior_C: Tensor


class Sums(NamedTuple):
    """What a client sends, float64."""

    sum_Cd: Tensor
    """Of the features of each class."""
    outer: Tensor
    """Packed (d (d + 1) / 2): the sum of z z' over all samples."""


def fedcgs(
    task: Task,
    *,
    prior: Literal["everyone", "own"] = "everyone",
    covariance: Literal["total", "within"] = "total",
    shrinkage: Annotated[float, Field(ge=0, le=1)] = 1e-4,
) -> Method:
    """FedCGS: a head from the sums of pretrained features, without training (Guan et al., AAAI 2025).

    Client i, whose features of the pretrained body are z:
        n_ic,  A_ic = sum of z over its samples of class c,  B_i = sum of z z'        [1]
    Server, with n_c, A_c, B and n the sums over all clients:
        mu_c = A_c / n_c,  mu = sum_c A_c / n                                         [2]
        S = (B - n mu mu') / (n - 1)                                                  [3]
        w_c = S^-1 mu_c,  b_c = log (n_c / n) - 1/2 mu_c' w_c                         [4]
    Personal: this head; with ``prior=own`` the client's own n_ic / n_i in [4]        [5]

    The body is not trained, and one round of all clients is the whole method: give a pretrained network and
    ``rounds=1``. Every later round does the same with its own participants.

    Up: A_ic (C, d) and B_i (d (d + 1) / 2), plain sums, with n_ic beside them. Down: the body, w, b and the log prior.
    At the client: nothing until ``personalise``, and only with ``prior=own`` its log prior (C). A new client takes the
    head as it is, or counts its labels.

    Args:
        task: the problem.
        prior: "own" is not the paper's, whose head is one for all; clients whose labels differ gain by it.
        covariance: "total" is [3], about the mean of all samples; "within" is about the means of the classes, as linear
            discriminant analysis has it.
        shrinkage: share of a multiple of the identity of the same trace in S. The paper and the released code have 0,
            which has no inverse with fewer samples than features or with a feature that never changes.

    Source: the released code, Yuqin-G/FedCGS, main_fedcgs.py.
    Differs from source: the shrinkage; a class that nobody has takes mu as its mean, and a log prior of about -9, where
    the released code divides by 0. Samples that are all alike, or one alone, have S = I. Where the noise of privacy has
    made S no covariance, it is repaired, with its trace.
    The paper also has clients tune networks of their own towards the mu_c in one more round; no code of that is
    released, and it is not here.
    """
    require_classes(task, "fedcgs", "its head is made from a Gaussian of each class")
    require_unweighted(task, "fedcgs")
    network, classes, width, dtype = task.network, task.classes, task.network.width, torch.get_default_dtype()
    no_prior_C = torch.zeros(classes, dtype=torch.float64)

    def init_server(key: Tensor) -> Shared:
        head = LinearHead(torch.zeros(classes, width), torch.zeros(classes))
        return Shared(network.init(key).body, head, log_prior(no_prior_C).to(dtype))

    def send(server: Shared, ids: Tensor) -> Down:
        return Down(shared=server)

    def local(down: Down, client: Any, data: Data, key: Tensor) -> tuple[Any, Up, dict[str, Tensor]]:
        z_Nd, y_N = features(task, down.shared.body, data)
        n_C, sum_Cd, outer_dd = moments(z_Nd, y_N, data.real_N, classes)  # [1]
        return client, Up(Sums(sum_Cd, matrices.pack(outer_dd)), n_C), {}

    def aggregate(server: Shared, up: Reduced, ids: Tensor) -> tuple[Shared, dict[str, Tensor]]:
        n_C, sums = up.weight, up.value
        everyone = Moments(n_C, sums.sum_Cd, matrices.unpack(sums.outer, width))
        mean_d = sums.sum_Cd.sum(0) / n_C.sum()
        own = estimate(everyone, mean_d.expand(classes, width))  # [2]
        cov_dd = own.cov_dd
        if covariance == "total":
            cov_dd = (everyone.outer_dd - n_C.sum() * mean_d.outer(mean_d)) / (n_C.sum() - 1).clamp(min=1)  # [3]
        cov_dd = matrices.above_noise(cov_dd)
        if cov_dd.trace() <= _ROUNDING * everyone.outer_dd.trace():
            cov_dd = torch.eye(width, dtype=cov_dd.dtype)
        g = Gaussian(own.mean_Cd, cov_dd)
        head = lda_head(g, no_prior_C, shrink=shrinkage)  # [4]
        logprior_C = log_prior(n_C).to(dtype)
        return Shared(server.body, LinearHead(*(a.to(dtype) for a in head)), logprior_C), {}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        if prior == "everyone":
            return client
        return log_prior(weights_by_class(data.y_R[data.row_N], data.real_N, classes).sum(0)).to(dtype)  # [5]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        body, head, logprior_C = down.shared
        own_C = client if isinstance(client, Tensor) else logprior_C
        z_Bd = network.features(body, task.inputs(x_B))
        return log_softmax(linear(z_Bd, head.weight_Cd, head.bias_C + own_C), -1)  # [4]

    return Method(
        init_server, stateless, send, local, Sums(reduce.sum(), reduce.sum()), aggregate, personalise, predict
    )
