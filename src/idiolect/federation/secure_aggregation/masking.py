"""A site's part in secure aggregation: its keys and masks of a round, which vanish in the sum over sites.

The primitives are those of well-known packages: key exchange and encryption of ``cryptography``, Shamir's shares of
``pycryptodome``. Masks are a stream of ChaCha20.

A site u sends its numbers x_u, modulo 2^64, as
    y_u = x_u + mask(b_u) + sum_{v > u} mask(k_uv) - sum_{v < u} mask(k_uv)
with a seed b_u of its own and a key k_uv that it has in common with each other site v. Sites give each other shares of
b_u and of the private key behind k_uv. The server then asks for shares of b_u of sites whose numbers came, and for
shares of the private key of those whose numbers did not. No site gives both.

Source: Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017, figure 4, with
signed keys.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray
from torch import Tensor

from idiolect.federation.messages import Refusal
from idiolect.federation.trust.certificates import PrivateKey, new_key, public_pem
from idiolect.federation.trust.kits import Identity
from idiolect.simulation.summing import LEAST

Words = NDArray[np.uint64]
_PURPOSE = "idiolect secure aggregation 2"
_SCALAR = 48  # bytes of a private key on the curve P-384
_PIECE = 16  # bytes that Shamir's scheme shares at a time
_NONCE = 12
_MOST = 10_000  # sites


class Keys(NamedTuple):
    """What a site says before a sum. The names in messages are those of these fields."""

    mask: str
    """Public key of the keys that masks are made from, in PEM."""
    cipher: str
    """Public key by which other sites encrypt shares for this one, in PEM."""
    seed: str
    """The SHA-256 of its own seed b_u."""
    signature: str
    """Of the site's own key, over all this, its name and the round; hexadecimal."""


def threshold(sites: int) -> int:
    """How many of so many sites it takes to open a sum: more than two thirds.

    A server that tells some sites that a site answered and others that it did not needs this many of both kinds; so it
    gets nowhere unless more than a third of the sites work together with it.
    """
    return 2 * sites // 3 + 1


def verify_keys(site: str, public: bytes, round: Sequence[Any], statement: Any) -> Keys:
    """What a site said, if it is signed by its own key for this round.

    Raises:
        Refusal: it is not.
    """
    try:
        keys = Keys(**statement)
        public_key = serialization.load_pem_public_key(public)
        assert isinstance(public_key, ec.EllipticCurvePublicKey)
        public_key.verify(bytes.fromhex(keys.signature), _statement(site, round, keys), ec.ECDSA(hashes.SHA384()))
        for pem in (keys.mask, keys.cipher):
            _public(pem)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError, AttributeError, AssertionError):
        raise Refusal(f"the keys of {site} are not signed by {site} for this round") from None
    return keys


def _statement(site: str, round: Sequence[Any], keys: Keys) -> bytes:
    return json.dumps([_PURPOSE, *round, site, keys.mask, keys.cipher, keys.seed]).encode()


class Masking:
    """One site's part in one sum, with keys that are used for nothing else.

    Args:
        identity: the site's.
        round: study, run, method, seed and number of the round.
        least: sites of which the site lets itself be added up, at least.
    """

    def __init__(self, identity: Identity, round: Sequence[Any], least: int = LEAST) -> None:
        self._identity, self._round, self._least = identity, round, max(least, LEAST)
        self._mask, self._cipher = new_key(), new_key()
        mask, cipher = (public_pem(key.public_key()).decode() for key in (self._mask, self._cipher))
        self._seed = secrets.token_bytes(32)
        digest = hashlib.sha256(self._seed).hexdigest()
        keys = Keys(mask, cipher, digest, "")
        signature = identity.key.sign(_statement(identity.site, round, keys), ec.ECDSA(hashes.SHA384()))
        self.keys = keys._replace(signature=signature.hex())
        self._roster: dict[str, Keys] = {}
        self._shares: dict[str, tuple[bytes, bytes]] = {}
        self._sites: tuple[str, ...] = ()

    def record(self) -> dict[str, Any]:
        """All of it as plain values, secrets too, for ``of_record``."""
        scalars = [key.private_numbers().private_value for key in (self._mask, self._cipher)]
        return {
            "round": list(self._round),
            "least": self._least,
            "scalars": [scalar.to_bytes(_SCALAR, "big").hex() for scalar in scalars],
            "seed": self._seed.hex(),
            "keys": self.keys._asdict(),
            "roster": {site: keys._asdict() for site, keys in self._roster.items()},
            "shares": {site: [share.hex() for share in pair] for site, pair in self._shares.items()},
            "sites": list(self._sites),
        }

    @classmethod
    def of_record(cls, identity: Identity, record: Mapping[str, Any]) -> Self:
        """The part in a sum that ``record`` gave, in the process that goes on with it.

        Raises:
            ValueError, KeyError, TypeError: it is no such record.
        """
        part = cls.__new__(cls)
        part._identity, part._round, part._least = identity, list(record["round"]), int(record["least"])
        part._mask, part._cipher = (
            ec.derive_private_key(int.from_bytes(bytes.fromhex(scalar), "big"), ec.SECP384R1())
            for scalar in record["scalars"]
        )
        part._seed, part.keys = bytes.fromhex(record["seed"]), Keys(**record["keys"])
        part._roster = {site: Keys(**keys) for site, keys in record["roster"].items()}
        shares = record["shares"].items()
        part._shares = {site: (bytes.fromhex(seed), bytes.fromhex(scalar)) for site, (seed, scalar) in shares}
        part._sites = tuple(record["sites"])
        return part

    def share(self, roster: Mapping[str, Any]) -> dict[str, str]:
        """Shares of this site's secrets for each other site of a sum, encrypted for it.

        Raises:
            Refusal: the sum has too few sites, or keys that are not those of sites of this federation.
        """
        me = self._identity.site
        if not self._least <= len(roster) <= _MOST:
            raise Refusal(f"the sum has {len(roster)} sites, and {self._least} or more are needed here")
        keys = {}
        for site, statement in roster.items():
            if site not in self._identity.peers:
                raise Refusal(f"{site} is not in the roster of this federation")
            keys[site] = verify_keys(site, self._identity.peers[site], self._round, statement)
        if keys.get(me) != self.keys:
            raise Refusal("the keys that the server shows for this site are not its own")
        self._roster, names = keys, sorted(keys)
        secret = self._mask.private_numbers().private_value.to_bytes(_SCALAR, "big")
        seeds, scalars = (shares_of(whole, threshold(len(names)), len(names)) for whole in (self._seed, secret))
        boxes = {}
        for site, seed, scalar in zip(names, seeds, scalars, strict=True):
            if site == me:
                self._shares[me] = seed, scalar
                continue
            nonce = secrets.token_bytes(_NONCE)
            plain = json.dumps([seed.hex(), scalar.hex()]).encode()
            boxes[site] = (nonce + self._sealing(site).encrypt(nonce, plain, f"{me} {site}".encode())).hex()
        return boxes

    def mask_arrays(self, arrays: Mapping[str, Tensor], boxes: Mapping[str, str]) -> dict[str, Tensor]:
        """This site's numbers under its masks, given what each other site of the sum has encrypted for it.

        Raises:
            Refusal: keys or shares of a site are missing, or these are too few sites.
        """
        me = self._identity.site
        if not set(boxes) <= set(self._roster) - {me}:
            raise Refusal("there are shares of a site that has no keys in this sum")
        self._enough(len(boxes) + 1)
        total = flat(arrays)
        total = total + mask(self._seed, len(total))
        for site, content in boxes.items():
            with suppress(InvalidTag, ValueError, TypeError, RecursionError):
                # a site that sends nonsense is missing a share, nothing else
                whole = bytes.fromhex(content)
                plain = self._sealing(site).decrypt(whole[:_NONCE], whole[_NONCE:], f"{site} {me}".encode())
                seed, scalar = (bytes.fromhex(share) for share in json.loads(plain))
                self._shares[site] = seed, scalar
            between = mask(between_of(self._mask, self._roster[site].mask, "mask"), len(total))
            total = total + between if site > me else total - between
        self._sites = (me, *boxes)
        return unflat(total, arrays)

    def opening(self, senders: Sequence[str]) -> dict[str, dict[str, str]]:
        """Shares for the server: of the seeds of sites that answered, and of the private keys of those that did not.

        Raises:
            Refusal: these are too few sites, or not those of the sum.
        """
        if self._identity.site not in senders or not set(senders) <= set(self._sites):
            raise Refusal("these are not the sites of the sum")
        self._enough(len(set(senders)))
        dropouts = set(self._sites) - set(senders)
        return {
            "seeds": {site: self._shares[site][0].hex() for site in senders if site in self._shares},
            "keys": {site: self._shares[site][1].hex() for site in dropouts if site in self._shares},
        }

    def _enough(self, sites: int) -> None:
        least = max(threshold(len(self._roster)), self._least)
        if sites < least:
            raise Refusal(f"the sum is of {sites} of {len(self._roster)} sites, and {least} are needed here")

    def _sealing(self, site: str) -> AESGCM:
        return AESGCM(between_of(self._cipher, self._roster[site].cipher, "shares"))


def unmask(
    total: Words, keys: Mapping[str, Keys], senders: Sequence[str], dropouts: Sequence[str],
    shares: Mapping[str, Mapping[str, Sequence[str]]],
) -> Words:  # fmt: skip
    """The sum of the numbers of the sites that answered, from the sum of what they sent.

    Args:
        total: the sum of what they sent.
        keys: what each site of the sum said before.
        senders: whose numbers are in the total.
        dropouts: the other sites of the sum.
        shares: by "seeds" and "keys", of each site, as sites gave them.

    Raises:
        Refusal: a site's shares do not fit what it said before, or are too few.
    """
    for site in senders:
        seed = _secret_of(site, shares["seeds"].get(site, ()), len(keys))
        if hashlib.sha256(seed).hexdigest() != keys[site].seed:
            raise Refusal(f"the shares of {site} do not fit its keys")
        total = total - mask(seed, len(total))
    for site in dropouts:
        scalar = _secret_of(site, shares["keys"].get(site, ()), len(keys))
        with suppress(ValueError):
            private = ec.derive_private_key(int.from_bytes(scalar, "big"), ec.SECP384R1())
            if public_pem(private.public_key()).decode() == keys[site].mask:
                for other in senders:
                    between = mask(between_of(private, keys[other].mask, "mask"), len(total))
                    total = total - between if site > other else total + between
                continue
        raise Refusal(f"the shares of {site} do not fit its keys")
    return total


def _secret_of(site: str, shares: Sequence[str], sites: int) -> bytes:
    least = threshold(sites)
    if len(shares) < least:
        raise Refusal(f"there are {len(shares)} shares of {site}, and {least} are needed")
    try:
        return whole_of([bytes.fromhex(share) for share in shares[:least]])
    except (ValueError, IndexError, TypeError):
        raise Refusal(f"the shares of {site} do not fit its keys") from None


def shares_of(secret: bytes, least: int, count: int) -> list[bytes]:
    """Shares of a secret, of which so many are needed to know anything of it: each is a number and as many bytes."""
    pieces = [secret[k : k + _PIECE] for k in range(0, len(secret), _PIECE)]
    split = [Shamir.split(least, count, piece, False) for piece in pieces]
    return [
        number.to_bytes(_PIECE // 4, "big") + b"".join(piece[k][1] for piece in split)
        for k, (number, _) in enumerate(split[0])
    ]


def whole_of(shares: Sequence[bytes]) -> bytes:
    """The secret of some shares.

    Raises:
        ValueError: they are not shares of one secret.
    """
    start = _PIECE // 4
    if len({len(share) for share in shares}) != 1 or (len(shares[0]) - start) % _PIECE or len(shares[0]) == start:
        raise ValueError("shares of different lengths")
    numbers = [int.from_bytes(share[:start], "big") for share in shares]
    ends = range(start, len(shares[0]), _PIECE)
    return b"".join(
        Shamir.combine([(n, share[k : k + _PIECE]) for n, share in zip(numbers, shares, strict=True)], False)
        for k in ends
    )


def _public(pem: str) -> ec.EllipticCurvePublicKey:
    """A public key of the curve P-384.

    Raises:
        ValueError: it is none.
    """
    key = serialization.load_pem_public_key(pem.encode())
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError("it is not a key of the curve P-384")
    return key


def between_of(own: PrivateKey, other: str, purpose: str) -> bytes:
    """The key that two sites have in common, 32 bytes, from one's private and the other's public key."""
    secret = own.exchange(ec.ECDH(), _public(other))
    return HKDF(hashes.SHA256(), 32, None, f"{_PURPOSE} {purpose}".encode()).derive(secret)


def mask(key: bytes, count: int) -> Words:
    """So many numbers, uniform among all of 64 bits to everyone without the key."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8").astype(np.uint64)


def flat(arrays: Mapping[str, Tensor]) -> Words:
    """Whole numbers of arrays, one after another by the arrays' names, modulo 2^64."""
    return np.concatenate([arrays[path].numpy().view(np.uint64).ravel() for path in sorted(arrays)])


def unflat(numbers: Words, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same as arrays of these shapes."""
    arrays, start = {}, 0
    for path in sorted(like):
        end = start + like[path].numel()
        arrays[path] = torch.from_numpy(numbers[start:end].view(np.int64).copy()).view(like[path].shape)
        start = end
    return arrays
