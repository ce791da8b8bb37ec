"""What a notebook shows of studies, runs, comparisons, clients and bundles; and figures as Altair charts."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import altair
import numpy as np
import pytest
from IPython.core.formatters import DisplayFormatter
from playwright.sync_api import sync_playwright

import idiolect as idl
from idiolect import report
from idiolect.core.errors import InputError
from idiolect.report.charts import charts_of_run
from idiolect.report.figures import figures, palette
from idiolect.report.notebook import Block, facts, html
from idiolect.report.tables import columns_of
from idiolect.runs.reader import read
from idiolect.studies.result import Result

WICKED = ("<script>alert(1)</script>", "a & b", "\"><img src=x onerror='alert(1)'>", "{{ 7 * 7 }}", "</table><h1>")


class Seen(HTMLParser):
    """Tags, attributes and the texts of cells, row by row; every tag that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.styles: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._open: list[str] = []
        self._cell: list[str] | None = None
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._open.append(tag)
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.styles += [value for name, value in attrs if name == "style"]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in ("td", "th"):
            self.tables[-1][-1].append("".join(self._cell or []))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)


def harmless(text: str) -> Seen:
    """What is seen; nothing runs, nothing is fetched, and no colour is fixed that one theme cannot show."""
    seen = Seen(text)
    shown = {"div", "table", "thead", "tbody", "tr", "th", "td", "details", "summary", "ul", "li"}
    assert set(seen.tags) <= shown
    assert seen.attributes <= {"style", "scope"}
    for style in seen.styles:
        colours = re.findall(r"(?:^|;)(?:color|background|border[\w-]*):([^;]*)", style)
        assert all(c in ("inherit", "none", "collapse", "1px solid") or "rgba(128,128,128" in c for c in colours)
    return seen


@pytest.mark.parametrize("name", WICKED)
def test_texts_of_others_are_shown_and_not_obeyed(name: str) -> None:
    block = Block(name, {"a": False, name: True}, [[name, name]])
    seen = harmless(html(block, facts(name, [(name, name)]), notes=[name], below=[name]))
    assert seen.tables[0] == [["a", name], [name, name.replace("-", "−")]]
    assert seen.tables[1] == [[name, name]]


def test_a_result_has_the_tables_of_its_page(make: Any, tmp_path: Path) -> None:
    made = make(clients=6, seeds=(0, 1))
    made.study["name"] = "<b>demo"
    folder = made.save(tmp_path / "run")
    run = read(folder)
    text = Result(folder, idl.Study())._repr_html_()
    [table] = harmless(text).tables
    assert table[0] == ["Method", *(column.header for column in columns_of(run))]
    rows = report.summary(run)
    assert [line[0] for line in table[1:]] == [row.title for row in rows]
    assert [line[1] for line in table[1:]] == [f"{100 * r.accuracy:.2f} ± {100 * r.seed_std:.2f}" for r in rows]
    bold = [bool(re.search(rf"font-weight:600[^>]*>{re.escape(row.title)}<", text)) for row in rows]
    best = max(rows, key=lambda r: r.accuracy)
    assert bold == [row is best for row in rows]
    assert "Run &lt;b&gt;demo" in text
    page = report.write([folder], tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(cell in page for line in table[1:] for cell in line)


@pytest.mark.parametrize("how", ["stopped", "diverged", "nothing yet", "gone"])
def test_a_result_says_what_is_missing(how: str, make: Any, tmp_path: Path) -> None:
    made = make(["local", "fedavg"], 6, (0,), rounds=10)
    said = "FedAvg, seed 0: the last evaluation is in round 5 of 10"
    if how == "stopped":
        made.drop(lambda r: r[0] == "fedavg" and r[2] > 5)
    if how == "diverged":
        made.diverged = [{"method": "fedavg", "seed": 0, "round": 4, "said": "fedavg: lower it"}]
        said = "FedAvg, seed 0: diverged in round 4"
    if how == "nothing yet":
        made.drop(lambda r: r[0] == "fedavg")
        said = "FedAvg has no results."
    folder = made.save(tmp_path / "run")
    if how == "gone":
        (folder / "study.yaml").unlink()
        said = str(folder)
    text = Result(folder, idl.Study())._repr_html_()
    harmless(text)
    assert said in text


@pytest.mark.parametrize("pair", [("fedpac", "fedavg"), ("local", "pfedfda"), ("pfedfda", "fedavg")])
def test_a_comparison_shows_its_numbers(pair: tuple[str, str], make: Any, tmp_path: Path) -> None:
    folder = make(clients=12).save(tmp_path / "run")
    comparison = Result(folder, idl.Study()).compare(*pair)
    assert comparison == report.compare(read(folder), *pair)
    [table] = harmless(comparison._repr_html_()).tables
    lines = dict(table)
    assert lines["Difference"].startswith(f"{comparison.difference:+.2f} points, {comparison.low:+.2f} to ")
    assert lines["Clients"] == f"better {comparison.better}, worse {comparison.worse}, equal {comparison.equal}"
    accuracy = report.scores(read(folder)).groupby("method").mean()
    assert comparison.difference == pytest.approx(100 * (accuracy[pair[0]] - accuracy[pair[1]]))


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({}, {"methods": "FedAvg, FedAvg-FT", "dataset": "digits", "clients": "20"}),
        ({"lr": 0.1, "rounds": 3}, {"lr": "0.1", "rounds": "3"}),
        (
            {"methods": "fedpac:alignment=0.5", "shifts": "rotate:clients=0-1", "save_predictions": True},
            {"methods": "FedPAC, alignment=0.5", "shifts": "rotate:clients=0-1", "save_predictions": "true"},
        ),
        ({"protocol": "stage=received", "name": "a<b"}, {"name": "a<b"}),
    ],
)
def test_a_study_shows_what_was_given_and_all_else(settings: dict[str, Any], lines: dict[str, str]) -> None:
    study = idl.Study(**settings)
    given, others = (dict(table) for table in harmless(study._repr_html_()).tables)
    assert given.items() >= lines.items()
    assert {*settings, "methods"} <= set(given)
    assert not set(given) & set(others)
    assert set(given) | set(others) == set(idl.Study.model_fields)


def test_clients_before_training() -> None:
    study = idl.Study(clients=5, partition="dirichlet:alpha=0.3", new_clients=1, shifts="rotate:clients=0-1")
    overview, data = study.describe(), study.federation()
    frame = overview.clients()
    label = data.y_R.numpy()
    assert frame["train"].tolist() == [len(rows) for rows in data.train]
    assert frame["classes"].tolist() == [len(np.unique(label[rows.numpy()])) for rows in data.train]
    assert frame["name"].tolist() == ["0", "1", "2", "3", "4 (new)"]
    words, table = harmless(overview._repr_html_()).tables
    assert ["Clients", "4 that train, 1 new"] in words
    assert [line[1] for line in table[1:]] == [str(n) for n in frame["train"]]
    assert table[1][-1].startswith("rotate")


def test_the_page_of_clients(tmp_path: Path) -> None:
    overview = idl.Study(clients=4, partition="iid").describe()
    page = overview.report(tmp_path / "clients.html", show=[0, 2])
    assert page.read_text(encoding="utf-8").count('<figure class="samples"') == 2
    assert list(overview.figures()) == ["labels", "sizes", "divergence"]
    with pytest.raises(InputError, match="show"):
        overview.report(tmp_path / "other.html", show="7-9")


def test_a_bundle_shows_its_facts(tmp_path: Path) -> None:
    study = idl.Study(methods="pfedfda", clients=4, rounds=1, local_epochs=1, model="mlp", new_clients=1)
    result = idl.run(study, tmp_path / "run", engine="sequential")
    words, table = harmless(result.bundle("pfedfda", tmp_path / "join")._repr_html_()).tables
    assert ["Classes", "10: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"] in words
    assert ["Inputs", "8-bit images of 8x8 pixels, grey"] in words
    mine = result.client_accuracy()["pfedfda", 0]
    row = next(line for line in table if line[:2] == ["3 that trained", "personal model"])
    assert row[2] == f"{100 * mine.mean():.1f}"
    models = harmless(result.bundle("pfedfda", tmp_path / "all", client="all")._repr_html_()).tables[0]
    assert ["Models", "0, 1, 2"] in models


@pytest.mark.thorough(but=["400-*#fff", "1000-*#111"])
@pytest.mark.browser
@pytest.mark.parametrize(("ink", "paper"), [("rgb(34, 34, 34)", "#fff"), ("rgb(221, 221, 221)", "#111")])
@pytest.mark.parametrize("width", [400, 1000])
def test_tables_are_readable_on_a_light_and_on_a_dark_notebook(
    ink: str, paper: str, width: int, make: Any, chromium: str, tmp_path: Path
) -> None:
    """Text in the notebook's own colour, on its own ground; a table that is too wide scrolls by itself."""
    text = Result(make(clients=6).save(tmp_path / "run"), idl.Study())._repr_html_() + idl.Study()._repr_html_()
    page_ = tmp_path / "cell.html"
    page_.write_text(f"<meta charset=utf-8><body style='margin:0;color:{ink};background:{paper}'>{text}")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.goto(page_.as_uri())
        styles = page.evaluate(
            "[...document.querySelectorAll('th, td')].map((c) => [getComputedStyle(c).color, "
            "getComputedStyle(c).backgroundColor])"
        )
        assert len(styles) > 50
        assert {tuple(style) for style in styles} == {(ink, "rgba(0, 0, 0, 0)")}
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()


# --- charts


@pytest.fixture(scope="module")
def folder(make: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(clients=6, seeds=(0, 1)).save(tmp_path_factory.mktemp("charts") / "run")


def test_every_figure_is_a_chart_with_the_same_numbers(folder: Path) -> None:
    run = read(folder)
    every, missing = figures(run, palette([run]))
    charts = charts_of_run(folder)
    assert list(charts) == [figure.name for figure in every]
    assert charts.notes == missing
    for figure in every:
        whole = charts[figure.name].to_dict()  # checked against the schema
        if "values" in figure.spec.get("data", {}):
            assert figure.spec["data"]["values"] in [*whole.get("datasets", {}).values(), whole["data"].get("values")]
        assert " ".join(whole["title"]["text"]) == figure.title
    names = harmless(charts._repr_html_()).tables[0]
    assert [line[0] for line in names] == list(charts)


@pytest.mark.thorough(but=["rounds-svg*", "labels-png*"])
@pytest.mark.parametrize(
    ("name", "form", "first"),
    [
        *((name, "svg", b"<svg") for name in ("rounds", "spread", "combination-2", "beta-3", "labels")),
        ("rounds", "pdf", b"%PDF"), ("labels", "png", b"\x89PNG"),
    ],
)  # fmt: skip
def test_charts_are_saved(name: str, form: str, first: bytes, folder: Path, tmp_path: Path) -> None:
    chart = charts_of_run(folder)[name]
    chart.save(str(tmp_path / f"chart.{form}"))
    content = (tmp_path / f"chart.{form}").read_bytes()
    assert content.startswith(first)
    assert len(content) > 2000


@pytest.mark.thorough(but=["spread-*", "rounds-*"])
@pytest.mark.parametrize(
    ("name", "renderer", "kind"),
    [("spread", "svg", "image/svg+xml"), ("labels", "svg", "image/svg+xml"), ("rounds", "png", "image/png")],
)
def test_a_cell_shows_a_chart_without_a_network(name: str, renderer: str, kind: str, folder: Path) -> None:
    chart = charts_of_run(folder)[name]
    with altair.renderers.enable(renderer):
        data, _ = DisplayFormatter().format(chart)
    assert kind in data
    assert "text/html" not in data
    assert len(data[kind]) > 2000
    if renderer == "svg":
        assert not re.findall(r"""(?:href|src)=["']https?:""", data[kind])


def test_a_chart_can_be_changed(folder: Path) -> None:
    chart = charts_of_run(folder)["rounds"].properties(title="Mine", width=300)
    assert (chart.to_dict()["title"], chart.to_dict()["width"]) == ("Mine", 300)


def test_without_altair_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(InputError, match=r"^charts need Altair: pip install 'idiolect\[notebook\]'$"):
        Result(folder, idl.Study()).figures()
    assert "<table" in Result(folder, idl.Study())._repr_html_()
