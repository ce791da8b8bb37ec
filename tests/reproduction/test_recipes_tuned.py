"""What each paper says that it tuned: as its text has it, over options that exist, and around what it printed."""

from __future__ import annotations

from typing import Any

import pytest

from idiolect import methods
from idiolect.core.errors import InputError
from idiolect.reproduction import recipes, searches
from idiolect.reproduction.recipes import Choice, Tuned
from idiolect.reproduction.seed_runs import digest

LAMBDAS = (0.1, 0.5, 1, 5, 10)
BETAS = (0.01, 0.005, 0.001, 0.0005, 0.0001)
TEXTS: dict[str, dict[str, dict[str, tuple[float, ...]]]] = {  # read off the papers, in our methods' options
    "fedpac": {
        "fedpac": {"alignment": LAMBDAS}, "apfl": {"alpha": (0.25, 0.5, 0.75)}, "pfedme": {"pull": (0.1, 1, 10, 100)},
        "ditto": {"pull": (0.1, 1, 10)}, "knnper": {"knn_weight": (0.5, 0.6, 0.7, 0.8)},
        "pfedhn": {"lr": (0.1, 0.01, 0.001), "server_lr": (0.1, 0.01, 0.001)},
    },
    "pfedfda": {
        "fedpac": {"alignment": LAMBDAS}, "apfl": {"alpha": (0.25, 0.5, 0.75, 1)}, "pfedme": {"pull": (1, 5, 10, 15)},
        "ditto": {"pull": (0.05, 0.1, 0.5, 1, 2)},
    },
    "fedcr": {
        "all": {"lr": (0.5, 0.1, 0.05, 0.01, 0.005, 0.001)}, "fedcr": {"beta": BETAS},
        "ditto": {"pull": (1, 0.1, 0.01, 0.001)}, "fedpac": {"alignment": LAMBDAS},
        "fedsr_ft": {"norm": (0.1, 0.01, 0.001), "conditional": (0.1, 0.01, 0.001, 0.0001)},
    },
}  # fmt: skip
RESULTS = [
    r
    for r in map(recipes.get, recipes.names())
    if isinstance(r.tuned, Tuned) and not r.is_always_tuned and r.kind in ("results", "figure")
]


@pytest.mark.parametrize("paper", TEXTS)
def test_the_values_are_those_of_the_text(paper: str) -> None:
    tuned = recipes.get(f"{paper}/hyperparameters").tuned
    assert isinstance(tuned, Tuned)
    found = {method: {name: tuple(sorted(v)) for name, v in each.items()} for method, each in tuned.values.items()}
    assert found == {m: {name: tuple(sorted(v)) for name, v in each.items()} for m, each in TEXTS[paper].items()}
    assert tuned.place.startswith(("appendix", "section"))


@pytest.mark.parametrize("paper", TEXTS)
def test_what_the_paper_printed_lies_among_its_values(paper: str) -> None:
    rows = [row for row in recipes.published(f"{paper}/hyperparameters") if "tuned_over" in row]
    assert rows
    assert all(row["value"] is None or row["value"] in row["tuned_over"] for row in rows)


@pytest.mark.parametrize("recipe", RESULTS, ids=lambda r: r.name)
def test_a_cell_is_tuned_around_the_settings_that_it_has(recipe: recipes.Recipe) -> None:
    """Its own value is tried too; every method of the text is tuned, unless the cell is about that very setting."""
    of_paper = TEXTS[recipe.name.partition("/")[0]]
    try:
        cells = searches.with_searches(searches.tuned_recipe(recipe), recipe.cells)
    except InputError:
        rest = [c for c in recipe.cells if c.study and c.reads == "accuracy"]
        assert not any(c.where.get("method") in of_paper or "all" in of_paper for c in rest)
        return
    for c in cells:
        names = of_paper.get("all", {}) | of_paper.get(str(c.where.get("method")), {})
        if c.study is None or c.reads != "accuracy" or not names:
            assert c.search is None
            continue
        use = c.study.methods[0]
        now: dict[str, Any] = {"lr": c.study.lr} | use.options
        about = {"beta": "beta" in c.where, "alignment": use.options.get("alignment") == 0}
        expected = {name for name in names if not about.get(name)}
        found = {} if c.search is None else c.search.values
        assert set(found) == expected
        assert all(now[name] in each for name, each in found.items())
        every = 1
        for each in found.values():
            every *= len(each)
        assert c.search is None or c.search.trials == every
        if c.search is not None:
            values = {name: each[-1] for name, each in c.search.values.items()}
            chosen = searches.with_choice(c, Choice(values, 0.5, digest(c.study)))
            assert chosen.study is not None
            (use,) = chosen.study.methods
            assert {name: (use.options | use.settings).get(name, now[name]) for name in values} == values
            assert (digest(chosen.study) == digest(c.study)) is (values == {name: now[name] for name in values})


def test_a_part_that_is_left_out_is_not_tuned_into_the_method() -> None:
    recipe = searches.tuned_recipe(recipes.get("fedpac/table2"))
    cells = searches.with_searches(recipe, recipe.cells)
    assert {c.where["design"]: c.search is not None for c in cells} == {
        "none": False, "feature_alignment": True, "classifier_collaboration": False, "both": True,
    }  # fmt: skip


FEDLDA = "its paper says that all methods were tuned on CIFAR-10 with ResNet-18 "
NOTHING = "it has no accuracy of a method that its paper tunes (appendix C.2)"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("fedlda/table1", f"cannot be tuned, because {FEDLDA}"),
        ("fedlda/fig1b", f"cannot be tuned, because {FEDLDA}"),
        ("own/table1", "cannot be tuned, because it is a table of our own, "),
        ("pfedfda/table5", f"has nothing to tune, because {NOTHING}"),
        ("pfedfda/table6", f"has nothing to tune, because {NOTHING}"),
        ("fedcr/table4", "has nothing to tune, because it trains nothing"),
        ("fedcr/fig1", "has nothing to tune, because it trains nothing"),
        ("fedpac/hyperparameters", "has nothing to tune, because it trains nothing"),
    ],
)
def test_what_cannot_be_tuned_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(InputError) as refused:
        searches.tuned_recipe(recipes.get(name))
    assert str(refused.value).startswith(f"{name} {sentence}")
    assert str(refused.value).endswith(": leave out tune=True")


def test_a_paper_without_a_word_of_tuning() -> None:
    with pytest.raises(
        InputError, match="cannot be tuned, because its paper says nothing of tuning: leave out tune=True"
    ):
        searches.tuned_recipe(recipes.Recipe("new/table1", "", "results", ()))


def test_every_method_that_is_tuned_here_can_be_built_with_every_value() -> None:
    for paper, texts in TEXTS.items():
        for method, each in texts.items():
            name = {"all": "fedavg", "fedsr_ft": "fedsr"}.get(method, method)
            for option, values in each.items():
                for value in values:
                    if option in methods.get(name).options:
                        assert methods.settle(name, {option: value})[option] == value, paper
