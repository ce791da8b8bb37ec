import dataclasses
import hashlib
import json
import sys
import types

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec, public_functions, split_list
from idiolect.data import Column, Encoding, Source, partitions, shifts
from idiolect.data.partitions.iid import iid


def numbered(rows=400, classes=4):
    """Images that carry their row number in their first two pixels."""
    rng = np.random.default_rng(0)
    x_R = rng.integers(0, 256, (rows, 1, 4, 4)).astype(np.uint8)
    x_R[:, 0, 0, 0], x_R[:, 0, 0, 1] = np.divmod(np.arange(rows), 256)
    y_R = torch.from_numpy(rng.integers(0, classes, rows))
    names = tuple("abcdefgh"[:classes])
    return Source("numbered", torch.from_numpy(x_R), y_R, classes, names, (0.5,), (0.25,), rows * 3 // 4)


def number(x_N):
    return (x_N[:, 0, 0, 0].long() * 256 + x_N[:, 0, 0, 1].long()).tolist()


def build(partition="iid", *shift, clients=5, seed=0, source=None, **more):
    shifts = [Spec.parse(s) for s in shift]
    return data.build(source or numbered(), Spec.parse(partition), shifts, clients, seed, **more)


def rows(d, k):
    return torch.cat([d.train[k], d.test[k]])


def test_rows_follow_their_clients_contiguously():
    source = numbered()
    d = build("dirichlet:min_rows=10", source=source)
    original = torch.tensor(number(d.x_R))
    assert torch.equal(d.x_R, source.x_R[original])
    assert torch.equal(d.y_R, source.y_R[original])
    assert len(set(original.tolist())) == len(d.x_R) == 400
    assert torch.equal(torch.cat([rows(d, k) for k in range(5)]), torch.arange(400))
    assert d.clients == 5
    assert d.shape == (1, 4, 4)
    assert (d.name, d.classes, d.class_names, d.mean, d.std) == ("numbered", 4, tuple("abcd"), (0.5,), (0.25,))
    assert d.shifts == ("",) * 5
    assert {t.dtype for t in (d.y_R, *d.train, *d.test)} == {torch.int64}


def test_only_owned_rows_are_kept_once():
    d = build("dominant:test_size=8", clients=3, sizes=[20])
    assert d.x_R.shape == (84, 1, 4, 4)
    assert d.x_R.untyped_storage().nbytes() == 84 * 16


def test_the_partition_draws_from_the_seed_alone():
    d = build("iid", seed=3)
    split = iid(numbered(), 5, keys.generator(3, "partition"))
    assert number(d.x_R[d.train[2]]) == split.train[2].tolist()
    assert number(d.x_R[d.test[2]]) == split.test[2].tolist()


@pytest.mark.parametrize(
    ("clients", "members"),
    [
        ("all", {0, 1, 2, 3, 4}),
        ("half", {0, 1, 2}),
        ("1-3", {1, 2, 3}),
        ("0-1+4", {0, 1, 4}),
        (" 0 + 2 - 3 ", {0, 2, 3}),
        ("4", {4}),
        (4, {4}),
        ([0, 4], {0, 4}),
    ],
)
def test_a_shift_reaches_its_clients_training_and_test_rows_alike(clients, members):
    source, plain = numbered(), build()
    spec = Spec(name="invert", options={"clients": clients})
    d = data.build(source, Spec.parse("iid"), [spec], 5, 0)
    for k in range(5):
        want = 255 - plain.x_R[rows(plain, k)] if k in members else plain.x_R[rows(plain, k)]
        assert torch.equal(d.x_R[rows(d, k)], want)
        assert d.shifts[k] == ("invert" if k in members else "")
    assert torch.equal(source.x_R, numbered().x_R)


def test_shifts_compose_in_the_order_given():
    source = numbered()
    source.x_R[:] = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
    d = build("iid", "noise:std=0.3,clients=0", "rotate:clients=0-1", source=source)
    rng = keys.generator(0, "shift", 0, 0)
    block = source.x_R[: len(rows(d, 0))].numpy()
    noisy = shifts.noise(block, np.zeros(len(block), int), None, rng, std=0.3).x_N
    want = np.rot90(noisy, axes=(2, 3))
    assert (d.x_R[rows(d, 0)].numpy() == want).all()
    assert d.shifts == ("noise:std=0.3,rotate:degrees=90", "rotate:degrees=90", "", "", "")
    assert split_list(d.shifts[0]) == ["noise:std=0.3", "rotate:degrees=90"]


def test_the_written_shift_reads_back_as_the_shift():
    d = build("iid", "rotate:degrees=12.5,clients=0", "noise:clients=0")
    again = build("iid", *(s + ",clients=0" for s in split_list(d.shifts[0])))
    assert d.shifts[0] == "rotate:degrees=12.5,noise:std=0.1"
    assert torch.equal(d.x_R, again.x_R)


def test_a_clients_shift_does_not_depend_on_the_others():
    alone, everyone = build("iid", "noise:clients=3"), build("iid", "noise")
    assert torch.equal(alone.x_R[rows(alone, 3)], everyone.x_R[rows(everyone, 3)])
    source = numbered()
    source.x_R.fill_(128)
    d = build("iid", "noise", source=source)
    assert not torch.equal(d.x_R[rows(d, 0)], d.x_R[rows(d, 1)])
    other = build("iid", "noise", source=source, seed=1)
    assert not torch.equal(d.x_R, other.x_R)


# --- without test samples


@pytest.mark.parametrize(("clients", "share"), [(5, 0.2), (3, 0.5), (10, 0.1)])
def test_without_test_samples_all_else_is_the_same(clients, share):
    d = data.build(numbered(), Spec.parse("iid"), [], clients, 0, validation=share)
    blind = d.without_test()
    assert [len(rows_N) for rows_N in blind.test] == [0] * clients
    assert not blind.has_test
    assert d.has_test
    assert blind.x_R is d.x_R
    for k in range(clients):
        assert torch.equal(blind.train[k], d.train[k])
        assert torch.equal(blind.validation[k], d.validation[k])
        assert torch.equal(blind.measured(k), d.validation[k])
        assert not set(blind.measured(k).tolist()) & set(d.test[k].tolist())
    about = data.manifest(blind)
    assert all(sum(c["test"]) == 0 < sum(c["validation"]) for c in about["clients"])
    assert about["hash"] != data.manifest(d)["hash"]


def test_without_test_samples_there_must_be_validation_samples():
    with pytest.raises(InputError, match=r"nothing to measure.* give protocol='?validation=0\.2"):
        build("iid").without_test()


# --- manifest


def test_manifest_counts_what_is_there():
    d = build("dirichlet:alpha=0.3,min_rows=5", "invert:clients=half")
    about = data.manifest(d)
    assert json.loads(json.dumps(about)) == about
    assert set(about) == {
        "dataset", "classes", "class_names", "official_split", "clients", "normalisation", "hash",
    }  # fmt: skip
    assert about["official_split"] is False, (
        "100 of its samples are an official test split, which dirichlet divides again"
    )
    assert about["dataset"] == "numbered"
    source = numbered()
    for k, client in enumerate(about["clients"]):
        inverted = d.x_R[rows(d, k)] if k > 2 else 255 - d.x_R[rows(d, k)]
        y = source.y_R[number(inverted)].numpy()
        cut = len(d.train[k])
        assert client == {
            "id": k,
            "train": np.bincount(y[:cut], minlength=4).tolist(),
            "test": np.bincount(y[cut:], minlength=4).tolist(),
            "shift": "invert" if k <= 2 else "",
        }


def test_hash_is_repeatable_and_sees_every_part():
    d = build("dirichlet:min_rows=5")
    known = data.manifest(d)["hash"]
    assert len(known) == len(hashlib.sha256().hexdigest())
    assert data.manifest(build("dirichlet:min_rows=5"))["hash"] == known
    x_R, y_R = d.x_R.clone(), d.y_R.clone()
    x_R[7, 0, 3, 3] ^= 1
    y_R[7] = (y_R[7] + 1) % 4
    moved = (d.train[0][:-1], *d.train[1:]), (torch.cat([d.train[0][-1:], d.test[0]]), *d.test[1:])
    others = [
        build("dirichlet:min_rows=5", seed=1),
        build("dirichlet:min_rows=5", "invert:clients=4"),
        dataclasses.replace(d, x_R=x_R),
        dataclasses.replace(d, y_R=y_R),
        dataclasses.replace(d, train=moved[0], test=moved[1]),
    ]
    assert len({known, *(data.manifest(other)["hash"] for other in others)}) == 6


# --- listings


def test_listings_hold_the_public_functions_of_their_modules():
    assert set(data.PARTITIONS) == {
        "iid", "dirichlet", "dirichlet_official", "dirichlet_fixed", "classes", "dominant", "pathological",
        "natural", "domains",
    }  # fmt: skip
    assert set(data.SHIFTS) == {"rotate", "permute_labels", "shuffle_labels", "corrupt", "invert", "noise", "translate"}
    module = types.ModuleType("mine")
    exec("from json import dumps\ndef mine(): ...\ndef _helper(): ...\nclass No: ...", module.__dict__)
    assert list(public_functions(module)) == ["mine"]


# --- errors


@pytest.mark.parametrize(
    ("partition", "shift", "clients", "match"),
    [
        ("dirichlett", None, 5, r"unknown partition 'dirichlett'; did you mean 'dirichlet'\?"),
        ("iid", "rotation", 5, r"unknown shift 'rotation'; did you mean 'rotate'\?"),
        ("iid:alpha=1", None, 5, "partition iid has no option 'alpha'; known: test_fraction"),
        ("dirichlet:alpha=0", None, 5, "partition dirichlet: alpha=0 is not valid: .*greater than 0"),
        ("dirichlet:alpha=-1", None, 5, "alpha=-1 is not valid"),
        ("dirichlet:alpha=.inf", None, 5, "alpha=inf is not valid: .*finite number"),
        ("dirichlet:alpha=.nan", None, 5, "alpha=nan is not valid"),
        ("dirichlet:alpha=much", None, 5, "alpha='much' is not valid: .*number"),
        ("dirichlet:min_rows=1", None, 5, "min_rows=1 is not valid: .*greater than or equal to 2"),
        ("dirichlet:test_fraction=1", None, 5, "test_fraction=1 is not valid: .*less than 1"),
        ("iid:test_fraction=0", None, 5, "test_fraction=0 is not valid: .*greater than 0"),
        ("dominant:share=101", None, 5, "share=101 is not valid: .*less than or equal to 100"),
        ("dominant:test_size=0", None, 5, "test_size=0 is not valid: .*greater than or equal to 1"),
        ("dominant:test_size=2.5", None, 5, "test_size=2.5 is not valid: .*integer"),
        ("iid", None, 0, "clients=0 is not possible: give at least 1"),
        ("iid", None, 201, "400 samples are enough for at most 200 clients"),
        ("iid", "rotate:degree=3", 5, r"no option 'degree'; did you mean 'degrees'\? Known: degrees, groups, clients"),
        ("iid", "rotate:degrees=.inf", 5, "shift rotate: degrees=inf is not valid: .*finite"),
        ("iid", "noise:std=1.1", 5, "shift noise: std=1.1 is not valid: .*less than or equal to 1"),
        ("iid", "invert:clients=5", 5, "shift invert: there is no client 5; the 5 clients are 0 to 4"),
        ("iid", "invert:clients=0-99999999999999", 5, "there is no client 99999999999999; the 5 clients are 0 to 4"),
        ("iid", "invert:clients=most", 5, r"cannot read clients='most'; write all, half, 0-4, 0-4\+8 or a list"),
        ("iid", "invert:clients=3-1", 5, "cannot read clients='3-1'; write"),
        ("iid", "invert:clients=-1", 5, "cannot read clients='-1'; write"),
        ("iid", "invert:clients=1+", 5, "cannot read clients=.*; write"),
        ("iid", "invert:clients=true", 5, "cannot read clients='[Tt]rue'; write"),
    ],
)
def test_every_wrong_request_says_the_mend(partition, shift, clients, match):
    with pytest.raises(InputError, match=match):
        build(partition, *([shift] if shift else []), clients=clients)


@pytest.mark.parametrize(
    ("members", "match"),
    [
        ([0, 7], "there is no client 7; the 5 clients are 0 to 4"),
        ([-1], "there is no client -1"),
        ([], r"cannot read clients='\[\]'; write"),
        ([0.5], r"cannot read clients='\[0\.5\]'; write"),
    ],
)
def test_wrong_lists_of_clients(members, match):
    with pytest.raises(InputError, match=match):
        data.build(numbered(), Spec(name="iid"), [Spec(name="invert", options={"clients": members})], 5, 0)


@pytest.mark.parametrize(
    ("train", "test", "match"),
    [
        ([[0], [1]], [[2], [2]], "uses a sample twice or one that does not exist: draw without replacement"),
        ([[0], [1]], [[2], [400]], "uses a sample twice or one that does not exist"),
        ([[0], [1]], [[2], [-1]], "uses a sample twice or one that does not exist"),
        ([[0], [1]], [[2], []], "client 1 has no test samples; take fewer clients"),
        ([[], [1]], [[2], [3]], "client 0 has no training samples; take fewer clients"),
        ([[0]], [[2]], "made 1 clients of 2: return one entry per client"),
    ],
)
def test_a_partition_that_breaks_its_promise_is_found(monkeypatch, train, test, match):
    def mine(source, clients, rng):
        return partitions.Split(*([np.array(rows, np.int64) for rows in part] for part in (train, test)))

    monkeypatch.setitem(data.PARTITIONS, "mine", mine)
    with pytest.raises(InputError, match=f"partition mine.*{match}"):
        build("mine", clients=2)


# --- sizes and scarce rows


def test_sizes_reach_a_partition_that_takes_them():
    d = build("dominant:test_size=8", clients=12, sizes=[10, 20])
    sizes = [len(rows) for rows in d.train]
    assert set(sizes) == {10, 20}
    assert [len(rows) for rows in d.test] == [8] * 12
    assert sizes != [len(rows) for rows in build("dominant:test_size=8", clients=12, sizes=[10, 20], seed=1).train]


def test_other_partitions_are_cut_to_size():
    whole, d = build("iid"), build("iid", sizes=[5, 30])
    sizes = [len(rows) for rows in d.train]
    assert set(sizes) == {5, 30}
    for k in range(5):
        assert number(d.x_R[d.train[k]]) == number(whole.x_R[whole.train[k]])[: sizes[k]]
        assert number(d.x_R[d.test[k]]) == number(whole.x_R[whole.test[k]])


def test_sizes_that_a_client_lacks_are_said_with_what_fits():
    sizes = [len(rows) for rows in build("dirichlet:min_rows=5").train]
    with pytest.raises(
        InputError, match=f"has {min(sizes)} training samples, not 500; the smallest client has"
    ) as caught:
        build("dirichlet:min_rows=5", sizes=[500])
    assert f"client {np.argmin(sizes)} of partition dirichlet" in str(caught.value)
    build("dirichlet:min_rows=5", sizes=[min(sizes)])


def test_sizes_do_not_get_lost_where_the_data_say_how_many_clients(monkeypatch):
    def mine(source, clients: int | None, rng, sizes_K=None):
        whole = iid(source, clients or 4, rng)
        return (
            whole
            if sizes_K is None
            else whole._replace(train=[r[:n] for r, n in zip(whole.train, sizes_K, strict=True)])
        )

    monkeypatch.setitem(data.PARTITIONS, "mine", mine)
    for clients in (None, 4):
        assert [len(rows) for rows in build("mine", clients=clients, sizes=[7]).train] == [7] * 4


@pytest.mark.parametrize(("keep", "count"), [(0.25, 16), (0.5, 32), (1.0, 64), (10, 10), (1, 1), (0.001, 1)])
def test_scarce_training_rows_are_nested_and_test_rows_stay(keep, count):
    whole, d, half = build("iid"), build("iid", keep=keep), build("iid", keep=0.5)
    for k in range(5):
        kept = set(number(d.x_R[d.train[k]]))
        assert len(kept) == count
        assert kept <= set(number(whole.x_R[whole.train[k]]))
        assert count > 32 or kept <= set(number(half.x_R[half.train[k]]))
        assert number(d.x_R[d.test[k]]) == number(whole.x_R[whole.test[k]])


def test_rows_are_kept_of_those_that_sizes_leave():
    d = build("iid", sizes=[40], keep=0.5)
    assert [len(rows) for rows in d.train] == [20] * 5
    with pytest.raises(
        InputError, match=r"keep=65 is more than the 64 training samples of client 0; keep=64 is the most"
    ):
        build("iid", keep=65)


# --- names, import paths, other people's partitioners


def hospitals(rows=400, names=("City", "Mercy", "North", "South")):
    code_R = np.random.default_rng(1).permutation(np.arange(rows) % len(names))
    return dataclasses.replace(
        numbered(rows), columns={"hospital": Column(code_R, names)}, client_column="hospital", mean=None, std=None
    )


def test_names_come_from_the_column_and_so_does_their_number():
    source = hospitals()
    d = build("natural", source=source, clients=None)
    assert d.names == ("City", "Mercy", "North", "South")
    for k in range(4):
        assert set(number(d.x_R[rows(d, k)])) == set(np.flatnonzero(source.columns["hospital"].code_R == k).tolist())
    assert [c["name"] for c in data.manifest(d)["clients"]] == list(d.names)
    assert build("iid").names == ()


def test_a_partition_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "my_partition.py").write_text(
        "import numpy as np\n"
        "from pydantic import PositiveInt\n"
        "from idiolect.data.partitions import Split\n"
        "def halves(source, clients, rng, *, step: PositiveInt = 1):\n"
        "    rows = np.arange(8 * clients, dtype=np.int64).reshape(clients, 8)[:, ::step]\n"
        "    return Split(list(rows[:, :-1]), list(rows[:, -1:]))\n"
        "def broken(source): return 1 / 0\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    d = build("my_partition.halves:step=2", clients=3)
    assert [number(d.x_R[rows(d, k)]) for k in range(3)] == [list(range(8 * k, 8 * k + 8, 2)) for k in range(3)]
    assert d.clients == 3
    for spec, match in {
        "my_partition.halves:stp=2": "partition my_partition.halves has no option 'stp'; did you mean 'step'",
        "my_partition.halves:step=0": "partition my_partition.halves: step=0 is not valid",
        "my_partition.halvs": "my_partition has no 'halvs'; did you mean 'halves'",
        "my_partition.number": "this is not a partition; give a function",
        "my_partitions.halves": "there is no module 'my_partitions'",
    }.items():
        with pytest.raises(InputError, match=match):
            build(spec, clients=3)


class ByModulo:
    """As much of a flwr-datasets partitioner as is asked for."""

    def __init__(self, num_partitions, every=1):
        self.num_partitions, self._every, self.dataset = num_partitions, every, None

    def load_partition(self, partition_id):
        return self.dataset.select(range(partition_id, len(self.dataset), self.num_partitions * self._every))


class ByHospital(ByModulo):
    """One that makes as many clients as the data have values."""

    def __init__(self, column):
        super().__init__(4)
        self._column = column

    def load_partition(self, partition_id):
        value = sorted(set(self.dataset[self._column]))[partition_id]
        return self.dataset.filter(lambda row: row[self._column] == value)


@pytest.fixture
def theirs(monkeypatch):
    """A module ``theirs`` with partitioners."""
    module = types.ModuleType("theirs")
    module.ByModulo, module.ByHospital = ByModulo, ByHospital
    monkeypatch.setitem(sys.modules, "theirs", module)


def test_a_partitioner_of_flower_as_object_and_as_path(theirs):
    given = ByModulo(4)
    d = data.build(numbered(), given, [], None, 0)
    by_path = data.build(numbered(), Spec.parse("theirs.ByModulo:test_fraction=0.5,every=2"), [], 4, 0)
    for k in range(4):
        assert sorted(number(d.x_R[rows(d, k)])) == list(range(k, 400, 4))
        assert sorted(number(by_path.x_R[rows(by_path, k)])) == list(range(k, 400, 8))
        assert (len(d.train[k]), len(d.test[k])) == (80, 20)
        assert (len(by_path.train[k]), len(by_path.test[k])) == (25, 25)
    assert data.build(numbered(), Spec.parse("theirs.ByModulo"), [], None, 0).clients == 20
    with pytest.raises(InputError, match="ByModulo makes 4 partitions, but clients=5: take clients=4"):
        data.build(numbered(), given, [], 5, 0)
    with pytest.raises(InputError, match=r"theirs.ByModulo has no option 'evry'; did you mean 'every'"):
        build("theirs.ByModulo:evry=2")


def test_who_says_how_many_clients(theirs):
    follows = {
        "iid": False, "natural": True, "domains": False, "dirichlet": False, "theirs.ByModulo": False,
        "theirs.ByModulo:num_partitions=3": True, "theirs.ByHospital:column=hospital": True,
    }  # fmt: skip
    for text, want in follows.items():
        assert data.follows_a_column(Spec.parse(text)) is want, text
    assert build("theirs.ByModulo:num_partitions=3", clients=None).clients == 3
    assert build("theirs.ByHospital:column=hospital", clients=None, source=hospitals()).clients == 4


def test_rows_may_stand_twice_only_where_the_split_says_so(monkeypatch):
    def mine(source, clients, rng, *, shared: bool = False):
        hands = [np.arange(5, dtype=np.int64)] * clients
        return partitions.Split(hands, [hand + 5 for hand in hands], shared=shared)

    monkeypatch.setitem(data.PARTITIONS, "mine", mine)
    d = build("mine:shared=true", clients=3)
    assert [number(d.x_R[rows(d, k)]) for k in range(3)] == [list(range(10))] * 3
    assert len(d.x_R) == 30
    with pytest.raises(InputError, match="partition mine uses a sample twice"):
        build("mine", clients=3)


def test_the_released_slices_of_fedpac_share_rows():
    d = build("dominant:official_quirks=true,test_size=8", clients=20, sizes=[60])
    found = np.concatenate([number(d.x_R[rows(d, k)]) for k in range(20)])
    assert len(found) == 20 * 68
    assert len(np.unique(found)) <= 400


# --- normalisation


def table(rows=240, scaled=(True, False, True, True)):
    """Numbers, a flag, numbers of which a third are missing, and a constant."""
    rng = np.random.default_rng(2)
    x_R = np.stack(
        [rng.normal(50, 9, rows), rng.integers(0, 2, rows), rng.normal(-3, 0.1, rows), np.full(rows, 7.1)], 1
    )
    x_R[rng.random(rows) < 0.3, 2] = np.nan
    y_R = torch.from_numpy(np.arange(rows) % 3)
    x_R = torch.from_numpy(x_R.astype(np.float32))
    columns = tuple(Encoding(f"column {k}", scaled=one) for k, one in enumerate(scaled))
    return Source("table", x_R, y_R, 3, tuple("abc"), None, None, rows, encodings=columns)


@pytest.mark.parametrize("normalise", ["reference", "training"])
def test_numbers_are_normalised_by_the_training_rows_of_those_who_train(normalise):
    d = build("dirichlet:alpha=0.3,min_rows=9", source=table(), new_clients=2, normalise=normalise)
    assert d.trained == 3
    x_R = d.x_R[torch.cat([*d.train[:3]])].numpy().astype(np.float64)
    mean, std = np.nanmean(x_R, 0), np.nanstd(x_R, 0)
    np.testing.assert_allclose(d.mean, [mean[0], 0, mean[2], mean[3]], rtol=1e-9)
    np.testing.assert_allclose(d.std, [std[0], 1, std[2], 1], rtol=1e-7)
    everybody = d.x_R[torch.cat([*d.train])].numpy()
    assert abs(np.nanmean(everybody[:, 0]) - d.mean[0]) > 1e-3, "the test could not fail"
    assert d.x_R.dtype == torch.float32
    assert bool(torch.isnan(d.x_R).any())


def test_what_nobody_trained_has_ever_seen_changes_nothing():
    source = table()
    source.x_R[:, 2] = float("nan")
    d = build("iid", source=source)
    assert (d.mean[2], d.std[2]) == (0.0, 1.0)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.1, 1000.1, 123456.7, 3e7, 1e-7])
@pytest.mark.parametrize("rows", [40, 6000])
def test_a_constant_feature_is_not_blown_up(value, rows):
    source = table(rows, scaled=())
    source.x_R[:, 3] = value
    d = build("iid", source=source)
    assert d.std[3] == 1.0
    assert d.mean[3] == pytest.approx(np.float32(value), rel=1e-6)


def test_images_are_normalised_in_three_ways():
    source = dataclasses.replace(numbered(), x_R=torch.randint(0, 256, (400, 3, 4, 4), dtype=torch.uint8))
    source = dataclasses.replace(source, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    d = build("iid", "invert:clients=0", source=source)
    assert (d.mean, d.std) == (source.mean, source.std)
    d = build("iid", "invert:clients=0", source=source, normalise="symmetric")
    assert (d.mean, d.std) == ((0.5,) * 3, (0.5,) * 3)
    for normalise, known in (("training", source), ("reference", dataclasses.replace(source, mean=None, std=None))):
        d = build("iid", "invert:clients=0", source=known, normalise=normalise)
        plain = build("iid", source=source)
        x_R = plain.x_R[torch.cat([*plain.train])].numpy() / 255
        np.testing.assert_allclose(d.mean, x_R.mean((0, 2, 3)), rtol=1e-9)
        np.testing.assert_allclose(d.std, x_R.std((0, 2, 3)), rtol=1e-9)
    with pytest.raises(InputError, match="symmetric is for images, and these samples are numbers: take training"):
        build("iid", source=table(), normalise="symmetric")


# --- labels, and shifts on rows that are no images


def test_labels_are_permuted_in_training_and_test_rows():
    plain, d = build("iid"), build("iid", "permute_labels:to=1+2+3+0,clients=1-2")
    assert torch.equal(d.x_R, plain.x_R)
    for k in range(5):
        for mine, theirs in ((d.train, plain.train), (d.test, plain.test)):
            want = (plain.y_R[theirs[k]] + 1) % 4 if k in (1, 2) else plain.y_R[theirs[k]]
            assert torch.equal(d.y_R[mine[k]], want)
    assert d.shifts == ("", *["permute_labels:to=1+2+3+0"] * 2, "", "")


def test_groups_of_permuted_labels_agree_and_differ():
    plain, d = build("iid", clients=6), build("iid", "permute_labels:groups=3", clients=6)
    maps = []
    for k in range(6):
        pairs = set(zip(plain.y_R[rows(plain, k)].tolist(), d.y_R[rows(d, k)].tolist(), strict=True))
        assert len(pairs) == 4, "a permutation"
        maps.append(frozenset(pairs))
    assert maps[:3] == maps[3:]
    assert len(set(maps)) == 3


@pytest.mark.parametrize("shift", ["invert", "rotate:clients=1", "noise", "corrupt:kind=fog"])
def test_a_shift_of_images_is_refused_for_numbers(shift):
    with pytest.raises(
        InputError, match=f"shift {shift.split(':')[0]}.* changes images, and these samples are numbers"
    ):
        build("iid", shift, source=table())


def test_labels_of_numbers_are_permuted_too():
    plain = build("iid", source=table())
    d = build("iid", "permute_labels:to=2+0+1,clients=0", source=table())
    assert torch.equal(d.y_R[rows(d, 0)], (plain.y_R[rows(plain, 0)] + 2) % 3)
    assert torch.equal(d.y_R[rows(d, 1)], plain.y_R[rows(plain, 1)])


# --- what is legal and probably not meant


def said(caplog, **arguments):
    caplog.clear()
    with caplog.at_level("WARNING"):
        build(**arguments)
    lines = [r.getMessage() for r in caplog.records if r.name in ("idiolect.data.federated", "idiolect.data.caveats")]
    return [line for line in lines if not line.startswith("the official test split of")]


def test_a_class_in_nobodys_training_rows_is_said(monkeypatch, caplog):
    source = numbered()
    source.y_R[:] = torch.arange(400) % 3
    source.y_R[395:] = 3

    def mine(source, clients, rng, *, last: bool = True):
        order = np.arange(400, dtype=np.int64) if last else np.arange(400, dtype=np.int64)[::-1]
        return partitions.Split([order[:200], order[200:300]], [order[300:350], order[350:]])

    monkeypatch.setitem(data.PARTITIONS, "mine", mine)
    assert said(caplog, partition="mine", clients=2, source=source) == [
        "no model can learn 'd', which is in test samples but in no client's training samples; take more clients or "
        "samples"
    ]
    assert said(caplog, partition="mine:last=false", clients=2, source=source) == []
    assert said(caplog, partition="iid", source=source) == []


def one_sided():
    """At South there is one class."""
    source = hospitals()
    source.y_R[torch.from_numpy(source.columns["hospital"].code_R == 3)] = 2
    return source


@pytest.mark.parametrize("more", [{}, {"new_clients": 1}, {"new_clients": 1, "new_shifts": [Spec(name="invert")]}])
def test_clients_of_one_class_are_said_once(caplog, more):
    (line,) = said(caplog, partition="natural", clients=None, source=one_sided(), **more)
    assert line.startswith("1 of 4 clients train on only one class (the first: South)")
    assert said(caplog, partition="natural", clients=None, source=hospitals(), **more) == []
    assert said(caplog, partition="iid", source=one_sided()) == []


@pytest.mark.parametrize("more", [{}, {"new_clients": 1}, {"new_clients": 1, "new_shifts": [Spec(name="invert")]}])
def test_rows_at_two_hospitals_are_said(caplog, more):
    source = hospitals()
    code_R = source.columns["hospital"].code_R
    inside, (here, there) = np.flatnonzero(code_R == 2)[:2], (np.flatnonzero(code_R == k)[0] for k in (0, 3))
    source.x_R[inside[0]] = source.x_R[inside[1]]
    assert said(caplog, partition="natural", clients=None, source=source, **more) == [], "twice at one client"
    source.x_R[here] = source.x_R[there]
    (line,) = said(caplog, partition="natural", clients=None, source=source, **more)
    assert line.startswith("2 samples belong to more than one client (the first to City and South)")


@pytest.mark.parametrize(
    ("split", "match"),
    [
        (([[0], [1]], [[2]]), "partition mine made"),
        (([[0], [1]], [[2], [3]], ("a",)), "partition mine returns 1 names for 2 clients"),
        (([], []), "partition mine made 0 clients"),
    ],
)
def test_a_partition_that_says_how_many_clients_there_are_is_held_to_it(monkeypatch, split, match):
    def mine(source, clients: int | None, rng):
        train, test, *names = split
        return partitions.Split([np.array(r) for r in train], [np.array(r) for r in test], *names)

    monkeypatch.setitem(data.PARTITIONS, "mine", mine)
    with pytest.raises(InputError, match=match):
        build("mine", clients=None)


@pytest.mark.thorough
@pytest.mark.data
def test_real_fashion_mnist_in_the_papers_setting(fashion_mnist):
    d = data.build(fashion_mnist, Spec.parse("dominant"), [], 20, 0)
    about = data.manifest(d)["clients"]
    assert about[0]["train"] == [172] * 3 + [12] * 7
    assert about[9]["test"] == [86] + [6] * 7 + [86] * 2
    assert d.x_R.shape == (18000, 1, 28, 28)


# --- what a row looks like, however many are kept; what others write


@pytest.mark.parametrize("keep", [0.5, 13])
def test_images_do_not_change_with_how_many_are_kept(keep):
    whole = build("iid", "noise:std=0.3", "rotate:groups=4")
    some = build("iid", "noise:std=0.3", "rotate:groups=4", keep=keep)
    for k in range(5):
        assert torch.equal(whole.x_R[whole.test[k]], some.x_R[some.test[k]])
        known = {bytes(x.numpy()) for x in whole.x_R[whole.train[k]]}
        kept = [bytes(x.numpy()) for x in some.x_R[some.train[k]]]
        assert len(set(kept)) == len(some.train[k]) < len(whole.train[k])
        assert known.issuperset(kept)


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("raise KeyError('beds')", r"partition wayward.divide fails \(KeyError: 'beds'\): it must return Split"),
        ("import sys; sys.exit(3)", r"fails \(SystemExit: 3\)"),
        ("return 7", "fails .*it must return Split"),
        ("return [[0.5], [1.5]], [[2], [3]]", "sample numbers are whole numbers"),
        ("return [[0], [1]], [[2], [3]]", "made 2 clients of 3: .* or take clients=2"),
    ],
)
def test_a_partition_of_ones_own_that_misbehaves(tmp_path, monkeypatch, body, match):
    (tmp_path / "wayward.py").write_text(f"def divide(source, clients, rng):\n    {body}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wayward", raising=False)
    with pytest.raises(InputError, match=match):
        build("wayward.divide", clients=3)


def test_a_partition_of_ones_own_may_give_plain_lists(tmp_path, monkeypatch):
    (tmp_path / "plain.py").write_text("def divide(source, clients, rng):\n    return [[0, 1], [4]], [[2], [3]]\n")
    monkeypatch.syspath_prepend(tmp_path)
    d = build("plain.divide", clients=2)
    assert [number(d.x_R[rows(d, k)]) for k in range(2)] == [[0, 1, 2], [4, 3]]


def test_rows_at_two_hospitals_are_said_though_one_is_shifted(caplog):
    source = hospitals()
    code_R = source.columns["hospital"].code_R
    a, b = np.flatnonzero(code_R == 0)[:3], np.flatnonzero(code_R == 1)[:3]
    source.x_R[b] = source.x_R[a]
    caplog.clear()
    with caplog.at_level("WARNING"):
        build("natural", "invert:clients=1", source=source, clients=None)
    assert [r.getMessage()[:45] for r in caplog.records] == ["6 samples belong to more than one client (the"]


def test_a_number_that_is_a_name_too_is_said(caplog):
    source = hospitals(names=("1", "2", "3", "4"))
    with caplog.at_level("WARNING"):
        last = build("natural", source=source, clients=None, new_clients="2")
    assert "for the client with the name 2 write 2+" in caplog.text
    assert last.names[-2:] == ("3", "4")
    assert build("natural", source=source, clients=None, new_clients="2+").names == ("1", "3", "4", "2")


@pytest.mark.parametrize("width", [1, 4, 20])
def test_one_mean_and_std_are_for_all_columns(width):
    x_R = torch.arange(60.0).reshape(-1, 1).repeat(1, width)
    columns = tuple(Encoding(f"c{k}") for k in range(width))
    one = Source("t", x_R, torch.arange(60) % 2, 2, ("a", "b"), (3.0,), (2.0,), 60, encodings=columns)
    each = dataclasses.replace(one, mean=(3.0,) * width, std=(2.0,) * width)
    assert build(source=one).mean == (3.0,) * width
    assert data.manifest(build(source=one)) == data.manifest(build(source=each))
    scales = data.manifest(build(source=one))["normalisation"]["columns"]
    assert scales == {f"c{k}": {"mean": 3.0, "std": 2.0} for k in range(width)}
    assert data.manifest(build(source=dataclasses.replace(one, encodings=())))["normalisation"]["mean"] == [3.0] * width


@pytest.mark.parametrize(
    ("mean", "std", "said"),
    [
        ((0.0,) * 3, (1.0,), "t: mean has 3 numbers for 20 features: give one for all, or one for each"),
        ((0.0,), (1.0,) * 19, "t: std has 19 numbers for 20 features"),
        ((), (1.0,), "t: mean has 0 numbers for 20 features"),
        ((0.0,) * 20, None, "t: mean and std belong together: give both, or neither"),
        (None, (1.0,), "t: mean and std belong together"),
        ((0.0,), (0.0,), "t: std has a number that is not possible: give finite numbers above 0"),
        ((float("nan"),), (1.0,), "t: mean has a number that is not possible: give finite numbers"),
    ],
)
def test_a_wrong_mean_or_std_is_said(mean, std, said):
    with pytest.raises(InputError, match=f"^{said}"):
        Source("t", torch.zeros(6, 20), torch.arange(6) % 2, 2, ("a", "b"), mean, std, 6)


def test_images_have_channels():
    pixels = torch.zeros(6, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(InputError, match="t: mean has 2 numbers for 3 channels"):
        Source("t", pixels, torch.arange(6) % 2, 2, ("a", "b"), (0.5,) * 2, (0.5,) * 2, 6)
    grey = Source("t", pixels, torch.arange(6) % 2, 2, ("a", "b"), (0.5,), (0.25,), 6)
    assert data.build(grey, Spec.parse("iid"), [], 1, 0).std == (0.25,) * 3
