"""Networks for texts, from rows of ids that 0 fills up: the mean of embeddings, convolutions, and an LSTM."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import pad

from idiolect.core import tree
from idiolect.core.errors import InputError, option
from idiolect.models.parts import Parts, Shape

# B texts, L tokens, E units of an embedding

Share = Annotated[float, Field(ge=0, lt=1)]


def embedding_mean(shape: Shape, classes: int, *, vocabulary: PositiveInt, width: PositiveInt = 64) -> Parts:
    """The mean of the embeddings of a text's tokens, d = 64: a bag of words, as fastText learns one.

    z = sum_l e(id_l) / (number of tokens); a text without tokens has z = 0.

    Args:
        shape: (tokens,).
        classes: of the data.
        vocabulary: one more than the largest id; the data set says it.
        width: d, the units of an embedding; the paper takes 10.

    Source: Joulin, Grave, Bojanowski and Mikolov, Bag of tricks for efficient text classification (EACL 2017),
    section 2, without n-grams and with a softmax over all classes.
    """
    _row("embedding_mean", shape)
    return _EmbeddingMean(vocabulary, width), nn.Linear(width, classes)


def text_cnn(
    shape: Shape, classes: int, *, vocabulary: PositiveInt, width: PositiveInt = 128, maps: PositiveInt = 100,
    dropout: Share = 0.5,
) -> Parts:  # fmt: skip
    """Convolutions over 3, 4 and 5 tokens, the largest value of each map, d = 300 (TextCNN).

    Args:
        shape: (tokens,).
        classes: of the data.
        vocabulary: one more than the largest id; the data set says it.
        width: units of an embedding; the paper's, which are learnt elsewhere, have 300.
        maps: for each of the three lengths; d is three times as many.
        dropout: the share of the features that a step leaves out.

    Source: Kim, Convolutional neural networks for sentence classification (EMNLP 2014), sections 2 and 3.1: the variant
    CNN-rand.
    Differs from source: the rows of the head have no bound of their own.
    """
    _row("text_cnn", shape)
    return _TextCNN(vocabulary, width, maps, dropout), nn.Linear(3 * maps, classes)


def char_lstm(
    shape: Shape, classes: int, *, vocabulary: PositiveInt, width: PositiveInt = 8, hidden: PositiveInt = 256,
    layers: PositiveInt = 2,
) -> Parts:  # fmt: skip
    """Two layers of LSTM with 256 units over embeddings of 8; z is the state after the last token, d = 256.

    The usual network for the next character of Shakespeare's plays: 80 characters in, the next one out.

    Args:
        shape: (tokens,).
        classes: of the data.
        vocabulary: one more than the largest id; the data set says it.
        width: units of an embedding.
        hidden: d, the units of a layer.
        layers: how many.

    Source: McMahan et al., Communication-efficient learning of deep networks from decentralized data (AISTATS 2017),
    section 3; LEAF (Caldas et al., 2018) has the same.
    """
    _row("char_lstm", shape)
    return _CharLSTM(vocabulary, width, hidden, layers), nn.Linear(hidden, classes)


def without_padding(id_BL: Tensor, least: int = 1) -> Tensor:
    """Rows of ids without the last columns in which all of them are 0, so that short texts cost little.

    A network that ignores zeros at the end may begin with this. Several clients that are computed together, and a
    network that is being exported, keep all columns.

    Args:
        id_BL: (B, L), 0 after the end of each text.
        least: columns that stay.
    """
    if tree.mapped(id_BL) or torch.compiler.is_exporting():
        return id_BL
    places = (id_BL != 0).any(0).nonzero()
    return id_BL[:, : max(least, int(places[-1]) + 1 if len(places) else 0)]


def _row(name: str, shape: Shape) -> None:
    if len(shape) != 1:
        raise InputError(f"model {name} takes rows of ids, and these samples have shape {shape}: choose model auto")


class _EmbeddingMean(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)

    def forward(self, id_BL: Tensor) -> Tensor:
        id_BL = without_padding(id_BL)
        e_BLE = self.embedding(id_BL)
        real_BL = (id_BL != 0).to(e_BLE.dtype)
        share_BL = real_BL / real_BL.sum(1, keepdim=True).clamp(min=1)
        return torch.einsum("bl,ble->be", share_BL, e_BLE)


class _TextCNN(nn.Module):
    """max over places of relu(conv(e)); places that no token reaches do not count, as the bias could win there."""

    sizes = (3, 4, 5)

    def __init__(self, vocabulary: int, width: int, maps: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, maps, size) for size in self.sizes)

    def forward(self, id_BL: Tensor) -> Tensor:
        id_BL = without_padding(id_BL)
        most = max(self.sizes)
        id_BL = pad(id_BL, (0, max(0, most - id_BL.shape[1])))
        real_BL = id_BL != 0
        e_BEL = (self.embedding(id_BL) * real_BL.unsqueeze(-1)).transpose(1, 2)
        count_B = real_BL.sum(1)
        largest = []
        for size, conv in zip(self.sizes, self.convs, strict=True):
            a_BML = conv(e_BEL).relu()
            # the windows that lie inside the text, or the first one if the text is shorter than it
            place_L = torch.arange(a_BML.shape[2], device=id_BL.device)
            is_inside_BL = place_L < (count_B - size + 1).clamp(min=1)[:, None]
            largest.append((a_BML * is_inside_BL[:, None].to(a_BML.dtype)).amax(2))
        z_Bd: Tensor = self.dropout(torch.cat(largest, 1))
        return z_Bd


class _CharLSTM(nn.Module):
    def __init__(self, vocabulary: int, width: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True)

    def forward(self, id_BL: Tensor) -> Tensor:
        if tree.mapped((id_BL, self.embedding.weight)):
            raise InputError(
                "model char_lstm cannot be computed for several clients together, because torch has no rule for it: "
                f"choose {option('engine', 'processes')}"
            )
        id_BL = without_padding(id_BL)
        h_BLE, _ = self.lstm(self.embedding(id_BL))
        last_B = ((id_BL != 0).sum(1) - 1).clamp(min=0)
        z_BE: Tensor = h_BLE.gather(1, last_B[:, None, None].expand(-1, 1, h_BLE.shape[2]))[:, 0]
        return z_BE
