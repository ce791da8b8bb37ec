"""Samples that belong together lie on one side of every split, and ordered samples on the two sides of a gap."""

import logging

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.model_selection import GroupShuffleSplit

from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import build
from idiolect.data.custom import from_arrays, from_frame, open_data
from idiolect.data.sides import set_aside


def visits(patients=60, most=8, hospitals=4, wanders=0.0, seed=0):
    """Visits of patients to hospitals; some patients are seen at another one too."""
    rng = np.random.default_rng(seed)
    count = rng.integers(1, most + 1, patients)
    patient = np.repeat(np.arange(patients), count)
    hospital = patient % hospitals
    hospital = np.where(rng.random(len(patient)) < wanders, rng.integers(0, hospitals, len(patient)), hospital)
    return pd.DataFrame({
        "age": rng.normal(50, 10, len(patient)).round(2), "dose": rng.normal(0, 1, len(patient)).round(3),
        "y": rng.integers(0, 3, len(patient)), "hospital": np.array(list("abcd"))[hospital],
        "patient": [f"p{k:03}" for k in patient],
    }).sample(frac=1, random_state=seed).reset_index(drop=True)  # fmt: skip


def parts_of(data):
    """For each kind of samples the groups that are in it, at any client."""
    kinds = {"train": data.train, "test": data.test, "validation": data.validation}
    return {name: set(data.group_R[np.concatenate(list(rows))].tolist()) for name, rows in kinds.items() if rows}


PARTITIONS = (
    "iid", "dirichlet:alpha=0.3,min_rows=2", "dirichlet_fixed:rows=12", "classes:per_client=2",
    "dominant:test_size=5", "pathological:classes_per_group=2,test_size=5", "natural", "natural:stratified=true",
    "domains:inside=iid",
)  # fmt: skip


@pytest.mark.parametrize("partition", PARTITIONS)
@pytest.mark.parametrize("wanders", [0.0, 0.4])
def test_a_group_is_on_one_side_whatever_the_partition(partition, wanders):
    source = from_frame(visits(wanders=wanders), target="y", client_column="hospital", group_column="patient")
    assert source.feature_names == ("age", "dose")
    more = {"sizes": [12]} if partition.startswith(("dominant", "pathological")) else {}
    data = build(source, Spec.parse(partition), clients=4, validation=0.25, **more)
    parts = parts_of(data)
    assert all(parts.values())
    assert sum(map(len, parts.values())) == len(set().union(*parts.values()))
    plain = build(
        from_frame(visits(wanders=wanders).drop(columns="patient"), target="y", client_column="hospital"),
        Spec.parse(partition), clients=4, **more,
    )  # fmt: skip
    for k in range(4):  # the clients have the samples that they had, less where training sizes are limited
        assert len(data.test[k]) >= 1
        assert len(data.train[k]) >= 1
        if not more:
            assert len(data.train[k]) + len(data.test[k]) + len(data.validation[k]) == len(plain.train[k]) + len(
                plain.test[k]
            )


@pytest.mark.parametrize("seed", range(5))
def test_the_share_is_as_near_as_that_of_scikit_learn(seed):
    """GroupShuffleSplit takes a share of the groups; here the numbers of samples are at least as near to the share."""
    rng = np.random.default_rng(seed)
    group_R = np.repeat(np.arange(40), rng.integers(1, 12, 40))
    wanted = 0.2 * len(group_R)
    [is_test] = set_aside([np.arange(len(group_R))], group_R, [wanted], np.random.default_rng(seed))
    theirs = GroupShuffleSplit(200, test_size=0.2, random_state=seed)
    distances = [abs(len(test) - wanted) for _, test in theirs.split(group_R, groups=group_R)]
    assert abs(is_test.sum() - wanted) <= np.median(distances)
    assert not set(group_R[is_test]) & set(group_R[~is_test])


def test_other_seeds_take_other_groups_and_the_same_seed_the_same():
    source = from_frame(visits(), target="y", client_column="hospital", group_column="patient")
    tests = [parts_of(build(source, Spec.parse("natural"), seed=seed))["test"] for seed in (0, 0, 1, 2)]
    assert tests[0] == tests[1]
    assert len(set(map(frozenset, tests))) == 3
    every = [parts_of(build(source, Spec.parse("natural"), seed=seed))["test"] for seed in range(30)]
    assert set().union(*every) == set(range(60))  # each group has its turn


def test_new_clients_and_scarce_ones_keep_groups_together():
    source = from_frame(visits(), target="y", client_column="hospital", group_column="patient")
    data = build(source, Spec.parse("natural"), new_clients="d", keep=0.5, validation=0.3)
    parts = parts_of(data)
    assert sum(map(len, parts.values())) == len(set().union(*parts.values()))
    assert not len(data.validation[3])


def test_large_groups_are_said(caplog):
    frame = visits(most=2)
    frame = pd.concat([frame, frame[frame["hospital"] == "a"].iloc[:1].sample(300, replace=True)], ignore_index=True)
    source = from_frame(frame, target="y", client_column="hospital", group_column="patient")
    with caplog.at_level(logging.WARNING):
        data = build(source, Spec.parse("natural"))
    name = frame["patient"].iloc[-1]
    said = " ".join(record.getMessage() for record in caplog.records)
    rows = int((frame["hospital"] == "a").sum())
    assert f"client 'a', where '{name}' has {int((frame['patient'] == name).sum())} of {rows} samples" in said
    assert len(data.test[0]) + len(data.train[0]) == rows


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            lambda f: f.assign(patient=f["hospital"]),
            {},
            r"client 'a' has only one group of 'patient'.*\(3 more are so\)",
        ),
        (
            lambda f: f[(f["hospital"] != "b") | (f["patient"] == "p001")],
            {},
            "client 'b' has only one group of 'patient'",
        ),
        (lambda f: f, {"group_column": "hospital"}, "'hospital' is in two"),
        (lambda f: f, {"group_column": "patients"}, "group_column: table has no column 'patients'; did you mean 'pat"),
        (
            lambda f: f.assign(patient=f["patient"].mask(f.index == 3)),
            {},
            "group_column 'patient' of table is missing in 1",
        ),
    ],
)
def test_groups_that_cannot_be_divided_are_refused(change, options, message):
    frame, roles = change(visits(most=9)), {"target": "y", "client_column": "hospital", "group_column": "patient"}

    def divide():
        build(from_frame(frame, **(roles | options)), Spec.parse("natural"))

    with pytest.raises(InputError, match=message):
        divide()


def test_a_group_in_both_official_splits_is_refused(tmp_path):
    frame = visits()
    train, test = frame[frame["patient"] < "p040"], frame[frame["patient"] >= "p040"]
    kept = from_frame(train, test=test, target="y", client_column="hospital", group_column="patient")
    assert build(kept, Spec.parse("natural")).official_split
    both = from_frame(
        train, test=pd.concat([test, train[:1]]), target="y", client_column="hospital", group_column="patient"
    )
    with pytest.raises(
        InputError, match=f"1 groups of 'patient' are in both .*the first is '{train['patient'].iloc[0]}'"
    ):
        build(both, Spec.parse("natural"))
    again = build(both, Spec.parse("natural:official_split=false"))
    assert not set.intersection(*parts_of(again).values())


def test_groups_of_files_arrays_and_images(tmp_path):
    frame = visits()
    frame.to_csv(tmp_path / "t.csv", index=False)
    from_file = open_data(tmp_path / "t.csv", target="y", client_column="hospital", group_column="patient")
    arrays = from_arrays(
        frame[["age", "dose"]].to_numpy(), frame["y"], clients=frame["hospital"], groups=frame["patient"]
    )
    for source, name in ((from_file, "patient"), (arrays, "group")):
        assert source.group_column == name
        assert source.columns[name].names == tuple(sorted(frame["patient"].unique()))
        data = build(source, Spec.parse("natural"))
        assert not set.intersection(*parts_of(data).values())
    with pytest.raises(InputError, match="groups has 3 values for"):
        from_arrays(frame[["age"]].to_numpy(), frame["y"], groups=[1, 2, 3])


@pytest.mark.parametrize("name", ["patient", "Subject ID", "reviewer", "user"])
def test_a_column_of_persons_is_said(name, caplog):
    frame = visits(patients=40).rename(columns={"patient": name})
    from_frame(frame, target="y", client_column="hospital")
    assert f"column {name!r} seems to say whose samples are which" in caplog.text
    assert f"give group_column={name!r}" in caplog.text
    caplog.clear()
    from_frame(frame, target="y", client_column="hospital", group_column=name)
    assert "seems to say" not in caplog.text


# --- in order


def windows(clients=3, rows=50):
    """Windows of some phones one after another: x is the time."""
    time = np.tile(np.arange(rows, dtype=np.float64), clients)
    return from_arrays(time[:, None], np.arange(clients * rows) % 2, clients=np.repeat(list("abc")[:clients], rows))


@pytest.mark.parametrize(("gap", "validation"), [(0, 0.0), (5, 0.0), (0, 0.25), (3, 0.25)])
def test_the_last_samples_are_for_tests_after_a_gap(gap, validation):
    data = build(windows(), Spec.parse("natural"), split=Spec.parse(f"ordered:gap={gap}"), validation=validation)
    for k in range(3):
        train, test = data.x_R[data.train[k], 0].tolist(), data.x_R[data.test[k], 0].tolist()
        assert test == list(range(40, 50))
        end = 40 - gap
        if validation:
            held = round(0.25 * end)
            assert data.x_R[data.validation[k], 0].tolist() == list(range(end - held, end))
            end = end - held - gap
        assert train == list(range(end))


@pytest.mark.parametrize(
    ("split", "partition", "message"),
    [
        ("ordered:gap=45", "natural", "split ordered: client 'a' has 50 samples, of which 10 are set aside and gap=45"),
        ("ordered:gap=-1", "natural", "split ordered: gap=-1 is not valid"),
        ("sorted", "natural", "unknown split 'sorted'"),
        ("ordered:size=3", "natural", "split ordered has no option 'size'"),
    ],
)
def test_orders_that_are_not_possible_are_refused(split, partition, message):
    with pytest.raises(InputError, match=message):
        build(windows(), Spec.parse(partition), split=Spec.parse(split))


def test_order_and_groups_or_official_splits_do_not_go_together(caplog):
    source = from_frame(visits(), target="y", client_column="hospital", group_column="patient")
    with pytest.raises(InputError, match="do not go together"):
        build(source, Spec.parse("natural"), split=Spec.parse("ordered"))
    frame = visits().drop(columns="patient")
    official = from_frame(frame[:100], test=frame[100:], target="y", client_column="hospital")
    with pytest.raises(InputError, match="split=ordered is not possible, because the official test split"):
        build(official, Spec.parse("natural"), split=Spec.parse("ordered"))
    build(windows(), Spec.parse("iid"), clients=3, split=Spec.parse("ordered"))
    assert "clients are drawn from all rows" in caplog.text


def test_the_phones_in_order(natural):
    """Windows of one phone's user follow each other: those between its training and its test samples are in neither."""
    path = natural("wisdm.arff")
    how = {"header": "none", "target": "46", "client_column": "2"}
    rows = [line.split(",") for line in path.read_text().split()]
    source = open_data(path, drop="1", **how)
    data = build(source, Spec.parse("natural"), split=Spec.parse("ordered:gap=2"))
    for k, name in enumerate(data.names):
        own = [float(row[2]) for row in rows if row[1] == name]
        count = max(1, round(0.2 * len(own)))
        column = source.feature_names.index("3")
        np.testing.assert_allclose(data.x_R[data.test[k], column], own[-count:], rtol=1e-6)
        np.testing.assert_allclose(data.x_R[data.train[k], column], own[: len(own) - count - 2], rtol=1e-6)


# --- the last of each class


def runs(lengths, seed=0):
    """Samples of one client, class after class: ``lengths`` are (class, samples)."""
    return np.concatenate([np.full(count, label) for label, count in lengths])


PHONES = {
    "one run each": [[(0, 20), (1, 30), (2, 10)]] * 2,
    "a class in two runs": [[(1, 12), (0, 20), (1, 18)], [(0, 15), (2, 15), (0, 10), (2, 10)]],
    "a class of three samples": [[(0, 40), (1, 3)], [(2, 25), (0, 25)]],
    "classes in turn": [[(0, 1), (1, 1)] * 20, [(0, 1), (1, 1), (2, 1)] * 10],
}


@pytest.mark.parametrize("validation", [0.0, 0.25])
@pytest.mark.parametrize("gap", [0, 1, 3])
@pytest.mark.parametrize("phones", PHONES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_the_last_samples_of_each_class_are_for_tests(phones, gap, validation, interleaved):
    labels = [runs(lengths) for lengths in PHONES[phones]]
    client = np.repeat(range(len(labels)), [len(y) for y in labels])
    time = np.concatenate([np.arange(len(y)) for y in labels])
    order = np.lexsort((client, time)) if interleaved else np.arange(len(client))
    y, client, time = np.concatenate(labels)[order], client[order], time[order]
    source = from_arrays(time[:, None].astype(np.float64), y, clients=client)
    data = build(
        source, Spec.parse("natural"), validation=validation, split=Spec.parse(f"ordered:gap={gap},each_class=true")
    )
    for k, own in enumerate(labels):
        times = [set(data.x_R[rows[k], 0].int().tolist()) for rows in (data.train, data.test, data.validation) if rows]
        held, before = times[1:], set(range(len(own)))
        for part in held:  # the tests are taken from all, the validation samples from what is left for training
            for label in np.unique(own):
                of_class = sorted(t for t in before if own[t] == label)
                mine = sorted(t for t in part if own[t] == label)
                assert mine == of_class[len(of_class) - len(mine) :]
                share = 0.25 if len(held) > 1 and part is held[1] else 0.2
                if len(of_class) > gap + 1:
                    assert abs(len(mine) - share * len(of_class)) < 1 + share * 3 * (gap + 1)
            before = {t for t in before if t not in part and min((abs(t - s) for s in part), default=99) > gap}
        assert times[0] == before  # nothing else is left out
        assert times[0]
    if phones != "a class of three samples":
        assert all(set(data.y_R[data.test[k]].tolist()) == set(own.tolist()) for k, own in enumerate(labels))


@pytest.mark.parametrize("partition", ["dirichlet_fixed:alpha=1.0", "dominant:test_size=5"])
@pytest.mark.parametrize("groups", [10, 18])
def test_sizes_are_the_most_that_a_client_of_groups_trains_on(partition, groups):
    rng = np.random.default_rng(0)
    patient = np.arange(4000) % groups
    frame = pd.DataFrame({"x": rng.normal(size=4000), "y": rng.integers(0, 2, 4000), "patient": patient})
    source = from_frame(frame, target="y", group_column="patient")
    for seed in range(4):
        data = build(source, Spec.parse(partition), clients=4, sizes=[100], seed=seed)
        assert max(map(len, data.train)) <= 100


def test_sizes_and_scarce_clients_keep_classes_in_order():
    labels = runs([(0, 20), (1, 30)])
    source = from_arrays(np.arange(100.0)[:, None], np.tile(labels, 2), clients=np.repeat(["a", "b"], 50))
    split = Spec.parse("ordered:each_class=true,gap=2")
    few = build(source, Spec.parse("natural"), split=split, sizes=[10])
    assert few.x_R[few.train[0], 0].tolist() == [0, 1, 2, 3, 22, 23, 24, 25, 26, 27]  # 20 and 21 follow test samples
    kept = build(source, Spec.parse("natural"), split=split, keep=10, validation=0.2)
    assert len(kept.train[0]) + len(kept.validation[0]) <= 10
    new = build(source, Spec.parse("natural"), split=split, new_clients="a")
    assert new.names == ("b", "a")
    assert (new.x_R[new.test[0], 0] >= 50).all()


@pytest.mark.parametrize(
    ("lengths", "split", "message"),
    [
        ([(0, 3), (1, 3)], "ordered:gap=2,each_class=true", "'a' has 6 samples, and no class has more than the 3 that"),
        ([(0, 1), (1, 1)] * 4, "ordered:gap=3,each_class=true", "and no class has more than the 4 that it keeps"),
        ([(0, 1), (1, 1)] * 6, "ordered:gap=5,each_class=true", "and no class has more than the 6 that it keeps"),
        ([(0, 5), (1, 5)], "ordered:each_class=perhaps", "split ordered: each_class='perhaps' is not valid"),
    ],
)
def test_classes_that_are_too_small_for_the_gap_are_refused(lengths, split, message):
    y = runs(lengths)
    source = from_arrays(np.arange(len(y))[:, None].astype(np.float64), y, clients=np.repeat("a", len(y)))
    with pytest.raises(InputError, match=message):
        build(source, Spec.parse("natural"), split=Spec.parse(split))


@pytest.mark.parametrize("target", ["score", "price", "days"])
def test_numbers_have_no_classes_to_be_in_order_of(target):
    frame = pd.DataFrame({"x": np.arange(40.0), target: np.linspace(0, 1, 40) ** 2, "at": list("ab") * 20})
    source = from_frame(frame, target=target, client_column="at", task="regression")
    with pytest.raises(InputError, match="divides classes, and this target is a number: leave each_class out"):
        build(source, Spec.parse("natural"), split=Spec.parse("ordered:each_class=true"))
    assert len(build(source, Spec.parse("natural"), split=Spec.parse("ordered")).test[0]) == 4


def test_the_last_windows_of_each_activity_of_the_phones(natural):
    """Nearly every test sample's activity is one that its phone trains on, unlike with the last windows of all."""
    how = {"header": "none", "target": "46", "client_column": "2", "drop": "1"}
    source = open_data(natural("wisdm.arff"), **how)
    unknown = {}
    for split in ("ordered:gap=2", "ordered:gap=2,each_class=true"):
        data = build(source, Spec.parse("natural"), split=Spec.parse(split))
        unknown[split] = sum(
            int((~torch.isin(data.y_R[data.test[k]], data.y_R[data.train[k]])).sum()) for k in range(data.clients)
        )
    assert unknown["ordered:gap=2"] > 500
    assert unknown["ordered:gap=2,each_class=true"] <= 2  # all of whose windows stand beside another activity's tests
