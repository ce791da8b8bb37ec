"""Networks for ids and windows: the functions of the papers, written in numpy, and what padding costs and changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from idiolect.core.errors import InputError
from idiolect.models.sensors import har_cnn
from idiolect.models.text import char_lstm, embedding_mean, text_cnn, without_padding

VOCABULARY = 30
LENGTHS = [9, 1, 0, 4, 12]
FACTORIES = [embedding_mean, text_cnn, char_lstm]


def ids(width: int = 12, seed: int = 0) -> Tensor:
    rng = np.random.default_rng(seed)
    id_BL = np.zeros((len(LENGTHS), width), np.int64)
    for row, length in zip(id_BL, LENGTHS, strict=True):
        row[:length] = rng.integers(1, VOCABULARY, length)
    return torch.from_numpy(id_BL)


def body_of(make, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return make((12,), 3, vocabulary=VOCABULARY)[0].eval()


def numbers(body: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.detach().double().numpy() for name, p in body.named_parameters()}


def mean_by_hand(w: dict[str, np.ndarray], id_L: np.ndarray) -> np.ndarray:
    e = w["embedding.weight"]
    return np.mean([e[i] for i in id_L], axis=0) if len(id_L) else np.zeros(e.shape[1])


def cnn_by_hand(w: dict[str, np.ndarray], id_L: np.ndarray) -> np.ndarray:
    out = []
    for k, size in enumerate((3, 4, 5)):
        weight, bias = w[f"convs.{k}.weight"], w[f"convs.{k}.bias"]
        rows = [w["embedding.weight"][i] for i in id_L]
        rows += [np.zeros(weight.shape[1])] * (size - len(rows))
        windows = [np.stack(rows[at : at + size], axis=1) for at in range(len(rows) - size + 1)]
        out.append(np.max([np.maximum(np.einsum("mek,ek->m", weight, one) + bias, 0) for one in windows], axis=0))
    return np.concatenate(out)


def lstm_by_hand(w: dict[str, np.ndarray], id_L: np.ndarray) -> np.ndarray:
    def sigmoid(a: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-a))

    rows = [w["embedding.weight"][i] for i in (id_L if len(id_L) else [0])]
    for layer in (0, 1):
        wi, wh, bi, bh = (w[f"lstm.{kind}_l{layer}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
        h = c = np.zeros(wh.shape[1])
        states = []
        for x in rows:
            i, f, g, o = np.split(wi @ x + bi + wh @ h + bh, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            states.append(h)
        rows = states
    return rows[-1]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("make", "by_hand"), [(embedding_mean, mean_by_hand), (text_cnn, cnn_by_hand), (char_lstm, lstm_by_hand)]
)
def test_the_published_function(make, by_hand, seed):
    body, id_BL = body_of(make, seed), ids(seed=seed)
    w = numbers(body)
    expected = np.stack([by_hand(w, row[:length].numpy()) for row, length in zip(id_BL, LENGTHS, strict=True)])
    np.testing.assert_allclose(body(id_BL).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5])
def test_a_step_of_text_cnn_leaves_out_a_share_of_the_features(share):
    body, _ = text_cnn((12,), 3, vocabulary=VOCABULARY, dropout=share)
    id_BL = ids().repeat(40, 1)
    whole = body.eval()(id_BL)
    torch.manual_seed(0)
    step = body.train()(id_BL)
    kept = step != 0
    torch.testing.assert_close(step[kept], whole[kept] / (1 - share))
    assert abs(float((~kept)[whole != 0].float().mean()) - share) < 0.01


@pytest.mark.parametrize("make", FACTORIES)
@pytest.mark.parametrize("more", [0, 3, 40])
def test_padding_changes_nothing(make, more):
    body, id_BL = body_of(make), ids()
    z_Bd = body(id_BL)
    padded = torch.cat([id_BL, torch.zeros(len(id_BL), more, dtype=torch.int64)], 1)
    torch.testing.assert_close(body(padded), z_Bd, rtol=0, atol=0)
    for k in range(len(id_BL)):
        torch.testing.assert_close(body(id_BL[k : k + 1]), z_Bd[k : k + 1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [embedding_mean, text_cnn])
def test_several_clients_together_get_the_same(make):
    body, id_KBL = body_of(make), torch.stack([ids(seed=s) for s in range(3)])
    weights = {name: p.detach() for name, p in body.named_parameters()}
    mapped = torch.func.vmap(lambda id_BL: torch.func.functional_call(body, weights, id_BL))(id_KBL)
    torch.testing.assert_close(mapped, torch.stack([body(id_BL) for id_BL in id_KBL]).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "width"), [([[1, 2, 0, 0], [3, 0, 0, 0]], 2), ([[0, 0, 0]], 1), ([[1, 2, 3]], 3), ([[1, 0, 3, 0]], 3)]
)
def test_columns_of_nothing_but_padding_are_left_out(rows, width):
    id_BL = torch.tensor(rows)
    assert torch.equal(without_padding(id_BL), id_BL[:, :width])
    assert without_padding(id_BL, least=3).shape[1] == max(3, width)


@pytest.mark.parametrize(
    ("make", "settings", "body", "d"),
    [
        (embedding_mean, {}, 30 * 64, 64),
        (embedding_mean, {"width": 10}, 30 * 10, 10),
        (text_cnn, {}, 30 * 128 + sum(100 * (128 * k + 1) for k in (3, 4, 5)), 300),
        (text_cnn, {"width": 7, "maps": 2}, 30 * 7 + sum(2 * (7 * k + 1) for k in (3, 4, 5)), 6),
        # LEAF's: 8-d embedding, gates of two layers with torch's two biases
        (char_lstm, {}, 30 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2), 256),
        (char_lstm, {"hidden": 5, "layers": 1, "width": 3}, 30 * 3 + 4 * 5 * (3 + 5 + 2), 5),
    ],
)
def test_sizes(make, settings, body, d):
    parts = make((12,), 4, vocabulary=VOCABULARY, **settings)
    assert sum(p.numel() for p in parts[0].parameters()) == body
    assert parts[1].weight.shape == (4, d)


@pytest.mark.parametrize(
    ("channels", "time", "flat"), [(9, 128, 64 * 26), (3, 200, 64 * 44), (6, 28, 64), (1, 51, 64 * 6)]
)
def test_harcnn_has_the_layers_of_the_literature(channels, time, flat):
    body, head = har_cnn((channels, time), 6)
    shapes = [tuple(p.shape) for p in body.parameters() if p.ndim > 1]
    assert shapes == [(32, channels, 9), (64, 32, 9), (1024, flat), (512, 1024)]
    assert (head.weight.shape, body(torch.randn(2, channels, time)).shape) == ((6, 512), (2, 512))


def test_harcnn_is_the_two_dimensional_network_over_windows_of_height_one():
    torch.manual_seed(0)
    body, _ = har_cnn((9, 128), 6)
    conv1, conv2, fc1, fc2 = (m for m in body if isinstance(m, nn.Conv1d | nn.Linear))
    x = torch.randn(4, 9, 128)
    a = x[:, :, None]
    for conv in (conv1, conv2):
        a = nn.functional.conv2d(a, conv.weight[:, :, None], conv.bias).relu()
        a = nn.functional.max_pool2d(a, (1, 2), stride=2) if a.shape[2] > 1 else nn.functional.max_pool2d(a, (1, 2))
    expected = fc2(fc1(a.flatten(1)).relu()).relu()
    torch.testing.assert_close(body(x), expected)


@pytest.mark.parametrize("shape", [(), (3, 4), (1, 28, 28)])
@pytest.mark.parametrize("make", FACTORIES)
def test_networks_of_texts_refuse_other_samples(make, shape):
    with pytest.raises(InputError, match="takes rows of ids"):
        make(shape, 3, vocabulary=VOCABULARY)


@pytest.mark.parametrize(
    ("shape", "message"), [((9,), "takes windows"), ((1, 28, 28), "takes windows"), ((3, 27), "27")]
)
def test_har_cnn_refuses_other_samples(shape, message):
    with pytest.raises(InputError, match=message):
        har_cnn(shape, 3)
