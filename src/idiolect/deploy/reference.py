"""What a site keeps of its own samples to be watched: Gaussians of its classes, distances, and a confusion matrix.

The representation is that of the global model; of a method without one, that of the network that is received, or else
of the initial one. All were made without the site's samples. So only the Gaussians depend on them. They are made twice,
each time from one half, and the other half says how far from them the site's own samples are: a new sample and one of
these are exchangeable, if nothing has changed.
"""

from __future__ import annotations

from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from idiolect.core import tree
from idiolect.core.errors import InputError
from idiolect.core.network import watching
from idiolect.core.tree import Tree
from idiolect.deploy import labels
from idiolect.deploy.bundle import Bundle, Personal
from idiolect.deploy.harm import fold_numbers
from idiolect.deploy.on_features import on_features
from idiolect.deploy.samples import Samples
from idiolect.deploy.schema import About
from idiolect.statistics.covariance import pack, ridge, shrink, unpack
from idiolect.statistics.gaussian import Gaussian, estimate
from idiolect.statistics.moments import moments

# N samples of the site, P classes that they are of or were taken for, H halves, d feature width, B batch

FILE = "watch.safetensors"
LEAST = 20
"""Samples that a site needs to be watched."""
_CHUNK = 256
_SMALL = 1e-12  # variance of features that are all alike, so that distances exist


class Reference(NamedTuple):
    """A site's own samples, as numbers."""

    class_P: Tensor
    """Places among the bundle's classes."""
    share_P: Tensor
    """The classes' proportions."""
    confusion_PP: Tensor
    """How many samples of class (column) were taken for class (row), each by models made without it."""
    near_HP: Tensor
    """How many samples were nearest to each class by the Gaussians of a half, made without them, when the proportions
    were ``share_P``."""
    count_HP: Tensor
    """Samples that each Gaussian of a half is made from."""
    mean_HPd: Tensor
    cov_HD: Tensor
    """Covariances, shrunk and tied over classes, packed."""
    half_N: Tensor
    """The Gaussians that a sample's distance is to; they are made without it."""
    distance_N: Tensor
    value_ND: Tensor | None = None
    """What the global model predicts of them: scaled numbers, or probabilities of labels; None of classes."""


def features(bundle: Bundle, x_R: Tree) -> tuple[Tensor, Tensor]:
    """The global model's representation (R, d) of samples as stored, and what it predicts of them (R, ...).

    Where it notes no representation, both are what it predicts.
    """
    model, method = Personal(bundle.model().down, bundle.fresh), bundle.received
    seen, outputs = list[Tensor](), list[Tensor]()
    for x_B in tree.split(x_R, _CHUNK):
        with watching() as representations, torch.no_grad():
            output_BC = method.predict(model.down, model.client, x_B)
        seen.append((representations[0] if representations else output_BC).flatten(1).double())
        outputs.append(output_BC.double())
    return torch.cat(seen), torch.cat(outputs)


def make(z_Nd: Tensor, y_N: Tensor, said_N: Tensor, key: Tensor, group_N: Tensor | None = None) -> Reference:
    """The reference of a site.

    Args:
        z_Nd: the representation of its samples.
        y_N: their classes.
        said_N: the classes that they were taken for, each by models made without it.
        key: of the division into halves.
        group_N: which samples belong together, and are in one half; None where there is no group or a single one.
    """
    class_P = torch.unique(torch.cat([y_N, said_N]))
    y_N, said_N = torch.searchsorted(class_P, y_N), torch.searchsorted(class_P, said_N)
    half_N = fold_numbers(y_N, 2, key, group_N)
    classes = len(class_P)
    count_HP = torch.stack([torch.bincount(y_N[half_N != h], minlength=classes) for h in range(2)])
    gaussians = [_gaussian(z_Nd[half_N != h], y_N[half_N != h], classes) for h in range(2)]
    distance_N, near = torch.empty(len(y_N), dtype=torch.float64), []
    for h, g in enumerate(gaussians):
        distance_N[half_N == h], near_M = nearest(z_Nd[half_N == h], g, count_HP[h])
        near.append(torch.bincount(near_M, minlength=classes))
    share_P = torch.bincount(y_N, minlength=classes).double() / len(y_N)
    return Reference(
        class_P, share_P, torch.bincount(said_N * classes + y_N, minlength=classes**2).view(classes, classes),
        torch.stack(near), count_HP, torch.stack([g.mean_Cd for g in gaussians]),
        torch.stack([pack(g.cov_dd) for g in gaussians]), half_N, distance_N,
    )  # fmt: skip


def of_site(bundle: Bundle, samples: Samples, said_N: Tensor, key: Tensor) -> bytes:
    """The file of a site's reference; see ``make``. Samples with numbers or labels are all of one class."""
    bundle, samples = on_features(bundle, samples)
    group_N = samples.group_N if samples.group_N is not None and len(torch.unique(samples.group_N)) > 1 else None
    z_Nd, output_NC = features(bundle, samples.x_N)
    if not bundle.about.classes:
        one_N = torch.zeros(len(z_Nd), dtype=torch.int64)
        value_ND = output_NC if bundle.about.targets else labels.probabilities(output_NC)
        return content(make(z_Nd, one_N, one_N, key, group_N)._replace(value_ND=value_ND))
    return content(make(z_Nd, samples.y_N, said_N, key, group_N))


def content(reference: Reference) -> bytes:
    """The file of a reference."""
    tensors = {name: tensor for name, tensor in reference._asdict().items() if tensor is not None}
    return safetensors.torch.save({name: tensor.contiguous() for name, tensor in tensors.items()})


def read(bundle: Bundle) -> Reference:
    """The reference of a site.

    Raises:
        InputError: the bundle is not a site's, it has no reference, or the file is broken or has changed.
    """
    if bundle.about.site is None:
        raise InputError(f"{bundle.folder} was not made from a site's samples: give what idiolect join wrote")
    if FILE not in bundle.about.files:
        raise InputError(f"{bundle.folder} cannot be watched, because {bundle.unwatched(LEAST)}")
    try:
        reference = Reference(**safetensors.torch.load(bundle.other(FILE)))
        _check(reference, bundle.about)
    except (SafetensorError, TypeError, ValueError) as error:
        raise InputError(f"{bundle.folder / FILE} is not readable ({error}): join again") from None
    return reference


def nearest(z_Md: Tensor, g: Gaussian, count_C: Tensor) -> tuple[Tensor, Tensor]:
    """Squared Mahalanobis distances (M,) to the nearest class, and that class (M,).

    min_c n_c / (n_c + 1) (z - mean_c)' cov^-1 (z - mean_c), where the factor is for the error of a mean of n_c samples.
    """
    factor_dd = torch.linalg.cholesky(g.cov_dd.double())
    white_Md, mean_Cd = (
        torch.linalg.solve_triangular(factor_dd, a.double().T, upper=False).T for a in (z_Md, g.mean_Cd[count_C > 0])
    )
    n_C = count_C[count_C > 0].double()
    far_MC = torch.cdist(white_Md, mean_Cd, compute_mode="donot_use_mm_for_euclid_dist").square() * (n_C / (n_C + 1))
    far_M, at_M = far_MC.min(1)
    return far_M, torch.nonzero(count_C > 0)[at_M, 0]


def gaussian(reference: Reference, half: int) -> Gaussian:
    """The Gaussians of one half."""
    mean_Pd = reference.mean_HPd[half]
    return Gaussian(mean_Pd, unpack(reference.cov_HD[half], mean_Pd.shape[1]))


def _gaussian(z_Nd: Tensor, y_N: Tensor, classes: int) -> Gaussian:
    """Means and the shrunk covariance, as they are stored.

    Source: the weight of the shrinkage from Ledoit & Wolf, A well-conditioned estimator for large-dimensional
    covariance matrices, 2004.
    """
    from sklearn.covariance import ledoit_wolf_shrinkage

    raw = estimate(moments(z_Nd, y_N, torch.ones(len(y_N)), classes), z_Nd.new_zeros(classes, z_Nd.shape[1]))
    within_Nd = (z_Nd.double() - raw.mean_Cd[y_N]).numpy()
    weight = float(ledoit_wolf_shrinkage(within_Nd, assume_centered=True)) if within_Nd.any() else 1.0
    return Gaussian(raw.mean_Cd.float(), ridge(shrink(raw.cov_dd, weight), _SMALL).float())


def _check(reference: Reference, about: About) -> None:
    p, d, n = len(reference.class_P), reference.mean_HPd.shape[-1], len(reference.half_N)
    shapes = {
        "class_P": (p,), "share_P": (p,), "confusion_PP": (p, p), "near_HP": (2, p), "count_HP": (2, p),
        "mean_HPd": (2, p, d), "cov_HD": (2, d * (d + 1) // 2), "half_N": (n,), "distance_N": (n,),
    }  # fmt: skip
    shapes |= {"value_ND": (n, about.outputs)} if not about.classes else {}
    if {name: tuple(a.shape) for name, a in reference._asdict().items() if a is not None} != shapes:
        raise ValueError("its tensors have other shapes")
    if not 0 <= int(reference.class_P.min()) <= int(reference.class_P.max()) < max(1, len(about.classes)):
        raise ValueError("it has other classes")
