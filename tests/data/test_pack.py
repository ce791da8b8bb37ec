import dataclasses
import hashlib
import json
import types

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.data import pack, partitions, shifts
from idiolect.data.sources import Source
from idiolect.errors import InputError
from idiolect.spec import Spec, split_list


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


def build(partition="iid", *shift, clients=5, seed=0, source=None):
    return data.build(source or numbered(), Spec.parse(partition), [Spec.parse(s) for s in shift], clients, seed)


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
    d = build("dominant:train_size=20,test_size=8", clients=3)
    assert d.x_R.shape == (84, 1, 4, 4)
    assert d.x_R.untyped_storage().nbytes() == 84 * 16


def test_the_partition_draws_from_the_seed_alone():
    d = build("iid", seed=3)
    split = partitions.iid(numbered(), 5, pack.keys.generator(3, "partition"))
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
    d = build("iid", "noise:std=0.3,clients=0", "rotation:clients=0-1", source=source)
    rng = pack.keys.generator(0, "shift", 0, 0)
    block = source.x_R[: len(rows(d, 0))].numpy()
    want = np.rot90(shifts.noise(block, rng, std=0.3), axes=(2, 3))
    assert (d.x_R[rows(d, 0)].numpy() == want).all()
    assert d.shifts == ("noise:std=0.3,rotation:degrees=90", "rotation:degrees=90", "", "", "")
    assert split_list(d.shifts[0]) == ["noise:std=0.3", "rotation:degrees=90"]


def test_the_written_shift_reads_back_as_the_shift():
    d = build("iid", "rotation:degrees=12.5,clients=0", "noise:clients=0")
    again = build("iid", *(s + ",clients=0" for s in split_list(d.shifts[0])))
    assert d.shifts[0] == "rotation:degrees=12.5,noise:std=0.1"
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


# --- manifest


def test_manifest_counts_what_is_there():
    d = build("dirichlet:alpha=0.3,min_rows=5", "invert:clients=half")
    about = data.manifest(d)
    assert json.loads(json.dumps(about)) == about
    assert set(about) == {"dataset", "classes", "class_names", "clients", "hash"}
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
    assert set(data.PARTITIONS) == {"iid", "dirichlet", "dominant"}
    assert set(data.SHIFTS) == {"rotation", "invert", "noise"}
    module = types.ModuleType("mine")
    exec("from json import dumps\ndef mine(): ...\ndef _helper(): ...\nclass No: ...", module.__dict__)
    assert list(pack._listing(module)) == ["mine"]


# --- errors


@pytest.mark.parametrize(
    ("partition", "shift", "clients", "match"),
    [
        ("dirichlett", None, 5, r"unknown partition 'dirichlett'; did you mean 'dirichlet'\?"),
        ("iid", "rotate", 5, r"unknown shift 'rotate'; did you mean 'rotation'\?"),
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
        ("dominant:train_size=0", None, 5, "train_size=0 is not valid: .*greater than or equal to 1"),
        ("dominant:test_size=2.5", None, 5, "test_size=2.5 is not valid: .*integer"),
        ("iid", None, 0, "clients=0 is not possible: ask for at least 1"),
        ("iid", None, 201, "400 rows serve at most 200 clients"),
        ("iid", "rotation:degree=3", 5, r"no option 'degree'; did you mean 'degrees'\? Known: degrees, clients"),
        ("iid", "rotation:degrees=.inf", 5, "shift rotation: degrees=inf is not valid: .*finite"),
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
        ([[0], [1]], [[2], [2]], "gives a row twice or one that does not exist: draw without replacement"),
        ([[0], [1]], [[2], [400]], "gives a row twice or one that does not exist"),
        ([[0], [1]], [[2], [-1]], "gives a row twice or one that does not exist"),
        ([[0], [1]], [[2], []], "client 1 has no test rows; ask for fewer clients"),
        ([[], [1]], [[2], [3]], "client 0 has no training rows; ask for fewer clients"),
        ([[0]], [[2]], "made 1 clients of 2: return one entry per client"),
    ],
)
def test_a_partition_that_breaks_its_promise_is_found(monkeypatch, train, test, match):
    def mine(source, clients, rng):
        return partitions.Split(*([np.array(rows, np.int64) for rows in part] for part in (train, test)))

    monkeypatch.setitem(data.PARTITIONS, "mine", mine)
    with pytest.raises(InputError, match=f"partition mine.*{match}"):
        build("mine", clients=2)


@pytest.mark.data
def test_real_fashion_mnist_in_the_papers_setting(fashion_mnist):
    d = data.build(fashion_mnist, Spec.parse("dominant"), [], 20, 0)
    about = data.manifest(d)["clients"]
    assert about[0]["train"] == [172] * 3 + [12] * 7
    assert about[9]["test"] == [86] + [6] * 7 + [86] * 2
    assert d.x_R.shape == (18000, 1, 28, 28)
