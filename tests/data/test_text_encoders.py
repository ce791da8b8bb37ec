import copy
import pickle
import string
import unicodedata
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idiolect.core.errors import InputError
from idiolect.data.text.encoders import ENCODERS, Bytes, Characters, Words, encoder_of
from idiolect.data.text.tokens import ids_of, lengths, tokens_of

TEXTS = ["Good book!", "Très bon, €5", "жди меня", "日本語", "a\tb\nc", "🙂 ok", "\ud800"]


@pytest.mark.parametrize("name", ENCODERS)
@settings(max_examples=50, deadline=None)
@given(text=st.text())
def test_every_text_has_ids_that_are_not_padding_and_fit_the_size(name, text):
    encoder = encoder_of(name)
    (id_L,) = encoder.encode([text])
    assert ((id_L > 0) & (id_L < encoder.size)).all()
    assert (encoder_of(name).encode([text])[0] == id_L).all(), "sites need not agree on anything"
    encoder.decode(id_L.tolist())


@pytest.mark.parametrize("text", TEXTS[:-1])
def test_bytes_are_those_of_utf8_and_come_back(text):
    encoder = Bytes()
    (id_L,) = encoder.encode([text])
    assert [i - 1 for i in id_L] == list(text.encode())
    assert encoder.decode(id_L) == text
    assert encoder.decode([*id_L, 0, 0]) == text


def test_half_a_character_at_the_end_is_shown_as_such():
    assert Bytes().decode(Bytes().encode(["a€"])[0][:-1]) == "a\ufffd"


@pytest.mark.parametrize("text", ["Good book!", "Très bon", "жди меня", "שלום", "سلام", string.printable])
def test_characters_of_many_alphabets_come_back(text):
    encoder = Characters()
    (id_L,) = encoder.encode([text])
    assert id_L.tolist() == [ord(c) + 1 for c in text]
    assert encoder.decode(id_L) == text


def test_other_characters_share_ids_and_are_shown_as_unknown():
    one, same, other = Characters().encode(["日", chr(ord("日") + 2048), "本"])
    assert one.tolist() == same.tolist() != other.tolist()
    assert Characters().decode(one) == "\ufffd"


def test_a_letter_with_an_accent_is_one_character_however_it_is_written():
    composed, apart = unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")
    assert len(apart) == 2
    assert [i.tolist() for i in Characters().encode([composed, apart])] == [[0xE9 + 1]] * 2


@pytest.mark.parametrize(
    ("one", "other"),
    [("Good BOOK", "good book"), ("don't  stop", "don't\nstop"), ("ﬁne", "fine"), ("STRASSE", "straße")],
)
def test_words_do_not_depend_on_letter_case_spaces_and_ligatures(one, other):
    first, second = Words().encode([one, other])
    assert first.tolist() == second.tolist()


def test_words_and_marks_are_tokens_and_are_shown_again():
    encoder = Words()
    (id_L,) = encoder.encode(["It's good, isn't it?"])
    assert encoder.decode(id_L) == "it ' s good , isn ' t it ?"
    assert Words().decode(id_L) == " ".join(["\ufffd"] * 10), "another encoder has not seen them"


def test_of_words_that_share_an_id_the_shortest_is_shown_whatever_came_first():
    first = {}
    pairs = []
    for k in range(2000):
        word = "x" * (k % 7) + str(k)
        other = first.setdefault(zlib.crc32(word.encode()) % 16384, word)
        if len(other) != len(word):
            pairs.append((other, word))
    assert len(pairs) > 20
    for pair in pairs:
        for texts in (pair, pair[::-1]):
            encoder = Words()
            one, same = encoder.encode(list(texts))
            assert one.tolist() == same.tolist()
            assert encoder.decode(one) == min(pair, key=len)


def test_the_id_of_a_word_is_the_published_check_sum():
    # CRC-32 of "123456789" is 0xCBF43926 in every list of check sums
    assert Words().encode(["123456789"])[0].tolist() == [1 + 0xCBF43926 % 16384]


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("again", [copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_a_copy_in_another_process_gives_the_same_ids_and_has_no_words(name, again):
    encoder = encoder_of(name)
    ids = encoder.encode(["secret diagnosis"])[0].tolist()
    assert again(encoder) == encoder
    assert again(encoder).encode(["secret diagnosis"])[0].tolist() == ids
    assert b"diagnosis" not in pickle.dumps(encoder)


@pytest.mark.parametrize("name", ["word", "", "bert"])
def test_unknown_tokens_are_refused(name):
    with pytest.raises(InputError, match=r"is not known: give one of words, characters, bytes"):
        tokens_of(name, None)


@pytest.mark.parametrize("most", [0, -1, True, 2.5])
def test_a_number_of_tokens_that_is_not_possible_is_refused(most):
    with pytest.raises(InputError, match="is not possible: give a number of tokens above 0"):
        tokens_of(None, most)


class Marked(Bytes):
    """As the tokenizer of a pretrained network: a mark at each end, and a limit."""

    name, size, longest = "marked", 300, 6

    def encode(self, texts):
        return [np.array([298, *id_L, 299], np.int32) for id_L in super().encode(texts)]

    def cut(self, id_L, most):
        return np.array([*id_L[: most - 1], 299], np.int32)


def test_a_tokenizer_keeps_its_mark_for_the_end_where_a_text_is_cut(caplog):
    tokens = tokens_of(Marked(), None)
    assert tokens.most == 6
    id_RL = ids_of(["ab", "abcdefgh"], tokens, "mail")
    assert id_RL.tolist() == [[298, 98, 99, 299, 0, 0], [298, 98, 99, 100, 101, 299]]
    with pytest.raises(InputError, match="max_tokens=7 is more than marked takes: give at most 6"):
        tokens_of(Marked(), 7)


@pytest.mark.parametrize(("most", "width"), [(None, 5), (3, 3), (5, 5), (100, 5)])
def test_rows_are_filled_up_to_the_longest_text_or_cut(most, width):
    id_RL = ids_of(["abcde", "", "ab"], tokens_of("bytes", most), "mail")
    assert id_RL.dtype == torch.int16
    expected = [[ord(c) + 1 for c in "abcde"], [], [98, 99]]
    assert id_RL.tolist() == [(row + [0] * 5)[:width] for row in expected]
    assert lengths(id_RL).tolist() == [width, 0, 2]


def test_what_is_cut_or_empty_is_said_once(caplog):
    ids_of(["a" * 9, "", "b" * 7, "c", "   "], tokens_of("words", 256), "mail")
    (empty,) = caplog.messages
    assert empty.startswith("mail: 2 of 5 texts are empty (the first is row 1, counting from 0)")
    caplog.clear()
    ids_of(["a" * 9, "b" * 7, "c"], tokens_of("bytes", 6), "mail")
    assert caplog.messages == [
        "mail: 2 of 3 texts have more than 6 bytes and are cut (the longest has 9): give max_tokens=9 to use all"
    ]


@pytest.mark.parametrize("texts", [["", ""], ["  ", "\n"], [""]])
def test_nothing_but_empty_texts_is_refused(texts):
    with pytest.raises(InputError, match="the texts of mail are all empty"):
        ids_of(texts, tokens_of(None, None), "mail")


def test_large_ids_take_32_bits():
    class Large(Bytes):
        size = 40_000

    assert ids_of(["ab"], tokens_of(Large(), None), "mail").dtype == torch.int32
