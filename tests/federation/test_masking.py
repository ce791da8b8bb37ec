"""Secure aggregation between sites in one process: sums against numpy, and what a site or a server may not do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from torch import Tensor

from idiolect.federation.messages import Refusal
from idiolect.federation.secure_aggregation.masking import (
    Keys,
    Masking,
    flat,
    mask,
    threshold,
    unflat,
    unmask,
    verify_keys,
)
from idiolect.federation.trust.kits import Identity

ROUND = ["study", "run", "fedavg", 0, 1]
NAMES = ("a", "b", "c", "d", "e")
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def identities() -> dict[str, Identity]:
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in NAMES}
    pem, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    public = {name: key.public_key().public_bytes(pem, form) for name, key in keys.items()}
    return {name: Identity(name, key, public) for name, key in keys.items()}


class Round:
    """A round up to the uploads; the server can show other keys than it was told."""

    def __init__(self, identities: dict[str, Identity], least: int = 3) -> None:
        self.sites = {name: Masking(one, ROUND, least) for name, one in identities.items()}
        self.keys = {name: one.keys for name, one in self.sites.items()}
        self.roster: dict[str, Any] = {name: keys._asdict() for name, keys in self.keys.items()}
        self.numbers = {name: {"w": torch.from_numpy(RNG.integers(-(2**50), 2**50, (40, 50)))} for name in self.sites}

    def shared(self) -> None:
        self.sealed = {name: one.share(self.roster) for name, one in self.sites.items()}

    def for_site(self, name: str) -> dict[str, str]:
        return {other: sealed[name] for other, sealed in self.sealed.items() if other != name}

    def upload(self, name: str) -> dict[str, Tensor]:
        return self.sites[name].mask_arrays(self.numbers[name], self.for_site(name))

    def opened(self, answered: list[str], uploads: dict[str, dict[str, Tensor]]) -> np.ndarray[Any, Any]:
        said = [self.sites[name].opening(answered) for name in answered]
        shares = {
            part: {name: [s[part][name] for s in said if name in s[part]] for name in NAMES}
            for part in ("seeds", "keys")
        }
        total = sum(flat(uploads[name]) for name in answered)
        gone = [name for name in NAMES if name not in answered]
        whole = unmask(np.asarray(total), self.keys, answered, gone, shares)
        return unflat(whole, self.numbers["a"])["w"].numpy()


@pytest.mark.parametrize("gone", [[], ["b"]])
def test_the_sum_is_exact_with_all_sites_or_one_lost(gone: list[str], identities: dict[str, Identity]) -> None:
    one = Round(identities)
    one.shared()
    answered = [name for name in NAMES if name not in gone]
    found = one.opened(answered, {name: one.upload(name) for name in answered})
    assert (found == sum(one.numbers[name]["w"].numpy() for name in answered)).all()


def test_what_is_sent_is_uniform_and_says_nothing_of_the_numbers(identities: dict[str, Identity]) -> None:
    one = Round(identities)
    one.shared()
    one.numbers["a"] = {"w": torch.zeros(40, 50, dtype=torch.int64)}
    sent = flat(one.upload("a"))
    bits = np.unpackbits(sent.view(np.uint8))  # 128,000 fair coins: a deviation of 5 sigma is 0.007
    assert abs(bits.mean() - 0.5) < 0.007
    by_place = bits.reshape(len(sent), 64).mean(0)  # of each bit, the highest too: 5 sigma is 0.056
    assert abs(by_place - 0.5).max() < 0.056
    assert len(np.unique(sent)) == len(sent)


def test_masks_use_the_whole_key() -> None:
    keys = [bytes(31) + bytes([k]) for k in range(2)] + [bytes([1]) + bytes(31)]
    streams = [mask(key, 100) for key in keys]
    assert all((a != b).all() for k, a in enumerate(streams) for b in streams[:k])


def test_too_few_to_open(identities: dict[str, Identity]) -> None:
    assert [threshold(n) for n in (3, 4, 5, 9, 10)] == [3, 3, 4, 7, 7]
    one = Round(identities)
    one.shared()
    for name in NAMES:
        one.upload(name)
    with pytest.raises(Refusal, match="is of 3 of 5 sites, and 4 are needed"):
        one.sites["a"].opening(["a", "b", "c"])
    with pytest.raises(Refusal, match="not the sites of the sum"):
        one.sites["a"].opening(["b", "c", "d", "e"])
    few = Round(identities, least=6)
    with pytest.raises(Refusal, match="5 sites, and 6 or more are needed"):
        few.shared()


def test_keys_that_are_not_the_sites_own(identities: dict[str, Identity]) -> None:
    one = Round(identities)
    forged = Masking(Identity("b", ec.generate_private_key(ec.SECP384R1()), {}), ROUND).keys
    other_round = Masking(identities["b"], [*ROUND[:-1], 2]).keys
    swapped = one.keys["b"]._replace(mask=one.keys["c"].mask)
    for said in (forged, other_round, swapped, one.keys["c"]):
        with pytest.raises(Refusal, match="keys of b are not signed by b"):
            verify_keys("b", identities["a"].peers["b"], ROUND, said._asdict())
        with pytest.raises(Refusal, match="keys of b are not signed by b"):
            one.sites["a"].share(one.roster | {"b": said._asdict()})
    for said in (None, {"mask": 1}, Keys("", "", "", "zz")._asdict()):
        with pytest.raises(Refusal, match="not signed"):
            verify_keys("b", identities["a"].peers["b"], ROUND, said)
    with pytest.raises(Refusal, match="sybil is not in the roster"):
        one.sites["a"].share(one.roster | {"sybil": one.roster["b"]})
    own = Masking(identities["a"], ROUND).keys
    with pytest.raises(Refusal, match="not its own"):
        one.sites["a"].share(one.roster | {"a": own._asdict()})


def test_shares_that_do_not_fit_their_keys(identities: dict[str, Identity]) -> None:
    """A site that gives out shares of another secret is named, whether it stays or not."""
    for answered in (list(NAMES), ["a", "c", "d", "e"]):
        one = Round(identities)
        one.sites["b"]._seed, one.sites["b"]._mask = bytes(32), ec.generate_private_key(ec.SECP384R1())
        one.shared()
        with pytest.raises(Refusal, match="shares of b do not fit its keys"):
            one.opened(answered, {name: one.upload(name) for name in answered})


@pytest.mark.parametrize("shares", ["nonsense", "", "00" * 11, [1, 2], ["zz", "zz"], 3, None, ["00"], {"a": 1}])
def test_nonsense_in_place_of_shares_leaves_the_sum_to_the_others(
    shares: object, identities: dict[str, Identity]
) -> None:
    """Also where it is encrypted as it should be."""
    one = Round(identities)
    one.shared()
    if isinstance(shares, str):
        one.sealed["b"]["c"] = shares
    else:
        sealed = one.sites["b"]._sealing("c").encrypt(bytes(12), json.dumps(shares).encode(), b"b c")
        one.sealed["b"]["c"] = (bytes(12) + sealed).hex()
    found = one.opened(list(NAMES), {name: one.upload(name) for name in NAMES})
    assert (found == sum(numbers["w"].numpy() for numbers in one.numbers.values())).all()
