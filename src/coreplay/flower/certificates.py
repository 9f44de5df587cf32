"""Certificates and keys for a deployment on one machine; for real ones use those of your organisation."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)


def make(folder: Path) -> None:
    """Make an authority and the server's certificate for loopback, unless they are there and still good."""
    if (folder / "server.crt").exists():
        known = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
        if known.not_valid_after_utc > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1):
            return
    folder.mkdir(parents=True, exist_ok=True)
    authority = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coreplay on this machine")])
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    own = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        _builder(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(own, critical=False)
        .sign(authority, hashes.SHA384())
    )
    server = ec.generate_private_key(ec.SECP384R1())
    places = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        _builder(subject, name, server.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(places), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    _write(folder / "ca.crt", root.public_bytes(Encoding.PEM))
    _write(folder / "server.key", server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write(folder / "server.crt", certificate.public_bytes(Encoding.PEM))


def node_key(folder: Path, k: int) -> Path:
    """Return the private key of a node, made if absent; its public half lies beside it."""
    place = folder / f"node-{k}"
    if not place.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        _write(place.with_suffix(".pub"), public + b"\n")
        _write(place, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return place


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALID)
    )


def _write(place: Path, data: bytes) -> None:
    place.touch(mode=0o600)
    place.write_bytes(data)
