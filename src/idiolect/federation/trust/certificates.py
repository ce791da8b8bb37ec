"""Keys, certificates and signatures of a federation: what an authority makes, and how long it is valid."""

from __future__ import annotations

import datetime
import ipaddress
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PrivateKey = ec.EllipticCurvePrivateKey
SOON = 30
"""Days before its end at which a certificate is warned of."""
_LATER = datetime.timedelta(days=1)  # clocks differ
_AUTHORITY = 7300  # days that an authority is valid, or as long as what it signs
_CURVE = ec.SECP384R1
_PEM = serialization.Encoding.PEM


def new_key() -> PrivateKey:
    """A private key of a site or a server."""
    return ec.generate_private_key(_CURVE())


def private_pem(key: Any) -> bytes:
    """A private key in PEM, without a password."""
    plain = serialization.NoEncryption()
    return bytes(key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, plain))


def public_pem(key: Any) -> bytes:
    """A public key in PEM."""
    return bytes(key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def public_of(certificate: bytes) -> bytes:
    """The public key of a certificate in DER, in PEM."""
    return public_pem(x509.load_der_x509_certificate(certificate).public_key())


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate in PEM."""
    return certificate.public_bytes(_PEM)


def new_authority(name: str, days: int) -> tuple[x509.Certificate, PrivateKey]:
    """An authority that outlives what it signs for so many days."""
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} certificate authority")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    builder = _builder(subject, subject, key.public_key(), max(_AUTHORITY, 2 * days))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, hashes.SHA384()), key


def certificate_for(
    name: str, public: Any, authority: x509.Certificate, authority_key: Any, days: int, host: str | None = None
) -> x509.Certificate:
    """A certificate that the authority signs: of a server that is reached as ``host``, or of a site.

    It ends no later than the authority's own.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    try:
        subject_key = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject_key)
    except x509.ExtensionNotFound:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    builder = _builder(subject, authority.subject, public, days, authority.not_valid_after_utc)
    if host is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
    purpose = ExtendedKeyUsageOID.CLIENT_AUTH if host is None else ExtendedKeyUsageOID.SERVER_AUTH
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(usage, critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    builder = builder.add_extension(issuer, critical=False)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    return builder.sign(authority_key, _digest_of(authority_key))


def request_of(name: str, key: PrivateKey) -> bytes:
    """A request that an authority signs a site's own key, in PEM."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA384()).public_bytes(_PEM)


def name_and_key(content: bytes) -> tuple[str, ec.EllipticCurvePublicKey]:
    """The name and the public key of a request.

    Raises:
        ValueError: it is none, its signature is wrong, or the key is not of the curve P-384.
    """
    request = x509.load_pem_x509_csr(content)
    key = request.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVE):
        raise ValueError("its key is not of the curve P-384")
    if not request.is_signature_valid:
        raise ValueError("its signature is wrong")
    names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return (str(names[0].value) if names else ""), key


def sign(key: Any, content: bytes) -> bytes:
    """A signature by an authority."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return key.sign(content, ec.ECDSA(hashes.SHA384()))
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(content, _pss(), hashes.SHA384())
    return bytes(key.sign(content))  # Ed25519, Ed448


def verify(authority: x509.Certificate, content: bytes, signature: bytes) -> None:
    """Check a signature by an authority.

    Raises:
        ValueError: it is not the authority's.
    """
    key: Any = authority.public_key()
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
        elif isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, content, _pss(), hashes.SHA384())
        else:
            key.verify(signature, content)
    except InvalidSignature:
        raise ValueError("it is not signed by the authority of this kit") from None


def signs(certificate: x509.Certificate) -> bool:
    """Whether a certificate is that of an authority, which may sign others."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        return False


def out_of_date(certificate: x509.Certificate) -> str | None:
    """Why a certificate is not valid now, by this machine's clock."""
    now, start, end = _now(), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        return f"is not valid before {start:%Y-%m-%d}, and this machine's clock says {now:%Y-%m-%d}"
    return f"has expired on {end:%Y-%m-%d}" if now > end else None


def trouble(certificate: x509.Certificate) -> str | None:
    """What is wrong with a certificate's dates by this machine's clock, or will be within ``SOON`` days."""
    end = certificate.not_valid_after_utc
    soon = f"expires on {end:%Y-%m-%d}" if end - _now() < datetime.timedelta(days=SOON) else None
    return out_of_date(certificate) or soon


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _pss() -> padding.PSS:
    return padding.PSS(padding.MGF1(hashes.SHA384()), padding.PSS.DIGEST_LENGTH)


def _digest_of(key: Any) -> Any:
    return hashes.SHA384() if isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) else None


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, public: Any, days: int, latest: datetime.datetime | None = None
) -> x509.CertificateBuilder:
    now = _now()
    end = now + datetime.timedelta(days=days)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - _LATER)
    return builder.not_valid_after(end if latest is None else min(end, latest))
