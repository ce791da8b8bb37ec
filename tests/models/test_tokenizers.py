"""The tokenizer of a pretrained backbone as an encoder of texts."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idiolect.core.errors import InputError
from idiolect.data.text.encoders import Encoder, encoder_of
from idiolect.models.pretrained import tokenizer_of

hf: Any = pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))

from tiny_backbones import write_bert, write_vit  # noqa: E402

TEXTS = [
    "the cat sat on the mat .",
    "good",
    "",
    "a very bad film , it was not good . the dog ran " * 3,
    "unknown Ω words",
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bert(tmp_path / "bert")


def test_ids_are_those_of_the_library_plus_one(folder: Path) -> None:
    tokenizer, library = tokenizer_of(f"hf:{folder}"), hf.AutoTokenizer.from_pretrained(folder)
    assert isinstance(tokenizer, Encoder)
    for text, id_L in zip(TEXTS, tokenizer.encode(TEXTS), strict=True):
        assert id_L.dtype == np.int32
        assert [i - 1 for i in id_L.tolist()] == library(text)["input_ids"]
    assert (tokenizer.size, tokenizer.longest, tokenizer.encode([])) == (len(library) + 1, 24, [])


@pytest.mark.parametrize("most", [2, 5, 24])
def test_a_long_text_is_cut_as_the_library_cuts_it(folder: Path, most: int) -> None:
    tokenizer, library = tokenizer_of(f"hf:{folder}"), hf.AutoTokenizer.from_pretrained(folder)
    [id_L] = tokenizer.encode(TEXTS[3:4])
    want = library(TEXTS[3], truncation=True, max_length=most)["input_ids"]
    assert [i - 1 for i in tokenizer.cut(id_L, most).tolist()] == want


def test_ids_become_texts_again(folder: Path) -> None:
    tokenizer = tokenizer_of(f"hf:{folder}")
    for text, id_L in zip(TEXTS[:3], tokenizer.encode(TEXTS[:3]), strict=True):
        padded = [*id_L.tolist(), 0, 0]
        assert tokenizer.decode(padded).replace(" ", "") == text.replace(" ", "")


def test_an_encoder_by_name_is_the_same_one_in_another_process(folder: Path) -> None:
    tokenizer = tokenizer_of(f"hf:{folder},adapt=full,body=linear:3,pooling=cls")
    assert encoder_of(tokenizer.name) == tokenizer == pickle.loads(pickle.dumps(tokenizer))
    assert tokenizer.name == f"hf:{folder}"
    elsewhere = tokenizer_of(f"hf:mine,weights={folder}")
    assert elsewhere.name == f"hf:mine,weights={folder}"
    assert elsewhere.encode(TEXTS)[0].tolist() == tokenizer.encode(TEXTS)[0].tolist()


@pytest.mark.parametrize("limit", ["tokenizer", "network", "neither"])
def test_the_longest_text_is_the_least_of_what_tokenizer_and_network_take(tmp_path: Path, limit: str) -> None:
    folder = write_bert(tmp_path / limit)
    hf.BertTokenizer.from_pretrained(folder, model_max_length={"tokenizer": 7}.get(limit, 10**30)).save_pretrained(
        folder
    )
    if limit == "neither":
        config = hf.T5Config(vocab_size=24, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
        config.save_pretrained(folder)
    assert tokenizer_of(f"hf:{folder}").longest == {"tokenizer": 7, "network": 24, "neither": None}[limit]


def test_a_tokenizer_without_a_token_for_padding_is_one_too(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    plain = Tokenizer(models.WordLevel({"good": 0, "bad": 1, "?": 2}, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    hf.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="?").save_pretrained(tmp_path / "m")
    hf.GPT2Config(vocab_size=3, n_embd=8, n_layer=1, n_head=2, n_positions=9).save_pretrained(tmp_path / "m")
    tokenizer = tokenizer_of(f"hf:{tmp_path / 'm'}")
    assert [id_L.tolist() for id_L in tokenizer.encode(["bad good odd", ""])] == [[2, 1, 3], []]
    assert tokenizer.cut(np.array([2, 1, 3], np.int32), 2).tolist() == [2, 1]
    assert (tokenizer.longest, tokenizer.size) == (9, 4)


def test_a_folder_without_a_tokenizer_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^the tokenizer of model hf:.* cannot be read from the folder"):
        tokenizer_of(f"hf:{write_vit(tmp_path / 'vit')}")
