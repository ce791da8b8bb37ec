"""Clients that do not train: who they are, in what order they stand, and what their rows are measured under."""

import numpy as np
import pytest
import torch

from idiolect import data
from idiolect.core import keys
from idiolect.core.errors import InputError
from idiolect.core.option_spec import Spec
from idiolect.data import Column, Source, shifts
from idiolect.data.shifts import KINDS, Who

NAMES = ("City", "Mercy", "North", "South", "West")


def numbered(rows=400, side=6):
    """Images that carry their row number in their first two pixels, of five hospitals."""
    rng = np.random.default_rng(0)
    x_R = rng.integers(0, 256, (rows, 1, side, side)).astype(np.uint8)
    x_R[:, 0, 0, 0], x_R[:, 0, 0, 1] = np.divmod(np.arange(rows), 256)
    y_R = torch.from_numpy(rng.integers(0, 4, rows))
    hospital = Column(rng.permutation(np.arange(rows) % 5), NAMES)
    columns = {"hospital": hospital}
    return Source("numbered", torch.from_numpy(x_R), y_R, 4, tuple("abcd"), None, None, rows, columns, "hospital")


def build(partition="iid", *shift, clients=5, source=None, new_shifts=(), **more):
    given = [[Spec.parse(s) for s in listed] for listed in (shift, new_shifts)]
    return data.build(source or numbered(), Spec.parse(partition), given[0], clients, 0, new_shifts=given[1], **more)


def rows(d, k):
    return d.x_R[torch.cat([d.train[k], d.test[k]])]


def number(x_N):
    return (x_N[:, 0, 0, 0].long() * 256 + x_N[:, 0, 0, 1].long()).tolist()


@pytest.mark.parametrize(
    ("new_clients", "count"), [(1, 1), ("2", 2), (4, 4), ("20%", 1), ("40%", 2), ("50%", 2), (" 80% ", 4), ("30.5%", 2)]
)
def test_the_last_so_many(new_clients, count):
    whole, d = build(), build(new_clients=new_clients)
    assert (d.clients, d.trained, d.conditions) == (5, 5 - count, ("",) * count)
    assert d.names == ()
    for k in range(5):
        assert number(rows(d, k)) == number(rows(whole, k))
        assert (len(d.train[k]), len(d.test[k])) == (64, 16)
    assert (whole.trained, whole.conditions) == (5, ())


@pytest.mark.parametrize(
    ("new_clients", "order"),
    [
        ("Mercy+North", ["City", "South", "West", "Mercy", "North"]),
        ("West + City", ["Mercy", "North", "South", "City", "West"]),
        ("City+City", ["Mercy", "North", "South", "West", "City"]),
        ("2", ["City", "Mercy", "North", "South", "West"]),
    ],
)
def test_by_name_the_new_ones_stand_last(new_clients, order):
    d = build("natural", clients=None, new_clients=new_clients)
    assert list(d.names) == order
    assert d.trained == 5 - len(set(new_clients.replace(" ", "").split("+")) if "+" in new_clients else "ab")
    code_R = numbered().columns["hospital"].code_R
    for k, name in enumerate(order):
        assert {NAMES[code] for code in code_R[number(rows(d, k))]} == {name}


def test_shifts_count_clients_after_the_new_ones_moved():
    plain = build("natural", clients=None, new_clients="City")
    d = build("natural", "invert:clients=0+4", clients=None, new_clients="City")
    assert d.names[0] == "Mercy"
    assert d.shifts == ("invert", "", "", "", "invert")
    for k in range(5):
        assert torch.equal(rows(d, k), 255 - rows(plain, k) if k in (0, 4) else rows(plain, k))


@pytest.mark.parametrize(
    ("partition", "new_clients", "match"),
    [
        ("iid", 5, "5 leaves no clients that train, or no new ones: of 5, 1 to 4 can be new"),
        ("iid", 6, "of 5, 1 to 4 can be new"),
        ("iid", "0", "of 5, 1 to 4 can be new"),
        ("iid", "0%", "of 5, 1 to 4 can be new"),
        ("iid", "100%", "of 5, 1 to 4 can be new"),
        ("iid", "500%", "of 5, 1 to 4 can be new"),
        ("iid", "Mercy", "there is no client 'Mercy'; these clients have no names: give a number or a share"),
        ("iid", "-1", "there is no client '-1'; these clients have no names"),
        ("iid", "", "there is no client ''"),
        ("natural", "Mercy+Nort", r"there is no client 'Nort'; did you mean 'North'\? Known: City, Mercy, North"),
        ("natural", "+".join(NAMES), "leaves no clients that train"),
    ],
)
def test_new_clients_that_cannot_be(partition, new_clients, match):
    with pytest.raises(InputError, match=f"new_clients=.*{match}"):
        build(partition, clients=None if partition == "natural" else 5, new_clients=new_clients)


# --- conditions


def test_each_condition_is_the_shift_of_the_new_clients_rows():
    """invert is 255 - x, half a turn reads every image backwards, and noise draws from a path of its own."""
    told = ["invert", "rotate:degrees=180", "noise:std=0.2"]
    plain = build("natural", clients=None, new_clients=2)
    d = build("natural", clients=None, new_clients=2, new_shifts=told)
    assert (d.clients, d.trained) == (5 + 2 * 3, 3)
    assert d.conditions == ("", "", "invert", "invert", *["rotate:degrees=180"] * 2, *["noise:std=0.2"] * 2)
    assert d.names == (*NAMES, *NAMES[3:] * 3)
    assert d.shifts[:5] == ("",) * 5
    assert d.shifts[5:] == d.conditions[2:]
    for k in range(5):
        assert torch.equal(rows(d, k), rows(plain, k))
    for i, k in enumerate((3, 4)):
        x_N, labels = rows(plain, k), plain.y_R[torch.cat([plain.train[k], plain.test[k]])]
        rng = keys.generator(0, "shift", k, "new", 2)
        noisy = shifts.noise(x_N.numpy(), labels.numpy(), Who(k, i, 4, None), rng, std=0.2).x_N
        for place, want in enumerate((255 - x_N, x_N.flip(2, 3), torch.from_numpy(noisy))):
            at = 5 + 2 * place + i
            assert torch.equal(rows(d, at), want)
            assert torch.equal(d.y_R[torch.cat([d.train[at], d.test[at]])], labels)
            assert (len(d.train[at]), len(d.test[at])) == (len(plain.train[k]), len(plain.test[k]))


def test_a_condition_comes_after_the_shifts_that_everybody_has():
    d = build("iid", "rotate:degrees=90,clients=4", new_clients=1, new_shifts=["invert"])
    assert d.shifts == ("", "", "", "", "rotate:degrees=90", "rotate:degrees=90,invert")
    assert d.conditions == ("", "invert")
    assert torch.equal(rows(d, 5), 255 - rows(d, 4))
    assert torch.equal(rows(d, 4), rows(build(), 4).rot90(1, (2, 3)))


def test_the_same_noise_twice_is_drawn_twice():
    d = build(new_clients=1, new_shifts=["noise", "noise"])
    assert not torch.equal(rows(d, 5), rows(d, 6))


def test_every_corruption_is_a_condition():
    assert len(KINDS) == 10
    found = data.conditions_of([Spec.parse("corrupt:kind=each,severity=3"), Spec.parse("invert")])
    assert [str(s) for s in found] == [*(f"corrupt:kind={kind},severity=3" for kind in KINDS), "invert"]


def test_corruptions_of_one_kind():
    source = numbered(side=32)
    kinds = ("contrast", "brightness", "jpeg")
    d = build(source=source, new_clients=1, new_shifts=[f"corrupt:kind={k},severity=3" for k in kinds])
    for at, kind in enumerate(kinds, 5):
        assert d.shifts[at] == f"corrupt:kind={kind},severity=3"
        assert torch.equal(rows(d, at), rows(build("iid", f"{d.shifts[at]},clients=4", source=source), 4))


def test_the_manifest_says_who_joins():
    about = data.manifest(build("natural", clients=None, new_clients=1, new_shifts=["invert"]))["clients"]
    assert [c.get("joins") for c in about] == [None, None, None, None, "", "invert"]
    assert [c["name"] for c in about] == [*NAMES, "West"]
    assert about[4]["train"] == about[5]["train"]
    assert [c["id"] for c in about] == list(range(6))


@pytest.mark.parametrize(
    ("new_clients", "new_shifts", "match"),
    [
        (None, "invert", "new_shifts needs new clients, and there are none: give new_clients too"),
        (1, "invert:clients=4", "new_shifts invert:clients=4: this is done to every new client; leave out clients"),
        (1, "invrt", r"unknown shift 'invrt'; did you mean 'invert'\?"),
        (1, "noise:std=2", "shift noise: std=2 is not valid"),
        (1, "corrupt:kind=each,severity=6", "shift corrupt: severity=6 is not valid"),
    ],
)
def test_conditions_that_cannot_be(new_clients, new_shifts, match):
    with pytest.raises(InputError, match=match):
        build(new_clients=new_clients, new_shifts=[new_shifts])


SIGNS = ("+C", "A", "A+B", "B", "D+")


@pytest.mark.parametrize(
    ("new_clients", "joining"),
    [
        ("A+B", ["A+B"]),
        ('"A"+"B"', ["A", "B"]),
        ('"A+B"+A', ["A", "A+B"]),
        ("D+", ["D+"]),
        ("A+D+", ["A", "D+"]),
        ("+C", ["+C"]),
        ('"+C"+"D+"', ["+C", "D+"]),
        ("B+", ["B"]),
    ],
)
def test_names_with_a_plus(new_clients, joining):
    source = numbered()
    source.columns["hospital"] = source.columns["hospital"].__class__(source.columns["hospital"].code_R, SIGNS)
    d = build("natural", clients=None, source=source, new_clients=new_clients)
    assert list(d.names[d.trained :]) == joining


def test_a_name_with_a_plus_that_is_not_there_or_means_one_client(caplog):
    source = numbered()
    source.columns["hospital"] = source.columns["hospital"].__class__(source.columns["hospital"].code_R, SIGNS)
    with pytest.raises(InputError, match=r"no client 'X'; .* a name that has a \+ itself stands in double quotes"):
        build("natural", clients=None, source=source, new_clients="X+A")
    build("natural", clients=None, source=source, new_clients="A+B")
    assert 'new_clients=A+B means the client with this name; for A and B write "A"+"B"' in caplog.text
