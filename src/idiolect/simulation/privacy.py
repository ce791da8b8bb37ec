"""Client-level differential privacy of what the server computes from uploads, and what it costs: epsilon."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from idiolect.core import keys, option_spec, tree
from idiolect.core.errors import CodeError, InputError
from idiolect.core.method import Up
from idiolect.core.option_spec import Spec
from idiolect.core.reduction import Sums
from idiolect.simulation.uploads import Clip

ORDERS = (*range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Of the Renyi divergence. Whole numbers: for others the accountant's series does not always converge."""


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """The Gaussian mechanism on the sum of a round's uploads, for methods whose server needs only sums or means.

    A client takes part in a round with probability q, the study's participation, independent of the others. Server:
        u_i <- u_i min(1, norm / |u_i|)   over all numbers of ``Up.value`` together; 0 if one is not finite   [1]
        sum <- sum_i u_i + N(0, (noise_multiplier norm)^2 I)                                                  [2]
    The method then gets means that are this sum divided by q K, of K clients, and sums as they are. Weights (numbers of
    samples, also for each class) are replaced by 1, because noise on the values would not hide them.

    With one client's uploads replaced by zeros the sum of a round changes by at most ``norm``. So everything that the
    server computes and sends is differentially private for each client, against all who see it and do not know who was
    drawn. The server itself is trusted: it sees the uploads, and draws the participants and the noise.

    Source: McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018: Algorithm 1 with flat
    clipping, equal weights and the estimator with a fixed denominator.
    """

    norm: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    noise_multiplier: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5

    def bound(self, up: Up) -> Up:
        """An upload as it enters the sum [1].

        Raises:
            CodeError: it has whole numbers, which no norm bounds.
        """
        if not all(a.is_floating_point() for a in tree.leaves(up.value)):
            raise CodeError("privacy cannot hide whole numbers in an upload: leave out privacy, or this method")
        finite = tree.not_finite(up.value) is None
        value = Clip(norm=self.norm)(up.value, keys.key(0)) if finite else tree.zeros(up.value)
        return Up(value, tree.map(torch.ones_like, up.weight))

    def add_noise(self, sums: Sums, mean_count: float, key: Tensor) -> Sums:
        """Sums of bounded uploads with noise [2], and with the weights of the participants of a round on average.

        Args:
            sums: over the participants.
            mean_count: participants of a round on average, q K.
            key: of the noise.
        """
        std = self.noise_multiplier * self.norm
        noise = [keys.normal(keys.fold(key, k), tuple(a.shape), a.dtype) for k, a in enumerate(sums.value)]
        value = tuple(a + std * n for a, n in zip(sums.value, noise, strict=True))
        return Sums(value, tuple(torch.full_like(w, mean_count) for w in sums.weight))


class Ledger:
    """What has been spent: epsilon at the mechanism's delta, after all rounds so far.

    Neighbours are two federations that differ in that one client sends zeros. The accountant composes Renyi
    differential privacy of the Gaussian mechanism with Poisson sampling.

    Source: Mironov, Talwar & Zhang, Renyi Differential Privacy of the Sampled Gaussian Mechanism, 2019; Google's
    dp-accounting.
    """

    def __init__(self, mechanism: GaussianMechanism) -> None:
        dp = accounting()
        self._dp, self._mechanism = dp, mechanism
        self._accountant = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.REPLACE_SPECIAL)

    def add(self, share: float, rounds: int = 1) -> None:
        """Rounds in which each client takes part with this probability."""
        event = self._dp.GaussianDpEvent(self._mechanism.noise_multiplier)
        if rounds:
            self._accountant.compose(self._dp.PoissonSampledDpEvent(share, event), rounds)

    @property
    def epsilon(self) -> float:
        """Of all rounds together."""
        return float(self._accountant.get_epsilon(self._mechanism.delta))


class Releases:
    """How many noisy sums of a job have been computed, in a file.

    A server that is killed after it has sent a round's model, and before the round is on disk, repeats the round, maybe
    with the uploads of others: what both models say has to be counted.

    Args:
        file: of all jobs of a run; a line of JSON for each sum.
        job: which of them, by the name of the method and the seed.
    """

    def __init__(self, file: Path, job: tuple[str, int]) -> None:
        self._file, self._job = file, list(job)

    def add(self) -> None:
        """Count one more, on the disk before this returns."""
        line = f"\n{json.dumps(self._job)}\n"  # a line of its own also after one that was cut
        with open(self._file, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def count(self) -> int:
        """How many so far."""
        lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
        return lines.count(json.dumps(self._job))


def accounting() -> Any:
    """The package dp-accounting.

    Raises:
        InputError: it is not installed.
    """
    try:
        import dp_accounting
    except ImportError:
        raise InputError('privacy needs dp-accounting: pip install "idiolect[privacy]"') from None
    return dp_accounting


MECHANISMS: dict[str, Callable[..., Any]] = {"gaussian": GaussianMechanism}


def mechanism_of(spec: Spec) -> GaussianMechanism:
    """The mechanism for a spec such as ``gaussian:norm=1.0,noise_multiplier=1.0``.

    Raises:
        InputError: unknown name or option, an option that is left out, or a value out of range.
    """
    mechanism: GaussianMechanism = option_spec.made(spec, MECHANISMS, "privacy")
    return mechanism
