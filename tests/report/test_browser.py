"""The page in a real browser, from a file, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from idiolect import report
from idiolect.report.tables import columns_of

pytestmark = pytest.mark.browser
ARGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def launched(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGS)
        yield browser
        browser.close()


@pytest.fixture
def browser(launched: Browser) -> Iterator[Browser]:
    yield launched
    for context in launched.contexts:
        context.close()  # a page goes on drawing as long as it is open


class Opened:
    """A page with what it asked for and complained of."""

    def __init__(self, browser: Browser, file: Path, width: int = 1280, scheme: str = "light") -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.page.on("console", lambda m: self.complaints.append(f"{m.type}: {m.text}"))
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("requestfailed", lambda r: self.complaints.append(f"failed: {r.url}"))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(file.as_uri(), timeout=120_000)  # on a machine that is busy with other tests
        self.page.wait_for_selector("html[data-drawn]", timeout=120_000)

    def clean(self, file: Path) -> None:
        assert self.complaints == []
        assert self.requests == [file.as_uri()]


def drawn(page: Page) -> list[tuple[float, float, int]]:
    """Width and height of each figure's drawing, and how many marks with an extent it holds."""
    return page.evaluate(
        """() => [...document.querySelectorAll(".plot")].map((plot) => {
             const svg = plot.querySelector("svg");
             if (!svg) return [0, 0, 0];
             const box = svg.getBoundingClientRect();
             const marks = [...svg.querySelectorAll(".role-mark path, .role-mark line, .role-mark text")];
             const seen = marks.filter((m) => { const b = m.getBBox(); return b.width + b.height > 0; });
             return [box.width, box.height, seen.length];
           })"""
    )


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn(make, tmp_path, browser, width, scheme):
    labels = ["local", "fedavg", "fedrep", "fedpac", "pfedfda", "fedcr", "fedlda"]
    run = make(labels, clients=20, seeds=(0, 1), rounds=6).save(tmp_path / "run")
    file = report.write([run], tmp_path / "report.html")
    opened = Opened(browser, file, width, scheme)
    found = drawn(opened.page)
    assert len(found) == 9
    for (wide, high, marks), least in zip(
        found, [7 * 2, 7 * 20, 2 * 6, 6 * 20, 6 * 20, 100, 2 * 20 * 20, 20, 20], strict=True
    ):
        assert wide > 200
        assert high > 150
        assert marks >= least
    assert overflow(opened.page) <= 0
    opened.clean(file)


def test_a_large_run_stays_inside_its_boxes(make, tmp_path, browser):
    made = make(clients=45, seeds=(0,), rounds=2, name="a" * 80, classes=100)
    made.manifest["methods"]["fedpac"]["title"] = "FedPAC with a very long title that nobody would choose"
    small = make(["fedavg"], clients=2, rounds=1, name="b" * 80).save(tmp_path / "small")
    many = make([f"method {i}" for i in range(14)], rounds=2).save(tmp_path / "many")  # more than there are colours
    file = report.write([made.save(tmp_path / "run"), small, many], tmp_path / "report.html")
    opened = Opened(browser, file)
    for width in (1280, 390):
        opened.page.set_viewport_size({"width": width, "height": 900})
        assert overflow(opened.page) <= 0
        assert all(marks for _, _, marks in drawn(opened.page))
    opened.clean(file)


def test_hardly_any_records(make, tmp_path, browser):
    made = make(["fedpac", "pfedfda"], clients=1, seeds=(0,), rounds=1)
    made.drop(lambda r: r[0] == "pfedfda")
    empty = make()
    empty.records, empty.timings = [], []
    file = report.write([made.save(tmp_path / "a"), empty.save(tmp_path / "b")], tmp_path / "report.html")
    opened = Opened(browser, file)
    assert all(wide > 100 and high > 20 for wide, high, _ in drawn(opened.page))
    opened.clean(file)


def test_nasty_names_are_shown_as_text(make, tmp_path, browser):
    nasty = "</script><img src=x onerror=alert(1)>&amp;"
    made = make(name=nasty)
    made.manifest["class_names"][0] = nasty
    made.manifest["methods"]["fedpac"]["title"] = nasty
    file = report.write([made.save(tmp_path / "run")], tmp_path / "report.html")
    opened = Opened(browser, file)
    assert opened.page.locator("h1").inner_text() == nasty
    assert opened.page.locator("img").count() == 0
    opened.page.locator("#run1-labels .mark-symbol.role-mark path").first.hover()
    assert opened.page.locator("#vg-tooltip-element").inner_text().count("test samples") == 1
    assert opened.page.locator("img").count() == 0
    opened.clean(file)


def column(page: Page, name: str) -> list[str]:
    """The cells of the first table in the column with this header, as they stand."""
    at = page.locator("table").first.locator("thead th").all_inner_texts()
    index = next(i for i, text in enumerate(at) if text.startswith(name))
    return (
        page.locator("table")
        .first.locator("tbody tr")
        .evaluate_all(f"rows => rows.map(r => r.cells[{index}].innerText)")
    )


def test_sorting(make, tmp_path, browser):
    made = make(["local", "fedavg", "fedrep", "fedpac"])
    made.drop(lambda r: r[0] == "fedrep")
    run = made.save(tmp_path / "run")
    opened = Opened(browser, report.write([run], tmp_path / "report.html"))
    page = opened.page
    values = {r.title: r.accuracy for r in report.summary(report.read(run))}
    known = sorted((t for t in values if values[t] is not None), key=lambda t: values[t])
    button = page.get_by_role("button", name="Accuracy %")
    head = page.locator("th", has=button)
    button.click()
    assert column(page, "Method") == [*known[::-1], "FedRep"]
    assert head.get_attribute("aria-sort") == "descending"
    button.click()
    assert column(page, "Method") == [*known, "FedRep"]
    assert head.get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name="Method").press("Enter")
    assert column(page, "Method") == sorted(values, key=str.lower)
    assert head.get_attribute("aria-sort") is None


def test_figures_follow_the_colour_scheme_and_the_legend(make, tmp_path, browser):
    file = report.write([make().save(tmp_path / "run")], tmp_path / "report.html")
    opened = Opened(browser, file)
    page = opened.page
    cell = page.locator("#run1-versus-fedavg .mark-rect.role-mark path").first
    light = cell.get_attribute("fill")
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector("html[data-drawn=dark]")
    assert cell.get_attribute("fill") != light
    faint = "#run1-rounds .mark-symbol.role-mark path[opacity='0.12']"
    assert page.locator(faint).count() == 0
    page.locator("#run1-rounds .role-legend-label text").first.click(force=True)
    page.wait_for_selector(faint, state="attached")
    assert page.locator(faint).count() == 3 * 2
    opened.clean(file)


@pytest.mark.parametrize("clients", [(2,), (0, 3)])
def test_what_was_observed_is_drawn(make, tmp_path, browser, clients):
    made = make(["fedavg", "fedpac", "fedcr"], clients=6, seeds=(0,), rounds=4)
    for n, label in enumerate(made.labels):
        for r in range(1, 5):
            for client in range(6):
                made.add(label, 0, r, client, "personalised", "gaussianity", n - r)
                made.add(label, 0, r, client, "personalised", "gaussianity_standardised", r)
        for client in clients:
            for row in range(30):
                for axis in (0, 1):
                    made.add(label, 0, 4, client, "personalised", f"feature[{row},{axis}]", n + row * axis)
                made.add(label, 0, 4, client, "personalised", f"feature_class[{row}]", row % 10)
    file = report.write([made.save(tmp_path / "run")], tmp_path / "report.html")
    opened = Opened(browser, file)
    assert all(marks for _, _, marks in drawn(opened.page))
    dots = opened.page.locator("#run1-representations .mark-symbol.role-mark path")
    assert dots.count() == 3 * len(clients) * 30
    assert opened.page.locator("#run1-gaussianity .mark-symbol.role-mark path").count() == 3 * 4
    assert overflow(opened.page) <= 0
    opened.clean(file)


def test_runs_that_differ_in_a_number_have_a_curve(make, tmp_path, browser):
    runs = []
    for epochs in (1, 5):
        made = make(["fedavg", "fedpac"], seeds=(0,), rounds=1, name=f"{epochs} epochs")
        made.study["local_epochs"] = epochs
        runs.append(made.save(tmp_path / str(epochs)))
    file = report.write(runs, tmp_path / "report.html")
    opened = Opened(browser, file)
    assert opened.page.locator("#all-curve-0 .mark-symbol.role-mark path").count() == 2 * 2
    opened.clean(file)


@pytest.mark.parametrize("clipboard", ["granted", "absent", "nothing"])
def test_copying_a_table(make, tmp_path, browser, clipboard):
    run = make(seeds=(0,)).save(tmp_path / "run")
    file = report.write([run], tmp_path / "report.html")
    opened = Opened(browser, file)
    page, whole = opened.page, report.read(run)
    rows = report.summary(whole)
    if clipboard == "granted":
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    else:
        page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    if clipboard == "nothing":
        page.evaluate("document.execCommand = () => false")
    for name, text in (("Copy LaTeX", report.as_latex(rows, columns_of(whole))), ("Copy CSV", report.as_csv(rows))):
        page.get_by_role("button", name=name).click()
        if clipboard == "nothing":
            area = page.locator(".copy textarea")
        else:
            page.get_by_role("button", name="Copied").first.wait_for()
            page.evaluate("document.querySelector('#paste')?.remove()")
            page.evaluate("const a = document.body.appendChild(document.createElement('textarea')); a.id = 'paste'")
            area = page.locator("#paste")
            area.focus()
            page.keyboard.press("Control+V")
        assert area.input_value() == text
    opened.clean(file)


def test_the_comparison_can_be_sorted(make, tmp_path, browser):
    run = make(["local", "fedavg", "fedrep", "fedpac", "pfedfda"], clients=9).save(tmp_path / "run")
    found = report.comparisons(report.read(run))
    opened = Opened(browser, report.write([run], tmp_path / "report.html"))
    table = opened.page.locator("table", has=opened.page.locator("caption", has_text="against every other method"))
    titles = {c.base: report.read(run).titles[c.base] for c in found}
    for name, value in (("Difference", "difference"), ("Better", "better"), ("Its worst client", "base_worst_decile")):
        table.get_by_role("button", name=name).click()
        got = table.locator("tbody th").all_inner_texts()
        ranks = {titles[c.base]: getattr(c, value) for c in found}
        assert [ranks[t] for t in got] == sorted(ranks.values(), reverse=True)


def test_the_table_of_clients_can_be_unfolded_and_sorted(make, tmp_path, browser):
    run = make(["local", "fedavg", "pfedfda"], clients=25, seeds=(0,)).save(tmp_path / "run")
    rows = report.by_client(report.read(run))
    opened = Opened(browser, file := report.write([run], tmp_path / "report.html"))
    folded = opened.page.locator("details", has_text="which method for which")
    assert not folded.locator("table").is_visible()
    folded.locator("summary").click()
    for name, of in (("pFedFDA", lambda r: r.values["pfedfda"]), ("Test samples", lambda r: r.samples)):
        folded.get_by_role("button", name=name).click()
        got = folded.locator("tbody th").all_inner_texts()
        ranks = {row.name: of(row) for row in rows}
        assert [ranks[name] for name in got] == sorted(ranks.values(), reverse=True)
    folded.get_by_role("button", name="Client").click()
    folded.get_by_role("button", name="Client").click()
    assert folded.locator("tbody th").all_inner_texts() == [str(k) for k in range(25)]
    opened.clean(file)


def test_the_papers_numbers_are_sorted_by_what_stands_before_the_deviation(make, tmp_path, browser):
    run = report.read(make(["local", "fedavg"]).save(tmp_path / "run"))
    columns = {"method": False, "paper": True, "ours": True}
    rows = [
        ("a", "9.50 ± 3", "-"),
        ("b", "80.25", "1,024 ± 0.1"),
        ("c", "-", "10.00 ± 20"),
        ("d", "10.00 ± 99", "+2.5"),
    ]
    head = report.Head("A table", columns, rows, [], (("LaTeX", report.latex(columns, rows)),))
    file = report.draw([run], tmp_path / "page.html", head)
    opened = Opened(browser, file)
    table = opened.page.locator("table", has=opened.page.locator("caption", has_text="paper's numbers"))
    for name, want in (("paper", ["b", "d", "a", "c"]), ("ours", ["b", "c", "d", "a"])):
        table.get_by_role("button", name=name).click()
        assert table.locator("tbody td:first-child").all_inner_texts() == want
    assert opened.page.get_by_role("button", name="Copy LaTeX").count() == 2
    opened.clean(file)
