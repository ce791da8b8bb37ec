from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from html.parser import HTMLParser

import pytest

from idiolect import report
from idiolect.core.errors import InputError, RunError
from idiolect.report import page as writer

NASTY = "</script><script>alert(1)</script>&<b>\"'"


class Reader(HTMLParser):
    """Tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data):
        if self.tags and self.tags[-1][0] == "script" and self.cdata_elem == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)


@pytest.fixture
def page(make, tmp_path):
    out = report.write([make().save(tmp_path / "run")], tmp_path / "report.html")
    return out.read_text(encoding="utf-8")


def test_one_bundle_and_nothing_from_outside(page):
    reader = Reader(page)
    assert [bool(a.get("type")) for a, _ in reader.scripts] == [True, False, False]
    assert page.count("window.vegaEmbed=") == 1
    assert not [a for _, a in reader.tags if "src" in a or "srcset" in a or (a.get("href") or "#")[0] != "#"]
    assert not re.search(r"@import|url\(", page.partition("<body>")[0])
    assert len(page.encode()) < 1_000_000


def test_policy_names_exactly_the_scripts_of_the_page(page):
    reader = Reader(page)
    policy = next(a["content"] for t, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    run = [code for attributes, code in reader.scripts if not attributes.get("type")]
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in run]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert policy.startswith("default-src 'none';")
    assert "unsafe-eval" not in policy


def test_accessible(page):
    reader = Reader(page)
    assert ("html", {"lang": "en"}) in reader.tags
    assert "<title>demo · idiolect</title>" in page
    assert all(a.get("scope") in ("col", "row") for t, a in reader.tags if t == "th")
    figures = sum(t == "figure" for t, _ in reader.tags)
    assert figures == sum(t == "figcaption" for t, _ in reader.tags) == 9
    ids = [a["id"] for _, a in reader.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["aria-labelledby"] for _, a in reader.tags if "aria-labelledby" in a} <= set(ids)


def test_says_what_was_run_and_how(page):
    for words in ("dirichlet (alpha 0.3)", "rotate (degrees 90) on 1 of 6 clients", "cifar10: 10 classes", "0, 1"):
        assert words in page
    assert "never the best round on the test samples" in page


def test_specs_are_vega_lite_with_container_width(page):
    specs = json.loads(Reader(page).scripts[0][1])
    assert len(specs) == 9
    for spec in specs.values():
        if "facet" in spec:  # plots of one size, in a box that scrolls
            assert "width" not in spec
            spec = spec["spec"]
            assert spec["width"] == spec["height"] == 200
        else:
            assert spec["width"] == "container"
        marks = [spec] if "mark" in spec else spec["layer"]
        assert any("tooltip" in m["encoding"] for m in marks)


def test_a_study_cannot_write_into_the_page(make, tmp_path):
    made = make(name=NASTY)
    made.study["partition"] = NASTY
    made.manifest["dataset"] = NASTY
    made.manifest["class_names"] = [f"{NASTY}{k}" for k in range(10)]
    made.manifest["clients"][0]["shift"] = NASTY
    for method in made.manifest["methods"].values():
        method["title"] = method["title"] + NASTY
        method["summary"] = NASTY
    run = made.save(tmp_path / "run")
    page = report.write([run, run], tmp_path / "report.html").read_text(encoding="utf-8")
    assert NASTY not in page
    assert "<script>alert" not in page
    assert sum(t == "script" for t, _ in Reader(page).tags) == 3
    assert NASTY in json.loads(Reader(page).scripts[0][1])["run1-labels"]["data"]["values"][0]["class"]


def test_runs_with_different_scores_are_named_by_both(make, tmp_path):
    """Squared errors are not called accuracies, and have no unit."""
    of_numbers = make(["local", "fedavg"])
    of_numbers.manifest |= {"task": "regression", "targets": ["pressure"], "classes": 1, "class_names": ["samples"]}
    for client in of_numbers.manifest["clients"]:
        client |= {part: [sum(client[part])] for part in ("train", "test")}
    of_numbers.records = [(*r[:5], "mse" if r[5] == "accuracy" else r[5], *r[6:]) for r in of_numbers.records]
    runs = [of_numbers.save(tmp_path / "numbers"), make(["local", "fedavg"]).save(tmp_path / "classes")]
    both = report.write(runs, tmp_path / "both.html").read_text(encoding="utf-8")
    assert "<caption>Mean squared error, accuracy (%) per method and run</caption>" in both
    alike = report.write(runs[:1] * 2, tmp_path / "alike.html").read_text(encoding="utf-8")
    assert "<caption>Mean squared error per method and run</caption>" in alike
    assert "Accuracy (%) per method" not in alike


def test_several_runs_stand_side_by_side(make, tmp_path):
    runs = [make(["local", "fedavg"]).save(tmp_path / "one"), make(["fedavg", "fedpac"]).save(tmp_path / "two")]
    page = report.write(runs, tmp_path / "report.html").read_text(encoding="utf-8")
    comparison = page[page.index("Accuracy (%) per method and run") : page.index('<section id="run1"')]
    assert "demo (one)" in comparison
    assert "demo (two)" in comparison
    lines = re.findall(r'<th scope="row" data-value="(\w+)">.*?</tr>', comparison, re.S)
    assert lines == ["Local", "FedAvg", "FedPAC"]
    shown = re.findall(r'<td class="number[^"]*" data-value="[^"]*">([^<]+)</td>', comparison)
    tables = [{r.label: r for r in report.summary(report.read(run))} for run in runs]
    want = [f"{100 * t[m].accuracy:.2f}" if m in t else "–" for m in ("local", "fedavg", "fedpac") for t in tables]
    assert [text.split(" ")[0] for text in shown] == want
    assert page.count("window.vegaEmbed=") == 1


def test_early_ends_are_noted(make, tmp_path):
    made = make(["fedavg", "fedpac", "pfedfda"])
    made.drop(lambda r: r[0] == "pfedfda" or (r[0] == "fedpac" and r[1] == 1 and r[2] > 5))
    page = report.write([made.save(tmp_path / "run")], tmp_path / "r.html").read_text(encoding="utf-8")
    assert "FedPAC, seed 1: the last evaluation is in round 5 of 7" in page
    assert "pFedFDA has no results." in page
    assert "FedAvg, seed" not in page


def test_the_file_appears_whole_or_not_at_all(make, tmp_path, monkeypatch):
    run, out = make().save(tmp_path / "run"), tmp_path / "new" / "report.html"
    assert report.write([run], out) == out
    before = out.read_bytes()

    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RunError, match=r"cannot write .*report\.html \(No space left on device\): free some space"):
        report.write([run], out)
    assert out.read_bytes() == before
    assert [f.name for f in out.parent.iterdir()] == ["report.html"]


def test_bad_places(make, tmp_path):
    run = make().save(tmp_path / "run")
    with pytest.raises(InputError, match="is a folder: name a file"):
        report.write([run], tmp_path)
    with pytest.raises(RunError, match="cannot write"):
        report.write([run], run / "study.yaml" / "report.html")
    with pytest.raises(InputError, match="at least one run folder"):
        report.write([], tmp_path / "report.html")


def test_the_script_is_kept_on_disk_and_made_again_where_that_is_broken(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    writer._bundle.cache_clear()
    made = writer._bundle()
    (file,) = (tmp_path / "idiolect").iterdir()
    content = file.read_bytes()

    def never(_: str) -> str:
        raise AssertionError("it was kept")

    with monkeypatch.context() as patched:
        patched.setattr(writer.vl_convert, "javascript_bundle", never)
        writer._bundle.cache_clear()
        assert writer._bundle() == made
    asked = []
    monkeypatch.setattr(writer.vl_convert, "javascript_bundle", lambda code: asked.append(code) or made)  # in no time
    for broken in (b"", content[:-1], content.replace(b"vegaEmbed", b"vegaEmbex", 1)):
        file.write_bytes(broken)
        writer._bundle.cache_clear()
        assert writer._bundle() == made
        assert file.read_bytes() == content
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    writer._bundle.cache_clear()
    assert writer._bundle() == made
    assert asked == ["window.vegaEmbed = vegaEmbed;"] * 4


def test_the_same_records_give_the_same_page(make, tmp_path):
    run = make().save(tmp_path / "run")
    pages = [report.write([run], tmp_path / name).read_bytes() for name in ("a.html", "b.html")]
    assert pages[0] == pages[1]


def test_clients_that_joined_have_a_table(make, tmp_path):
    made = make(["fedavg", "fedpac"])
    about = made.manifest["clients"]
    about += [about[0] | {"id": 6, "joins": ""}, about[0] | {"id": 7, "joins": "invert", "shift": "invert"}]
    for label, value in (("fedavg", 0.25), ("fedpac", 0.75)):
        for k in (6, 7):
            made.add(label, 0, made.study["rounds"], k, "new", "accuracy", value - 0.1 * (k == 7))
    page = report.write([made.save(tmp_path / "run")], tmp_path / "r.html").read_text(encoding="utf-8")
    table = page[page.index("of new clients, which took no part in training</caption>") :].partition("</table>")[0]
    lines = re.findall(r'<th scope="row" data-value="[^"]*">([^<]*)</th>(.*?)</tr>', table, re.S)
    assert [who for who, _ in lines][1:] == ["new clients", "new clients, invert"]
    cells = [re.findall(r">([\d.]+)</td>", cells) for _, cells in lines]
    assert cells[1:] == [["25.00", "75.00"], ["15.00", "65.00"]]
    assert "6 that train, 1 new" in page
    plain = report.write([make().save(tmp_path / "plain")], tmp_path / "p.html").read_text(encoding="utf-8")
    assert "took no part in training" not in plain
