"""Runs on real SuperLinks and SuperNodes on loopback, with TLS and registered keys."""

import os
import signal
import subprocess
import threading
import time

import numpy as np
import pytest

from coreplay.engines import run
from coreplay.engines.flower import certificates
from coreplay.engines.flower.deployment import Deployment, Way, free_port, submit
from coreplay.engines.flower.environment import environment
from coreplay.errors import InputError
from coreplay.federated import Run
from tests.engines.flower.common import client_stores, command, digits, kept, lines, metrics

pytestmark = pytest.mark.flower


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("deployment"), 3, tls=True) as made:
        yield made


def test_deployment_equals_the_local_engine(deployment, tmp_path):
    settings = {"federated__rounds": 1}
    run(digits(**settings), tmp_path / "local")
    over = digits(engine__name="flower", engine__connection=str(deployment.folder), **settings)
    done = run(over, tmp_path / "flower")
    assert kept([tmp_path / "local" / "buffers.sqlite"]) == kept(client_stores(deployment.folder / "clients"))
    np.testing.assert_allclose(metrics(tmp_path / "flower"), metrics(tmp_path / "local"), rtol=1e-5)
    for name in ("rounds.jsonl", "coordination.jsonl"):
        assert lines(tmp_path / "flower", name) == lines(tmp_path / "local", name)
    assert done.metrics["accuracy"] == Run.load(tmp_path / "local").metrics["accuracy"]


def refused(deployment, folder, *options: str) -> str:
    """Start a SuperNode that must not be let in; return what it says before it ends."""
    given = ["flower-supernode", "--superlink", deployment.address, "--port", str(free_port()), *options]
    given += ["--node-config", "partition-id=0", "--max-retries", "1", "--max-wait-time", "5"]
    log = folder / "refused.log"
    with log.open("wb") as output:
        surroundings = environment(deployment.home)
        process = subprocess.Popen(given, env=surroundings, stdout=output, stderr=output, start_new_session=True)
    try:
        assert process.wait(60) != 0
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it leaves a helper behind
    return log.read_text()


def test_strangers_are_refused(deployment, tmp_path):
    root = f"--root-certificates={deployment.folder / 'tls' / 'ca.crt'}"
    stranger, known = certificates.node_key(tmp_path, 0), deployment.folder / "tls" / "node-0"
    certificates.make(tmp_path / "other")
    other = f"--root-certificates={tmp_path / 'other' / 'ca.crt'}"
    assert "305" in refused(deployment, tmp_path, root, f"--auth-supernode-private-key={stranger}")
    assert "certificate verify failed" in refused(deployment, tmp_path, other, f"--auth-supernode-private-key={known}")
    assert "must be registered" in refused(deployment, tmp_path, root)  # no key at all
    assert sorted(deployment.running()) == ["node-0", "node-1", "node-2", "superlink"]


class Following(threading.Thread):
    """A run in a thread, whose events can be waited for."""

    def __init__(self, settings, folder):
        super().__init__()
        self.settings, self.folder = settings, folder
        self.events, self.problem = [], None
        self.start()

    def run(self):
        try:
            submit(self.settings, self.folder, observer=self.events.append)
        except BaseException as error:
            self.problem = error

    def until(self, kind, count=1):
        end = time.monotonic() + 240
        while sum(event.kind == kind for event in self.events) < count:
            assert self.is_alive(), self.problem
            assert time.monotonic() < end, [event.kind for event in self.events]
            time.sleep(0.1)


@pytest.fixture
def plain(tmp_path):
    """Without keys a node that is killed may come back at once; with one, when Flower has missed its heartbeat."""
    with Deployment(tmp_path / "plain", 3) as made:
        yield made


def test_killed_nodes_are_named_and_come_back_with_their_buffers(plain, tmp_path):
    changes = {"engine__connection": str(plain.folder), "engine__timeout": 30, "engine__quorum": 0.5}
    going = Following(digits(engine__name="flower", **changes), tmp_path / "run")
    going.until("round")
    time.sleep(3)
    plain.kill_node(0)  # in training
    going.until("round", 2)
    plain.start_node(0)
    going.until("coordination")
    plain.kill_node(1)  # in the coordination
    going.until("selected")
    plain.start_node(1)
    stores = f"clients/*/{(tmp_path / 'run' / 'run.id').read_text()}/buffers.sqlite"
    before = kept(plain.folder.glob(stores))
    going.until("round", 3)
    plain.kill_node(2)  # between rounds
    plain.start_node(2)
    going.join(300)
    assert going.problem is None
    assert (tmp_path / "run" / "summary.json").exists()
    rows = lines(tmp_path / "run", "rounds.jsonl")
    assert list(rows[1]["missing"]) == ["client0"]
    assert list(rows[3]["missing"]) == ["client2"]
    warned = " ".join(event.facts["text"] for event in going.events if event.kind == "warning")
    assert all(repr(client) in warned for client in ("client0", "client1", "client2"))
    assert lines(tmp_path / "run", "coordination.jsonl")[1]["answered"] == 2  # without client1
    assert len(before["client0"]) == len(before["client2"]) == 3
    assert kept(plain.folder.glob(stores)) == before  # what was kept is there after the restarts


def test_up_and_ctrl_c_leave_nothing_behind(tmp_path):
    process = command("flower", "up", "--clients", 1, "-o", tmp_path / "up", stdout=subprocess.PIPE, text=True)
    with process.stdout as said:
        assert "SuperLink at 127.0.0.1" in said.readline()
        started = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
        assert len(started.stdout.split()) == 2
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(40) == 0
    for pid in started.stdout.split():
        assert subprocess.run(["pgrep", "-g", pid], capture_output=True, check=False).stdout == b""


def test_ways_that_lead_nowhere(tmp_path):
    with pytest.raises(InputError, match="--connection"):
        Way.to(None)
    with pytest.raises(InputError, match="no deployment"):
        Way.to(str(tmp_path / "nowhere"))
    assert Way.to("somewhere") == Way("somewhere", None)
