"""FedCGS: one round, in which clients send moments of a pretrained network's features, and the server makes a head."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import linear, log_softmax

from idiolect.core.method import Data, Down, Method, Reduced, Task, Up, Weights, reduce
from idiolect.statistics.covariance import above_noise, pack, unpack
from idiolect.statistics.gaussian import Gaussian, LinearHead, estimate, lda_head, log_prior
from idiolect.statistics.moments import Moments, moments, weights_by_class
from idiolect.training import features, require_classes, require_unweighted, stateless

PERSONAL = ("prior",)
SEARCH = {"shrinkage": "0.0001..1:log"}

_ROUNDING = 1e-12  # a variance below this share of the mean square is rounding


class Shared(NamedTuple):
    """What the server keeps and sends."""

    body: Weights
    head: LinearHead
    """Without a prior."""
    logprior_C: Tensor


class Report(NamedTuple):
    """What a client sends, float64."""

    mean_Cd: Tensor
    """Of the features of each class; 0 without samples."""
    square: Tensor
    """Packed (d (d + 1) / 2): the mean of z z' over all samples."""


class Counts(NamedTuple):
    """What weighs it."""

    n: Tensor
    n_C: Tensor


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
        sends A_ic / n_ic and B_i / n_i, weighted by n_ic and n_i = sum_c n_ic        [2]
    Server, with n_c, A_c, B and n the sums over all clients:
        mu_c = A_c / n_c,  mu = sum_c A_c / n                                         [3]
        S = (B - n mu mu') / (n - 1)                                                  [4]
        w_c = S^-1 (mu_c - mu),  b_c = -1/2 (mu_c + mu)' w_c                          [5]
    Personal: the logits w_c' z + b_c + log (n_c / n)                                 [6]
        with ``prior=own`` the client's own n_ic / n_i there                          [7]

    The paper has w_c = S^-1 mu_c and b_c = -1/2 mu_c' w_c. The logits differ by a number that all classes have, so the
    probabilities are the same; it is large where features lie far from 0, and float32 would lose what is left.

    The body is not trained, and one round of all clients is the whole method: give a pretrained network and
    ``rounds=1``. Every later round does the same with its own participants.

    Up: [2], which are (C, d) and (d (d + 1) / 2). Down: the body, w, b and the log prior. At the client: nothing until
    ``personalise``, and only with ``prior=own`` its log prior (C). A new client takes the head as it is, or counts its
    labels.

    Args:
        task: the problem.
        prior: "own" is not the paper's, whose head is one for all. It often helps where clients' labels differ, and
            hardly ever predicts a class of which the client has no training sample.
        covariance: "total" is [4], about the mean of all samples; "within" is about the means of the classes, as linear
            discriminant analysis has it.
        shrinkage: weight in S of the multiple of the identity that has the same trace. The paper and the released code
            have 0, which has no inverse with fewer samples than features or with a feature that never changes.

    Source: the released code, Yuqin-G/FedCGS, main_fedcgs.py.
    Differs from source: the shrinkage; priors are smoothed, so that a class without samples has about exp(-9); such a
    class takes mu as its mean, where the released code divides by 0. Samples that are all alike, or one alone, have
    S = I. The paper also has clients tune networks of their own towards the mu_c in one more round; no code of that is
    released, and it is not here.
    """
    require_classes(task, "fedcgs", "its head is made from a Gaussian of each class")
    require_unweighted(task, "fedcgs", "trains nothing, so that class_weights would change nothing")
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
        n = n_C.sum()
        report = Report(sum_Cd / n_C.clamp(min=1)[:, None], pack(outer_dd / n.clamp(min=1)))  # [2]
        return client, Up(report, Counts(n, n_C)), {}

    def aggregate(server: Shared, up: Reduced, ids: Tensor) -> tuple[Shared, dict[str, Tensor]]:
        n, n_C = up.weight.n.double(), up.weight.n_C.double()
        mean_Cd, square_dd = up.value.mean_Cd.double(), unpack(up.value.square.double(), width)
        mean_d = n_C @ mean_Cd / n.clamp(min=1)  # [3]
        sums = Moments(n_C, n_C[:, None] * mean_Cd, n * square_dd)
        within = estimate(sums, mean_d.expand(classes, width))  # [3]
        total_dd = n * (square_dd - mean_d.outer(mean_d)) / (n - 1).clamp(min=1)  # [4]
        cov_dd = above_noise(total_dd if covariance == "total" else within.cov_dd)
        if cov_dd.trace() <= _ROUNDING * square_dd.trace():
            cov_dd = torch.eye(width, dtype=cov_dd.dtype)
        weight_Cd, bias_C = lda_head(Gaussian(within.mean_Cd - mean_d, cov_dd), no_prior_C, shrink=shrinkage)  # [5]
        head = LinearHead(weight_Cd.to(dtype), (bias_C - weight_Cd @ mean_d).to(dtype))  # [5]
        return Shared(server.body, head, log_prior(n_C).to(dtype)), {}

    def personalise(down: Down, client: Any, data: Data, key: Tensor) -> Any:
        if prior == "everyone":
            return client
        return log_prior(weights_by_class(data.y_R[data.row_N], data.real_N, classes).sum(0)).to(dtype)  # [7]

    def predict(down: Down, client: Any, x_B: Tensor) -> Tensor:
        body, head, logprior_C = down.shared
        own_C = client if isinstance(client, Tensor) else logprior_C
        z_Bd = network.features(body, task.inputs(x_B))
        return log_softmax(linear(z_Bd, head.weight_Cd, head.bias_C + own_C), -1)  # [6]

    parts = Report(mean_Cd=reduce.mean("n_C", exact=True), square=reduce.mean("n", exact=True))  # [3] [4]
    return Method(init_server, stateless, send, local, parts, aggregate, personalise, predict)
