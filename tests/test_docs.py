"""Pages that scripts make are what these make of the code and of results/ now."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from idiolect import methods, models
from idiolect.methods import Entry, profile
from idiolect.reproduction import outcome_files, searches
from idiolect.reproduction.outcomes import SeedResult, outcome_of
from idiolect.reproduction.recipes import Choice
from idiolect.reproduction.recipes import own as recipes_of_our_own
from idiolect.reproduction.seed_runs import digest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))  # where build.py finds exposure.py and tables.py


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"docs_{name}"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build() -> Any:
    return script("build")


@pytest.fixture(scope="module")
def reproduced() -> Any:
    return script("reproduced")


@pytest.fixture(scope="module")
def own() -> Any:
    return script("own")


def test_pages_are_up_to_date(build: Any) -> None:
    made = build.pages()
    stale = [path.name for path, text in made.items() if not path.exists() or path.read_text() != text]
    assert not stale, "run python docs/build.py"
    assert build.present() == {path for path in made if path.parent == build.PAGES}


def test_the_pages_of_our_own_methods_are_what_results_hold(own: Any) -> None:
    made = own.made()
    stale = [p.name for p, text in made.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/own.py"


def test_the_page_of_the_fields_methods_is_what_results_hold() -> None:
    rivals = script("rivals")
    assert rivals.PAGE.read_text(encoding="utf-8") == rivals.page(), "run python docs/rivals.py"
    assert rivals.choices(rivals.trials()) == recipes_of_our_own._CHOICES


def test_the_choice_is_the_trial_with_the_best_mean_of_both_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that diverged on one of the two is not chosen; nothing is, before all trials of a method are there."""
    rivals = script("rivals")
    draw = np.random.default_rng(0)
    sums: dict[str, Any] = {name: np.zeros(6) for name in recipes_of_our_own._FIELD}
    results: dict[str, dict[int, SeedResult]] = {}
    for cell in rivals.recipes.get(rivals.TRIALS).cells:
        method, trial, dataset = (cell.where[k] for k in ("method", "trial", "dataset"))
        value = None if (trial, dataset) == (1 + len(method) % 6, "cifar10") else draw.uniform(20, 90)
        sums[method][trial - 1] += np.nan if value is None else value
        results[cell.slug] = {} if (method, trial) == ("moon", 3) else {0: SeedResult(value, 60)}
    monkeypatch.setattr(rivals.outcome_files, "kept_results", lambda recipe, cell, folder: results.get(cell.slug, {}))
    frame = rivals.trials()
    assert rivals.choices(frame) == {m: int(np.nanargmax(sums[m])) + 1 for m in sums if m != "moon"}
    assert "| MOON | 1 of 6 trials are missing |" in "\n".join(rivals.of_trials(frame))
    runs = 24 * len(recipes_of_our_own._FIELD)
    assert f"{runs} of {runs} runs on the 24 settings are missing." in rivals.page()


def test_the_page_of_natural_clients_is_what_results_hold() -> None:
    natural = script("natural")
    text = natural.page(natural.tuned())
    assert natural.PAGE.read_text(encoding="utf-8") == text, "run python docs/natural.py"
    assert set(natural.SOURCES) == {c.where["source"] for c in natural.recipes.get(natural.RECIPE).cells}


def test_the_page_of_which_method_is_up_to_date() -> None:
    which = script("which")
    assert which.PAGE.read_text(encoding="utf-8") == which.page(), "run python docs/which.py"


def test_the_page_of_which_method_has_a_row_for_each_method_when_all_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    which = script("which")
    facts = {"worst_decile": 40.0, "calibration_error": 0.1}
    values = {"local": 50.0, "fedavg": 45.0, "fedshrink": 60.0}

    def measured(recipe: str) -> list[tuple[Any, Any]]:
        cells = [c for c in which.rivals.recipes.get(recipe).cells if c.where["method"] in values]
        gain = 1 if recipe.endswith("7") else 0
        rows = [(c, SeedResult(values[str(c.where["method"])] + gain, 60, facts, {0: 1.0})) for c in cells]
        last = max(k for k, c in enumerate(cells) if c.where["method"] == "fedavg")
        rows[last] = cells[last], SeedResult(None, 3, {}, {})
        return rows

    monkeypatch.setattr(which.rivals, "measured", measured)
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in which.measured()]
    titles = [row[0].partition("]")[0].strip("[") for row in rows[2:]]
    assert titles == ["FedShrink", "Local", "FedAvg"]
    assert [row[1] for row in rows[3:]] == ["50.0", "45.0 (1 diverged)"]
    assert rows[2][1:9] == ["60.0", "1.0", "60.0", "60.0", "60.0", "40.0", "0.100", "61.0"]
    assert [row[9] for row in rows[2:]] == ["forward passes", "training", "what it receives"]
    assert rows[4][11] == "1.0"
    monkeypatch.setattr(which.rivals, "measured", lambda recipe: [(c, None) for c, _ in measured(recipe)])
    assert which.measured() == ["72 of 72 runs are missing. No result is looked at before all are there."]


def test_who_gains_and_who_loses_is_students_t_of_each_client() -> None:
    natural = script("natural")
    rng = np.random.default_rng(2)
    gain_SK = pd.DataFrame(rng.normal([3, 0, -3, 0.1], 1, (5, 4)))
    ends = [stats.t.interval(0.95, 4, gain_SK[k].mean(), stats.sem(gain_SK[k])) for k in range(4)]
    assert natural.sure(gain_SK) == (sum(low > 0 for low, _ in ends), sum(high < 0 for _, high in ends))


def test_seeds_beyond_the_protocol_are_left_out(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = own.SeedResult(0.5, 60, {}, {0: 0.5})
    monkeypatch.setattr(own.outcome_files, "kept_results", lambda recipe, cell, folder: {0: one, 3: one})
    for name, runs in (("own/table1", 3 * 24 * 10), ("own/table5", 22 * 7)):
        table = own.table(own.REPORTS[0], own.recipes.get(name))
        assert {tuple(each) for methods in table.found.values() for each in methods.values()} == {(0,)}
        assert (table.runs, table.done) == (runs, 24 * 10 if name == "own/table1" else 22 * 7)
        assert sum(line.startswith("Not run: ") for line in table.said) == (2 if name == "own/table5" else 0)


def test_the_page_of_our_own_method_counts_and_compares(own: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours is 2 points above the best of the four; in one cell it is 1 below, and FedPAC diverges there."""
    (report,) = own.REPORTS
    ours, title = report.ours, report.title
    monkeypatch.setattr(own.judged, "section", lambda names, text: [])
    monkeypatch.setattr(sys.modules["idiolect.report.compare"], "_RESAMPLES", 1000)
    rng = np.random.default_rng(0)
    tables: dict[str, Any] = {}
    for name in report.tables:
        table: Any = {}
        for cell in own.recipes.get(name).cells:
            where = tuple(str(v) for k, v in cell.where.items() if k != "method")
            table.setdefault(where, {})[cell.where["method"]] = {}
        for at, by_method in enumerate(table.values()):
            base_SK = rng.uniform(60, 90, (3, 12))
            for method in by_method:
                gain = {ours: 2 if at else -1, "pfedfda": 0, "local": -20}.get(method, -5)
                ties = 1e-4 * np.arange(12) * (method == ours)  # scipy is slow where there are ties
                for s, base_K in enumerate(base_SK + gain + ties):
                    facts = {"worst_decile": base_K.min(), "calibration_error": 0.1}
                    ended = at == 0 and method == "fedpac"
                    whole = own.SeedResult(base_K.mean(), 60, facts, dict(enumerate(base_K)))
                    by_method[method][s] = own.SeedResult(None, said="client 3") if ended else whole
        tables[name] = own.Table(table, 864, 864, ["A finding."] if name == "own/table1" else [])
    lines = own.page(report, tables).splitlines()
    rows = [line for line in lines if line.startswith(("| fashion_mnist", "| cifar10"))]
    assert len(rows) == 3 * 24
    assert all("| diverged |" in row for row in rows[::48])
    assert rows[24].endswith("| pFedFDA | -1.00 (-1.00 to -1.00) | < 0.001 |")
    assert rows[25].endswith("| pFedFDA | +2.00 (+2.00 to +2.00) | < 0.001 |")
    assert sum(line.startswith(f"| {title} |") for line in lines) == 2
    [one] = [line for line in lines if line.startswith("| ridge 0.1 |")]
    assert one.count("-7.00 (-7.00 to -7.00)") == 5
    assert "| -6.50 (-7.00 to " in one
    assert "\n- A finding." in "\n".join(lines)
    left = own.page(report, {name: table._replace(done=863) for name, table in tables.items()})
    assert f"1 of 864 runs are missing. No result of {title} is looked at before all are there." in left
    assert "| " not in left
    assert "finding" not in left


def test_the_papers_pages_are_what_results_hold(reproduced: Any) -> None:
    made = reproduced.pages()
    stale = [p.name for p, text in made.items() if not p.exists() or p.read_text(encoding="utf-8") != text]
    assert not stale, "run python docs/reproduced.py"
    assert {p.name for p in reproduced.PAGES.glob("*.md")} == {p.name for p in made}


def test_the_index_counts_what_is_explained(reproduced: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [("matches", ""), ("differs", "the draw"), ("differs", "the cause is not found"), ("differs", ""),
            ("diverged", "the ridge is too small")]  # fmt: skip
    recipe = reproduced.recipes.get("fedlda/table1")
    cells = [c for c in recipe.cells if c.where["method"] == "fedlda"]
    files = {c.slug: {"verdict": v, "because": b} for c, (v, b) in zip(cells, said, strict=False)}
    monkeypatch.setattr(reproduced, "kept", lambda of, cell: files.get(cell.slug) if of.name == recipe.name else None)
    counts = {line.split(" | ")[0]: line.split(" | ")[2:] for line in reproduced._own()}
    assert counts["| FedLDA"] == ["5", "1", "2", "2 |"]
    assert counts["| FedPAC"] == ["0", "0", "0", "0 |"]


def test_every_result_is_of_the_study_that_its_recipe_has_now(reproduced: Any) -> None:
    """A result of other settings would silently count as not run."""
    files = {p.relative_to(reproduced.RESULTS) for p in reproduced.RESULTS.rglob("*.json")}
    used = set()
    for recipe in (reproduced.recipes.get(name) for name in reproduced.recipes.names()):
        for cell in recipe.cells:
            if reproduced.kept(recipe, cell) is not None:
                used.add(Path(recipe.name, f"{cell.slug}.json"))
        table, pairs = reproduced.tuned_cells(recipe)
        used |= {Path(table.name, f"{cell.slug}.json") for cell, _ in pairs}
    assert files == used


def test_tuned_numbers_stand_beside_the_others(
    reproduced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = reproduced.recipes.get("fedpac/table1")
    where = {"dataset": "fashion_mnist", "clients": 20}
    methods_here = {"ditto": 87.21, "apfl": 86.5, "fedpac": 92.01, "local": 80.0}
    cells = {c.where["method"]: c for c in recipe.cells if where.items() <= c.where.items()}
    monkeypatch.setattr(reproduced, "RESULTS", tmp_path)
    assert "## Tuned" not in reproduced._index()
    table = searches.tuned_recipe(recipe)
    choices = {"ditto": {"pull": 10}, "apfl": {"alpha": 0.25}, "fedpac": {"alignment": 0.5}}
    for name, value in methods_here.items():
        cell = searches.with_search(table, cells[name], 3 if name == "ditto" else None)
        if name in choices:
            cell = searches.with_choice(cell, Choice(choices[name], 0.9, digest(cell.study)))
        kept = outcome_files.keep(table, outcome_of(cell, {0: SeedResult(value, 200)}), tmp_path)
        assert kept == tmp_path / "fedpac" / "table1-tuned" / f"{cell.slug}.json"
    for text in (reproduced._index(), reproduced._page("fedpac")):
        rows = [line for line in text.splitlines() if line.startswith("| ") and "fashion_mnist, " in line]
        for beginning, value in (("Ditto", 87.21), ("APFL", 86.5), ("FedPAC", 92.01)):
            [row] = [r for r in rows if r.startswith(f"| {beginning}, ")]
            assert f"| · | **{value:.2f}** " in row
        assert [r.split(" | ")[1] for r in rows if r.startswith("| Ditto, ")] == ["pull 10"]
        assert not any(r.startswith("| Local, ") and "80.00" in r for r in rows), "the paper tuned nothing of it"
        assert "3 to 5 trials for a cell" in text
    assert "## Tuned" in reproduced._index()
    assert {c.where["method"] for c, _ in reproduced.tuned_cells(recipe)[1]} == set(methods_here)


def test_a_result_of_another_default_is_not_of_this_study(
    reproduced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study's digest leaves out what is at its default, so that it does not see a default that has moved."""
    recipe = reproduced.recipes.get("fedpac/table1")
    where = {"dataset": "fashion_mnist", "clients": 20, "method": "fedpac"}
    [cell] = [c for c in recipe.cells if c.where == where]
    found = reproduced.kept(recipe, cell)
    path = tmp_path / recipe.name / f"{cell.slug}.json"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(reproduced, "RESULTS", tmp_path)
    path.write_text(json.dumps(found))
    assert reproduced.kept(recipe, cell) == found
    found["study"]["methods"][0]["options"]["threshold"] = 0.5
    path.write_text(json.dumps(found))
    assert reproduced.kept(recipe, cell) is None


def test_every_method_and_variant_has_a_row_with_its_cost(build: Any) -> None:
    text = (build.PAGES / "index.md").read_text()
    for name in methods.ours():
        for title, options in methods.get(name).forms.items():
            [line] = [w for w in text.splitlines() if w.startswith(f"| {title} |" if options else f"| [{title}](")]
            cost = line.split(" | ")[-2].strip()
            assert not cost or float(cost) > 0, "empty until benchmarks/methods.py --write measures all anew"


def test_the_front_pages_count_and_name_every_method() -> None:
    readme, index = ((ROOT / name).read_text() for name in ("README.md", "docs/index.md"))
    count = f"{len(methods.ours()) - 1} published methods and one of its own"
    assert count in readme, "say in README.md how many methods there are"
    assert count in index.replace("](methods/index.md)", ""), "say in docs/index.md how many methods there are"
    assert [n for n in sorted(methods.ours()) if f"`{n}`" not in readme] == [], "name these in README.md"


def test_without_a_repository_links_to_files_become_paths() -> None:
    hooks, config = script("site_hooks"), SimpleNamespace(docs_dir=str(ROOT / "docs"), repo_url=None)

    def shown(text: str, page: str = "contract.md") -> str:
        page = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta={})
        return hooks.on_page_markdown(text, page=page, config=config, files=None)

    skeleton = "../src/idiolect/methods/_skeleton.py"
    assert shown(f"see [the skeleton]({skeleton}).") == f"see the skeleton (`{skeleton[3:]}`)."
    assert shown("[oracle.py](../tests/methods/oracle.py)") == "`tests/methods/oracle.py`"
    line = shown("[ditto.py:7](../../src/idiolect/methods/ditto.py#L7-L9)", "methods/ditto.md")
    assert line == "`src/idiolect/methods/ditto.py:7`"
    config.repo_url = "https://x.org/y"
    assert (
        shown("[oracle.py](../tests/methods/oracle.py)")
        == "[oracle.py](https://x.org/y/blob/main/tests/methods/oracle.py)"
    )


@pytest.mark.parametrize("path", sorted((ROOT / "docs/reference").glob("*.md")), ids=lambda p: p.stem)
def test_a_page_of_the_reference_says_where_its_text_is(path: Path) -> None:
    """In a clone it is a list of names; on the site the line is left out."""
    text = path.read_text()
    [line] = re.findall(r"^\*In a clone.*?\*$", text, re.MULTILINE | re.DOTALL)
    assert "make docs" in line
    assert all((path.parent / link).exists() for link in re.findall(r"\]\((.*?)\)", line))
    page = SimpleNamespace(file=SimpleNamespace(src_uri=f"reference/{path.name}"), meta={})
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"), repo_url=None)
    assert "In a clone" not in script("site_hooks").on_page_markdown(text, page=page, config=config, files=None)


def test_links_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(p, link) for p in pages for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", p.read_text())]
    assert len(links) > 100
    assert [(p.name, link) for p, link in links if not (p.parent / link).exists()] == []


def test_the_tests_that_reliability_names_exist() -> None:
    found, file = 0, ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?(?:::(\w+))?`", (ROOT / "docs" / "reliability.md").read_text()):
        file = path or file
        if name:
            found += 1
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file} has no {name}"
    assert found > 30


def example(task: Any, *, rate: float = 1.0) -> None:
    """Example: an equation over two lines (Nobody, 1900).

    Client, with x:
        y <- x +
            rate                     [1]
        z <- y                       [2]
    Server:  x <- z                  [1]

    over all. ``rate`` is new.

    Args:
        task: the problem.
        rate: of it,
            in two lines.

    Source: none.
    """


def test_a_docstring_is_taken_apart(build: Any) -> None:
    doc = build.read(example)
    assert doc.summary == "Example: an equation over two lines (Nobody, 1900)."
    places = [(e.place, " ".join(e.text.split()), e.number) for e in doc.equations]
    assert places == [
        ("Client, with x", "y <- x + rate", "1"), ("Client, with x", "z <- y", "2"), ("Server", "x <- z", "1"),
    ]  # fmt: skip
    assert doc.prose == ["over all. ``rate`` is new.", "Source: none."]
    assert doc.options == {"task": "the problem.", "rate": "of it, in two lines."}


def test_a_marked_statement_is_the_innermost(build: Any) -> None:
    source = "def f():  # [1]\n    a = (\n        1\n    )  # [2] [3]\n    return a  # why\nb = 2  # [1]\n"
    assert build.statements(source) == {"1": [(1, 5), (6, 6)], "2": [(2, 4)], "3": [(2, 4)]}
    with pytest.raises(ValueError, match="line 1"):
        build.statements("# [1]\nb = 2\n")


def test_an_equation_without_code_is_an_error(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry("example", "Example", "none", example, {}, {}, {}, {})  # type: ignore[arg-type]
    known = profile.of("fedavg", {}, models.build("mlp", (1, 8, 8), 10), 10, 20)
    monkeypatch.setattr(build.methods, "get", lambda name: entry)
    with pytest.raises(ValueError, match="has equations 1, 2 in the docstring and none in the code: give"):
        build.page("example", known)


def test_an_error_of_a_page_is_a_sentence(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        raise ValueError("fedx.py has no equation")

    monkeypatch.setattr(build, "pages", wrong)
    monkeypatch.setattr(sys, "argv", ["build.py"])
    with pytest.raises(SystemExit, match=r"^docs/build.py: fedx.py has no equation$"):
        build.main()
