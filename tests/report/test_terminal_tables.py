"""The tables of a terminal have whole numbers and names, however little room there is."""

from __future__ import annotations

import re

import pytest
from rich.console import Console

from idiolect import report
from idiolect.core.objectives import OBJECTIVES
from idiolect.report.rows import NewClients
from idiolect.report.tables import COLUMNS, Column

ROW = report.Row("a", "A", 0.5, 0.5, 0.4, 0.1, 0.2, 1.25, 236_400.0, 90.0, 100, 3, 0.0123)
NARROW = [
    ROW._replace(title=title, score=score, by=OBJECTIVES["regression"].score, seed_std=1.25, versus_fedavg=-123.4,
                 per_client=score, std=54.32, worst_decile=654.3, seconds=7000.0)
    for title, score in (("FedAvg", 54.31), ("Local", 123456.7))
]  # fmt: skip


@pytest.mark.parametrize("width", [30, 40, 50, 60, 70, 79, 80, 120])
@pytest.mark.parametrize("longest", ["Local", "Ditto fine-tuned", "A method with a name that is long"])
def test_no_number_is_cut_and_every_method_has_its_name(width, longest):
    """Columns are whole or are left out, the score comes first, and what a narrow terminal lacks is said."""
    rows = [NARROW[0], NARROW[1]._replace(title=longest)]
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(report.render(rows))
    lines = capture.get().splitlines()
    assert max(map(len, lines)) <= width
    rule = next(k for k, line in enumerate(lines) if line.startswith("───"))
    (first,) = (line for line in lines[rule:] if line.startswith("FedAvg "))
    cells = first.removeprefix("FedAvg").split("  ")
    known = ["54.31 ± 1.25", "-123.4", "54.32", "654.3", "236 kB", "117 min"]
    found = [cell.strip() for cell in cells if cell.strip()]
    assert found[0] == known[0]
    assert set(found) <= set(known)
    assert (len(found) == len(known)) == ("117 min" in first)
    text = " ".join(" ".join(lines).split())
    assert "…" not in text
    if longest == "Local" and width >= 60:
        assert "-123.4" in found, "the difference is the last of the usual columns to be left out"
    if width < 50:
        assert "There is no room for" in text
    assert any(line.startswith(longest[:5]) for line in lines[rule:])


@pytest.mark.parametrize("digits", range(1, 30))
def test_short_names_leave_no_room_for_more_columns_than_fit(digits):
    """Whatever a measure's width: in 80 columns it is whole or it is left out."""
    measure = Column("auroc", "AUROC", lambda row: "7" * digits)
    console = Console(width=80, color_system=None)
    with console.capture() as capture:
        console.print(report.render([ROW._replace(title="A")], columns=[*COLUMNS, measure]))
    (line,) = (line for line in capture.get().splitlines() if line.startswith("A  "))
    known = {"50.00 ± 1.23", "10.0", "20.0", "+1.2", "236 kB", "90 s", "7" * digits}
    assert {cell.strip() for cell in line.split("  ")[1:] if cell.strip()} <= known
    assert len(line) <= 80


def test_it_is_folded_where_not_even_the_score_has_room():
    console = Console(width=18, color_system=None)
    with console.capture() as capture:
        console.print(report.render([ROW._replace(title="FedAvg")]))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 18
    assert re.search(r"FedAvg +50\.00 ± *\n +1\.23", text)


def of_new(methods, conditions):
    """Scores 10.0, 10.1, ... of new clients, a different one for every method and condition."""
    titles = {f"m{k}": f"Method {k}" for k in range(methods)}
    who = ["clients that trained", *(f"new clients, noise (std {k})" for k in range(1, conditions))]
    rows = [
        NewClients(text, {m: 0.1 + 0.001 * (methods * i + k) for k, m in enumerate(titles)}, {})
        for i, text in enumerate(who)
    ]
    return rows, titles


@pytest.mark.parametrize("width", [50, 80])
@pytest.mark.parametrize("methods", [1, 3, 6, 8, 12])
@pytest.mark.parametrize("conditions", [2, 9])
def test_every_number_of_new_clients_is_there_with_its_names(methods, conditions, width):
    rows, titles = of_new(methods, conditions)
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(report.render_new_clients(rows, titles))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= width
    wanted = [f"{10 + 0.1 * k:.1f}" for k in range(methods * conditions)]
    assert sorted(re.findall(r"(?<![\w.(])\d+\.\d+(?![\w.])", text)) == sorted(wanted)
    assert all(re.search(rf"\b{title}\b", text) for title in titles.values())
    assert [line.split()[0] for line in text.splitlines() if re.match(r"Who|Method +[a-z]|Method *$", line)]


def test_many_methods_of_new_clients_have_a_line_each():
    """Where they fit, a column each."""
    for methods, line in ((3, "new clients, noise"), (8, "Method 7")):
        rows, titles = of_new(methods, 2)
        console = Console(width=80, color_system=None)
        with console.capture() as capture:
            console.print(report.render_new_clients(rows, titles))
        (found,) = (one for one in capture.get().splitlines() if one.startswith(line))
        assert found.split()[-2:] == {3: ["10.4", "10.5"], 8: ["10.7", "11.5"]}[methods]
