import numpy as np
import pytest
import torch

from idiolect.models.text import without_padding
from idiolect.training.chunks import in_chunks


def ids(rows, width, seed):
    rng = np.random.default_rng(seed)
    id_RL = np.zeros((rows, width), np.int16)
    for row, length in zip(id_RL, rng.integers(0, width + 1, rows), strict=True):
        row[:length] = rng.integers(1, 30, length)
    return torch.from_numpy(id_RL)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("rows", "size"), [(1, 5), (5, 5), (6, 5), (23, 5), (200, 50)])
@pytest.mark.parametrize("some", [False, True])
def test_every_sample_has_its_own_result_at_its_own_place(rows, size, seed, some):
    id_RL = ids(rows, 12, seed)
    row_N = torch.from_numpy(np.random.default_rng(seed).integers(0, rows, rows)) if some else None
    found = in_chunks(lambda x_B: x_B.long().sum(1, keepdim=True) * 1.0, id_RL, size, row_N)
    wanted = id_RL if row_N is None else id_RL[row_N]
    assert torch.equal(found, wanted.long().sum(1, keepdim=True) * 1.0)


@pytest.mark.parametrize(("rows", "size"), [(400, 50), (100, 10)])
def test_short_texts_cost_what_they_are(rows, size):
    """The columns that networks see are nearly those of the texts, and not those of the longest one."""
    id_RL, seen = ids(rows, 200, 0), []

    def function(x_B):
        seen.append(without_padding(x_B).numel())
        return x_B[:, :1].float()

    in_chunks(function, id_RL, size)
    tokens = int((id_RL != 0).sum())
    assert sum(seen) < 1.3 * tokens < 0.8 * id_RL.numel()


@pytest.mark.parametrize(
    "x_R",
    [
        torch.arange(42.0).view(21, 2),
        torch.arange(84).view(21, 4).to(torch.uint8),
        {"a": torch.arange(21), "b": torch.arange(42.0).view(21, 2)},
        torch.arange(1, 43).view(21, 2),
    ],
    ids=["numbers", "bytes", "several", "full rows"],
)
def test_other_samples_keep_their_order(x_R):
    seen = []

    def function(x_B):
        first = x_B["a"] if isinstance(x_B, dict) else x_B
        seen.append(len(first))
        return first.reshape(len(first), -1)

    whole = x_R["a"] if isinstance(x_R, dict) else x_R
    assert torch.equal(in_chunks(function, x_R, 8), whole.reshape(21, -1))
    assert seen == [8, 8, 5]
    row_N = torch.tensor([3, 1, 20])
    assert torch.equal(in_chunks(function, x_R, 8, row_N), whole[row_N].reshape(3, -1))
