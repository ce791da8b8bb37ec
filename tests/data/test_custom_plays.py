import numpy as np
import pytest

from idiolect import data
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import from_play, open_data

PLAY = """ANNA:
abcdefghijklmnopqrst

BERT:
0123456789

ANNA:
uvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ

BERT: 9876543210
0123456789

Still Bert.

Third Citizen:
Hm.
"""
ANNA = "abcdefghijklmnopqrst\nuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ\n"
BERT = "0123456789\n9876543210\n0123456789\nStill Bert.\n"


def windows_of(source):
    owner, decode = source.columns["role"], source.tokens.encoder.decode
    return [
        (
            owner.names[owner.code_R[r]],
            decode(source.x_R[r].tolist()),
            source.class_names[source.y_R[r]],
            r < source.train_rows,
        )
        for r in range(len(source.y_R))
    ]


def named(character):
    return {"\n": "line end", " ": "space"}.get(character, character)


@pytest.mark.parametrize(("length", "stride"), [(4, 1), (4, 3), (7, 2), (1, 1)])
def test_windows_are_what_a_role_says_and_what_it_says_next(length, stride):
    source = from_play(PLAY, length=length, stride=stride)
    assert source.columns["role"].names == ("ANNA", "BERT")
    for role, text in (("ANNA", ANNA), ("BERT", BERT)):
        found = [row for row in windows_of(source) if row[0] == role]
        starts = range(0, len(text) - length, stride)
        cut = int(0.8 * len(starts))
        train = [(role, text[k : k + length], named(text[k + length]), True) for k in starts[:cut]]
        last = starts[cut - 1] + length  # the last character that training sees
        test = [(role, text[k : k + length], named(text[k + length]), False) for k in starts if k > last]
        assert sorted(found) == sorted(train + test)


def test_no_character_is_in_a_training_and_in_a_test_window():
    source = from_play(PLAY, length=5, stride=2)
    anna = [row for row in windows_of(source) if row[0] == "ANNA"]
    seen = {"".join([window, *([then] if len(then) == 1 else "\n")]) for _, window, then, train in anna if train}
    tested = {window for _, window, _, train in anna if not train}
    assert not set("".join(seen)) & set("".join(tested)) - {"\n"}, "all of ANNA's characters are different"


def test_clients_are_roles_and_the_split_is_that_of_time(caplog):
    source = from_play(PLAY, length=4, stride=1)
    assert "play: 1 of 3 roles say too little and are left out" in caplog.text
    federation = data.build(source, Spec.parse("natural"), seed=0)
    assert federation.names == ("ANNA", "BERT")
    assert federation.official_split is True
    assert federation.inputs.size == 4097


def test_a_file_is_a_play(tmp_path):
    for end in ("\n", "\r\n"):
        (tmp_path / "play.txt").write_bytes(PLAY.replace("\n", end).encode())
        source = open_data(tmp_path / "play.txt", max_tokens=4)
        wanted = from_play(PLAY, length=4)
        assert source.name == "play"
        np.testing.assert_array_equal(source.x_R, wanted.x_R)
        np.testing.assert_array_equal(source.y_R, wanted.y_R)


def test_other_letters_and_marks_have_names():
    text = "ÉVA:\n" + "é\tя日 x" * 20 + "\n"
    source = from_play(text, length=3, stride=1)
    assert {"é", "я", "日", "x", "space", "character tabulation"} >= set(source.class_names) - {"line end", "u+0009"}
    assert source.columns["role"].names == ("ÉVA",)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "play has no speeches"),
        ("no roles here\n\nnor here\n", {}, "play has no speeches: begin each, after an empty line, with its role"),
        ("A:\nhm\n\nB:\nyes\n", {}, "play has no role that says enough for windows of 80 characters"),
        (PLAY, {"length": 0}, "length=0 and stride=10 are not possible"),
        (PLAY, {"stride": -1}, "length=80 and stride=-1 are not possible"),
    ],
)
def test_what_is_no_play_is_refused(text, settings, message):
    with pytest.raises(InputError, match=message):
        from_play(text, **settings)


@pytest.mark.parametrize(
    "option",
    [
        {"target": "a"}, {"client_column": "a"}, {"drop": "a"}, {"resize": 3}, {"text": "a"}, {"tokens": "bytes"},
        {"columns": "a+b"}, {"task": "classification"}, {"header": "none"}, {"missing": "-9"}, {"layout": "{class}/*"},
    ],
)  # fmt: skip
def test_options_of_tables_are_refused(option, tmp_path):
    (tmp_path / "play.txt").write_text(PLAY)
    (name,) = option
    with pytest.raises(InputError, match=f"{name} is for"):
        open_data(tmp_path / "play.txt", **option)


def test_a_play_that_is_not_there_is_no_module(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"there is no file or folder plays\.txt"):
        open_data("plays.txt")
