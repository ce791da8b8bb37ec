"""What networks are fed: rows of numbers, normalised per feature or channel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from idiolect.training import Preprocessing, preprocessing


@pytest.mark.parametrize("shape", [(9, 2), (9, 2, 5), (9, 2, 4, 3)])
def test_numbers_are_normalised_and_what_is_missing_is_the_mean(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(3, 2, shape).astype(np.float32)
    x[2, 1], x[5] = np.nan, np.nan
    mean, std = (np.array(v).reshape(-1, *[1] * (len(shape) - 2)) for v in ((3.0, -1.0), (2.0, 0.5)))
    want = np.where(np.isnan(x), 0, (x - mean) / std)
    inputs = Preprocessing(mean=(3.0, -1.0), std=(2.0, 0.5))
    given = torch.from_numpy(x)
    np.testing.assert_allclose(inputs(given), want, rtol=1e-5, atol=1e-6)
    clients = torch.stack([given, given.flip(0)])
    mapped = torch.vmap(inputs)(clients)
    np.testing.assert_allclose(mapped[0], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(mapped[1], want[::-1], rtol=1e-5, atol=1e-6)


def test_what_is_kept_of_a_normalisation_outlives_a_gradient() -> None:
    """Images are normalised by arrays that are made once, perhaps inside ``torch.func.grad``."""
    inputs = Preprocessing(mean=(0.25,), std=(0.75,))
    x = torch.arange(30, dtype=torch.uint8).view(2, 1, 3, 5)
    torch.func.grad(lambda w: (inputs(x) * w).sum())(torch.tensor(1.0))
    kept = preprocessing._whole(inputs.mean, inputs.std, x.shape[1:], torch.get_default_dtype(), x.device)
    assert not any(torch._C._functorch.is_functorch_wrapped_tensor(a) for a in kept)
    np.testing.assert_allclose(inputs(x), (x.numpy() / 255 - 0.25) / 0.75, rtol=1e-5, atol=1e-6)
