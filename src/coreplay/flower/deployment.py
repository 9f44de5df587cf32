"""A SuperLink with its SuperNodes on this machine, with certificates and keys; for real ones use your organisation's.

`Deployment` starts them and stops them again, whatever happens. It keeps everything in one folder, Flower's own
configuration too, and writes there how to reach it, so that `launch` and `flwr` find the connection.
"""

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coreplay.errors import InputError
from coreplay.files import read_json, write_json, write_text
from coreplay.flower.connection import CONNECTION, Connection, environment
from coreplay.runtime.engine import EngineError

READY = 60.0  # seconds until a SuperLink must answer
STOPPING = 10.0  # seconds that a process gets to end by itself
VALID = datetime.timedelta(days=30)  # of a certificate


class Deployment:
    """A SuperLink and SuperNodes on loopback; `folder` is for logs, buffers, keys, and Flower's configuration.

    With `tls` connections are encrypted, and only nodes whose keys are registered are let in. With `plugins` the nodes
    run the plugins of a run: code that the server sends.
    """

    def __init__(
        self, folder: Path | str, clients: int, *, tls: bool = False, port: int | None = None, plugins: bool = False
    ) -> None:
        self.folder = Path(folder).absolute()
        self.clients, self.tls, self.port, self.plugins = clients, tls, port or free_port(), plugins
        self.home = self.folder / "flwr"
        self.connection = Connection(CONNECTION, self.home)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Where the SuperLink listens."""
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> "Deployment":
        """Start everything; if anything fails, stop what was started."""
        known = self.folder / "deployment.json"
        if known.exists() and _listens(str(read_json(known)["address"])):
            raise InputError(f"{str(self.folder)!r} holds a deployment that is running: stop it, or choose another")
        try:
            self._start("superlink", ["flower-superlink", "--port", str(self.port), *self._configure()])
            write_json(known, {"address": self.address, "clients": self.clients})
            self._until_ready()
            for k in range(self.clients):
                self.start_node(k)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _configure(self) -> list[str]:
        """Write Flower's configuration, and return the options of a SuperLink."""
        (self.folder / "clients").mkdir(mode=0o700, parents=True, exist_ok=True)
        secure, options = "insecure = true", ["--insecure"]
        if self.tls:
            certificate, key = make_certificate(self.folder / "tls")
            secure = f"root-certificates = {json.dumps(str(certificate))}"
            options = [f"--ssl-{name}={certificate}" for name in ("ca-certfile", "certfile")]
            options += [f"--ssl-keyfile={key}", "--enable-supernode-auth", f"--database={self.folder / 'superlink.db'}"]
        about = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
        write_text(self.home / "config.toml", f"{about}{secure}\n")
        return options

    def _until_ready(self) -> None:
        until = time.monotonic() + READY
        while not _listens(self.address):
            code = self._processes["superlink"].poll()
            if code is not None:
                raise EngineError(f"the SuperLink ended with {code}: see {self.log('superlink')}")
            if time.monotonic() > until:
                raise EngineError(f"the SuperLink did not come up within {READY:g} s: see {self.log('superlink')}")
            time.sleep(0.2)

    def start_node(self, k: int) -> None:
        """Start a SuperNode, for the first time or again."""
        settings = {"state": str(self.folder / "clients"), "plugins": self.plugins}
        settings |= {"partition-id": k, "num-partitions": self.clients}
        config = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        command = ["flower-supernode", "--superlink", self.address, "--port", str(free_port()), "--node-config", config]
        if self.tls:
            certificate, _ = make_certificate(self.folder / "tls")
            key = node_key(self.folder / "tls", k)
            if not key.with_suffix(".registered").exists():
                self.connection.ask("supernode", "register", str(key.with_suffix(".pub")), CONNECTION)
                key.with_suffix(".registered").touch()
            command += [f"--root-certificates={certificate}", f"--auth-supernode-private-key={key}"]
        else:
            command.append("--insecure")
        self._start(f"node-{k}", command)

    def kill_node(self, k: int) -> None:
        """Kill a SuperNode and what it started, at once."""
        process = self._processes.pop(f"node-{k}")
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def log(self, name: str) -> Path:
        """Return the log of a process, such as superlink or node-0."""
        return self.folder / "logs" / f"{name}.log"

    def running(self) -> list[str]:
        """Return the processes that are alive."""
        return [name for name, process in self._processes.items() if process.poll() is None]

    def _start(self, name: str, command: list[str]) -> None:
        log = self.log(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            try:
                self._processes[name] = subprocess.Popen(
                    command,
                    env=environment(self.home),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,  # so that all it starts can be stopped with it
                )
            except FileNotFoundError:
                raise InputError(f"{command[0]!r} is not installed: install coreplay[flower]") from None

    def stop(self) -> None:
        """Stop all processes, by SIGTERM and then SIGKILL; none is left, also if ctrl-C comes once more."""
        try:
            self._signal(signal.SIGTERM)
            until = time.monotonic() + STOPPING
            for process in self._processes.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, until - time.monotonic()))
        finally:
            self._signal(signal.SIGKILL)
            for process in self._processes.values():
                process.wait()
            self._processes = {}
            (self.folder / "deployment.json").unlink(missing_ok=True)

    def _signal(self, number: int) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_certificate(folder: Path) -> tuple[Path, Path]:
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
