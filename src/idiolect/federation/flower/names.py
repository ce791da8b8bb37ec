"""How a SuperNode says whose it is: its site's name, and where there are kits a signature by the site's own key."""

from __future__ import annotations

import json

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from idiolect.federation.trust.kits import Identity

_PURPOSE = "idiolect site of a SuperNode 1"


def signature_of(identity: Identity, node: int, nonce: str) -> bytes:
    """The site's signature for its SuperNode.

    Args:
        identity: the site's.
        node: the SuperNode's number.
        nonce: what the server asked with, so that no signature serves twice.
    """
    return identity.key.sign(_statement(identity.site, node, nonce), ec.ECDSA(hashes.SHA384()))


def is_signed(public: bytes, site: str, node: int, nonce: str, signature: object) -> bool:
    """Whether a signature for a SuperNode is by a site's own key.

    Args:
        public: the site's public key in PEM.
        site: its name.
        node: the SuperNode's number.
        nonce: what the server asked with.
        signature: what came back.
    """
    key = serialization.load_pem_public_key(public)
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(signature, bytes):
        return False
    try:
        key.verify(signature, _statement(site, node, nonce), ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


def _statement(site: str, node: int, nonce: str) -> bytes:
    return json.dumps([_PURPOSE, site, node, nonce]).encode()
