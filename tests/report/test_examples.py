"""What ``idiolect describe`` shows of texts and of windows."""

from __future__ import annotations

import re

import numpy as np
import pytest

from idiolect import data
from idiolect.core.option_spec import Spec
from idiolect.data import from_arrays
from idiolect.data.heterogeneity import describe_clients
from idiolect.report import description as drawing
from idiolect.report import examples

STUDY = {"partition": "natural", "data_seed": 0}
OWNERS = ["a"] * 10 + ["b"] * 10
LABELS = ["good", "bad"] * 10


def of_texts(texts, **settings):
    source = from_arrays(texts, LABELS, clients=OWNERS, **settings)
    return data.build(source, Spec.parse("natural:test_fraction=0.5"), seed=0)


def of_windows(x_R):
    source = from_arrays(x_R.astype(np.float32), LABELS, clients=OWNERS)
    return data.build(source, Spec.parse("natural:test_fraction=0.5"), seed=0)


def page_of(federation, tmp_path, clients=(0, 1)):
    about = describe_clients(federation)
    facts = drawing.facts(STUDY, federation, about)
    return drawing.write_description(facts, federation, about, clients, tmp_path / "d.html").read_text("utf-8")


def body_of(page):
    return re.sub(r"<script.*?</script>", "", page, flags=re.S)


@pytest.mark.parametrize("tokens", ["bytes", "characters", "words"])
def test_the_beginnings_of_texts_on_one_line_without_markup(tokens, tmp_path):
    texts = [f"<b>text\n\n{k}</b> \x00\x1b[31m\u202e & more " + "x" * 300 for k in range(20)]
    page = body_of(page_of(of_texts(texts, tokens=tokens, max_tokens=250), tmp_path))
    shown = re.findall(r"<li><small>(good|bad)</small> (.*?)</li>", page)
    assert len(shown) == 10, "five training samples each of two clients"
    assert "<b>" not in page
    for _, line in shown:
        assert "&lt;" in line
        assert not set("\x00\x1b\u202e\n") & set(line)
        assert len(line.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")) <= 140
    assert "What some clients read" in page


def test_tables_show_nothing(tmp_path):
    source = from_arrays(np.random.default_rng(0).normal(size=(20, 3)), LABELS, clients=OWNERS)
    federation = data.build(source, Spec.parse("natural:test_fraction=0.5"), seed=0)
    assert examples.kind_of(federation) == ""
    assert 'class="samples"' not in body_of(page_of(federation, tmp_path))


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([4] * 20, "4 to 4, median 4; half of the texts 4 to 4"),
        ([1, 2, 3, 4, 5] * 4, "1 to 5, median 3; half of the texts 2 to 4"),
        ([10] * 19 + [90], "median 10; half of the texts 10 to 10"),
    ],
)
def test_lengths_in_words(counts, words):
    source = from_arrays(["w " * n for n in counts], LABELS)
    federation = data.build(source, Spec.parse("iid"), clients=1, seed=0)
    length_R = examples.training_lengths(federation)
    assert sorted(length_R.tolist()) == length_R.tolist()
    if len(set(counts)) < 3:
        assert words in examples.spread_of_lengths(np.array(counts))
    else:
        assert examples.spread_of_lengths(np.array(counts)) == words
    about = describe_clients(federation)
    assert ("Words per text", examples.spread_of_lengths(length_R)) in drawing.facts(STUDY, federation, about)


@pytest.mark.parametrize("counts", [[1, 2, 3, 4] * 5, [200] * 20, [0, *range(1, 20)], [7] * 19 + [256]])
def test_every_training_text_is_in_one_bar_of_the_figure(counts):
    federation = of_texts(["w " * n for n in counts])
    figure = examples.figure_of_lengths(federation)
    bars = figure.spec["data"]["values"]
    length_R = examples.training_lengths(federation)
    assert sum(bar["texts"] for bar in bars) == len(length_R) == 10
    for bar in bars[1:]:
        assert bar["texts"] == ((length_R >= bar["from"]) & (length_R <= bar["to"])).sum()
    assert len(bars) <= 31


@pytest.mark.parametrize(
    ("x_R", "channels", "points"),
    [
        (np.random.default_rng(0).normal(size=(20, 3, 50)), 3, 50),
        (np.random.default_rng(0).normal(size=(20, 1, 500)), 1, 96),
        (np.random.default_rng(0).normal(size=(20, 40, 8)), 12, 8),
        (np.full((20, 2, 30), 5.0), 2, 30),
    ],
)
def test_windows_are_lines_inside_their_box(x_R, channels, points, tmp_path):
    page = body_of(page_of(of_windows(x_R), tmp_path))
    drawings = re.findall(r"<svg.*?</svg>", page, flags=re.S)
    assert len(drawings) == 10
    for one in drawings:
        lines = re.findall(r'points="([^"]*)"', one)
        assert len(lines) == channels
        for line in lines:
            xy = np.array([[float(v) for v in pair.split(",")] for pair in line.split()])
            assert xy.shape == (points, 2)
            assert (xy >= 0).all()
            assert (xy <= [120, 64]).all()
            assert (np.diff(xy[:, 0]) > 0).all()


def test_a_line_rises_where_the_numbers_do():
    rising = np.stack([np.stack([np.arange(40.0), np.arange(40.0)[::-1]])] * 20)
    first, second = examples._drawing(of_windows(rising), 0)
    heights = [[float(pair.split(",")[1]) for pair in line["points"].split()] for line in (first, second)]
    assert heights[0] == sorted(heights[0], reverse=True), "down is large in a picture"
    assert heights[1] == sorted(heights[1])


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("a a b", "a b b"), ("a", "b"), ("a b c", "a b c"), ("x y z z z z", "z y"), ("one two", "two three four")],
)
def test_texts_differ_by_hellingers_distance_of_their_tokens(mine, theirs):
    federation = of_texts([mine] * 10 + [theirs] * 10)
    p, q = ({w: text.split().count(w) / len(text.split()) for w in text.split()} for text in (mine, theirs))
    expected = np.sqrt(sum((np.sqrt(p.get(w, 0)) - np.sqrt(q.get(w, 0))) ** 2 for w in {*p, *q}) / 2)
    about = describe_clients(federation)
    np.testing.assert_allclose(about.feature_K, [expected] * 2, atol=1e-7)


def test_facts_say_what_a_sample_is():
    texts = of_texts(["one two three"] * 20)
    said = dict(drawing.facts(STUDY, texts, describe_clients(texts)))
    assert said["Data set"] == "arrays: 2 classes; a sample is a text of up to 3 words"
    windows = of_windows(np.random.default_rng(0).normal(size=(20, 3, 50)))
    said = dict(drawing.facts(STUDY, windows, describe_clients(windows)))
    assert said["Data set"] == "arrays: 2 classes; a sample is a window of 3 channels and 50 time steps"
