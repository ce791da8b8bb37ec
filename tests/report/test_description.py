"""What ``idiolect describe`` shows: in a terminal, as JSON, as a page."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from idiolect import data
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import Column, Source
from idiolect.data.heterogeneity import describe_clients
from idiolect.report import description as drawing

STUDY = {"partition": "iid", "data_seed": 3}


def images(rows=240, classes=4, channels=1):
    rng = np.random.default_rng(0)
    x_R = torch.from_numpy(rng.integers(0, 256, (rows, channels, 5, 6)).astype(np.uint8))
    names = tuple(f"class {c}" for c in range(classes))
    y_R = torch.from_numpy(rng.permutation(np.arange(rows) % classes))
    hospital = Column(np.arange(rows) % 3, ("City", "Mercy", "<North>"))
    return Source("toy", x_R, y_R, classes, names, None, None, rows, {"hospital": hospital}, "hospital")


def numbers():
    return dataclasses.replace(images(), x_R=torch.randn(240, 7))


def build(partition="dirichlet:min_rows=9", *shift, source=None, clients=5, new_shifts=(), **more):
    given = [[Spec.parse(s) for s in listed] for listed in (shift, new_shifts)]
    return data.build(source or images(), Spec.parse(partition), given[0], clients, 3, new_shifts=given[1], **more)


def shown(d, study=STUDY):
    about = describe_clients(d)
    console = Console(width=80, color_system=None, file=io.StringIO())
    console.print(drawing.terminal(drawing.facts(study, d, about), d, about))
    return console.file.getvalue()


def page_of(d, tmp_path, clients=None):
    about = describe_clients(d)
    clients = drawing.typical(d, about) if clients is None else clients
    out = tmp_path / "new" / "d.html"
    assert drawing.write_description(drawing.facts(STUDY, d, about), d, about, clients, out) == out
    return out.read_text(encoding="utf-8")


def test_facts():
    d = build("iid", "invert:clients=0-2", "rotate:degrees=90,clients=1")
    about = describe_clients(d)
    said = dict(drawing.facts(STUDY, d, about))
    assert said["Data set"] == "toy: 4 classes; a sample is 1x5x6 uint8"
    assert said["Partition"] == "iid, seed 3"
    assert said["Clients"] == "5"
    assert said["Training samples"] == "38; 190 in all"
    assert said["Test samples"] == "10; 50 in all"
    assert re.match(r"invert on 2, .*rotate.* on 1$", said["Shifts"])
    assert said["Memory"] == "7.2 kB of samples"
    assert said["Label divergence"].startswith(f"{about.label_mean:.3f} bits")
    assert "New clients also under" not in said


def test_a_table_says_its_target_its_features_and_whose_test_samples_have_one_class():
    rows = 80
    table = pd.DataFrame({
        "age": np.arange(rows) % 37, "sex": ["f", "m"] * (rows // 2), "ca": [0.0, 1.0, 2.0, np.nan] * (rows // 4),
        "num": [0, 1] * (rows // 2), "site": ["a"] * 40 + ["b"] * 40,
    })  # fmt: skip
    source = data.from_frame(table, target="num>0", client_column="site")

    def mine(source, clients, rng):
        return data.Split([np.arange(30), np.arange(40, 60)], [np.arange(30, 40), np.arange(60, 80, 2)])

    with pytest.MonkeyPatch.context() as m:
        m.setitem(data.PARTITIONS, "mine", mine)
        d = data.build(source, Spec.parse("mine"), (), 2)
    said = dict(drawing.facts(STUDY | {"target": "num>0"}, d, describe_clients(d)))
    assert said["Target"] == "num>0: no, yes"
    assert said["Features"] == (
        "3 columns: age, sex, ca; 1 with a number for each of their values; 1 with missing values, which a number of "
        "their own marks"
    )
    assert said["Test samples"] == "10; 20 in all; of one class at 1, unlike training"


def test_new_clients_are_counted_apart_and_once():
    d = build("natural", clients=None, new_clients="City", new_shifts=["invert", "noise:std=0.2"])
    said = dict(drawing.facts(STUDY | {"partition": None}, d, describe_clients(d)))
    assert said["Clients"] == "2 that train, 1 new"
    assert re.match(r"invert, noise .*0\.2", said["New clients also under"])
    assert said["Partition"] == "natural, seed 3"
    assert said["Shifts"] == "none"
    text = shown(d)
    assert text.count("City (new)") == 1
    told = drawing.as_json(STUDY, d, describe_clients(d))
    assert [c["name"] for c in told["clients"]] == ["Mercy", "<North>", "City"]
    assert told["conditions"] == ["invert", "noise:std=0.2"]


def test_the_map_of_labels_shades_by_share():
    source = images(400)
    source.y_R[:] = torch.arange(400) // 100
    hands = [np.concatenate([np.arange(100), np.arange(100, 120)]), np.arange(200, 400)]

    def mine(source, clients, rng):
        return data.Split([hand[:-10] for hand in hands], [hand[-10:] for hand in hands])

    with pytest.MonkeyPatch.context() as m:
        m.setitem(data.PARTITIONS, "mine", mine)
        d = build("mine", source=source, clients=2)
    lines = [line for line in shown(d).splitlines() if re.match(r"[01] +\d", line)]
    assert [line.split()[:3] for line in lines] == [["0", "110", "10"], ["1", "190", "10"]]
    assert lines[0].rstrip().endswith("█·")
    assert lines[1].endswith("  ██")


@pytest.mark.parametrize("source", [images(), images(channels=3), numbers()], ids=["grey", "colour", "numbers"])
def test_no_wider_than_a_terminal(source):
    text = shown(build("iid", source=source, clients=5))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_many_clients_and_many_classes(tmp_path):
    d = build("iid", source=images(1500, classes=40), clients=300)
    text = shown(d)
    assert "... and 260 more clients: the page has all" in text
    assert max(map(len, text.splitlines())) <= 80
    page = page_of(d, tmp_path)
    body = page[page.index("<tbody>") : page.index("</tbody>")]
    assert body.count("<tr>") == 300
    assert "describe-divergence" not in page
    assert "describe-divergence" in page_of(build("iid", source=images(), clients=60), tmp_path)
    assert len(page) < 3_000_000


def test_the_page_shows_the_clients_own_images(tmp_path):
    d = build("iid", "invert:clients=1", source=images(channels=3))
    page = page_of(d, tmp_path, [1, 3])
    found = re.findall(r'src="data:image/png;base64,([^"]+)" alt="([^"]+)"', page)
    assert len(found) == 20
    for (content, label), row in zip(found, [*d.train[1][:10].tolist(), *d.train[3][:10].tolist()], strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
        np.testing.assert_array_equal(pixels, d.x_R[row].permute(1, 2, 0).numpy())
        assert label == d.class_names[int(d.y_R[row])]
    assert "://" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_rows_without_images_show_none(tmp_path):
    page = page_of(build("iid", source=numbers()), tmp_path)
    assert "<img" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)
    assert "a sample is 7 numbers" in page
    assert "or over 2,000 drawn at random if there are more" in page


def test_names_are_no_markup(tmp_path):
    page = page_of(build("natural", clients=None), tmp_path)
    assert "&lt;North&gt;" in page
    assert "<North>" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_json_is_what_was_computed():
    d = build("dirichlet:alpha=0.3,min_rows=9", "invert:clients=2")
    about = describe_clients(d)
    told = json.loads(json.dumps(drawing.as_json(STUDY, d, about)))
    assert told["label_divergence"] == {"mean": about.label_mean, "at_random": about.label_chance}
    assert told["feature_distance"] == {"mean": about.feature_mean, "at_random": about.feature_chance}
    assert [c["train"] for c in told["clients"]] == about.train_KC.tolist()
    assert [c["shift"] for c in told["clients"]] == ["", "", "invert", "", ""]
    for k, client in enumerate(told["clients"]):
        others = [about.label_KK[k, j] for j in range(5) if j != k]
        assert client["label_divergence"] == pytest.approx(np.mean(others), abs=1e-4)


def test_typical_clients_are_the_first_of_each_shift():
    d = build("iid", "invert:clients=1+4", "noise:clients=2")
    assert drawing.typical(d, describe_clients(d)) == [0, 1, 2]
    plain = build("iid")
    assert drawing.typical(plain, describe_clients(plain)) == [0, 1, 2]
    alone = build("iid", clients=1)
    assert drawing.typical(alone, describe_clients(alone)) == [0]


def test_a_folder_is_no_page(tmp_path):
    d = build()
    about = describe_clients(d)
    with pytest.raises(InputError, match="is a folder: name a file"):
        drawing.write_description([], d, about, [], tmp_path)


@pytest.fixture(scope="module")
def browser(chromium: str):
    with sync_playwright() as playwright:
        browser: Browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.mark.browser
def test_the_page_opens(browser, tmp_path):
    page_of(build("natural", "invert:clients=0", clients=None, new_clients=1, new_shifts=["noise"]), tmp_path)
    complaints, requests = [], []
    page = browser.new_page(viewport={"width": 390, "height": 800})
    page.on("console", lambda m: complaints.append(m.text))
    page.on("pageerror", lambda e: complaints.append(str(e)))
    page.on("request", lambda r: requests.append(r.url))
    page.goto((tmp_path / "new" / "d.html").as_uri())
    page.wait_for_selector("html[data-drawn]", timeout=30_000)
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [(tmp_path / "new" / "d.html").as_uri()]
    assert page.locator(".plot svg").count() == page.locator(".plot").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth === 6)")
    page.close()
