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


def make(folder: Path) -> tuple[Path, Path]:
    """Return a certificate for loopback, which vouches for itself, and its key; made unless there are good ones."""
    place, key_place, now = folder / "loopback.crt", folder / "loopback.key", datetime.datetime.now(datetime.UTC)
    if place.exists():
        known = x509.load_pem_x509_certificate(place.read_bytes())
        if known.not_valid_after_utc > now + datetime.timedelta(days=1):
            return place, key_place
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write(key_place, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write(place, certificate.public_bytes(Encoding.PEM))
    return place, key_place


def node_key(folder: Path, k: int) -> Path:
    """Return the private key of a node, made if absent; its public half lies beside it."""
    place = folder / f"node-{k}"
    if not place.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        _write(place.with_suffix(".pub"), public + b"\n")
        _write(place, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return place


def _write(place: Path, data: bytes) -> None:
    place.touch(mode=0o600)
    place.write_bytes(data)
