"""Runs on real SuperLinks and SuperNodes on loopback, with TLS and registered keys."""

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from coreplay.errors import InputError
from coreplay.files import read_json
from coreplay.flower.connection import Connection, environment
from coreplay.flower.deployment import Deployment, free_port, make_certificate, node_key
from coreplay.flower.launch import launch
from coreplay.runtime import Run, run
from tests.flower.common import client_stores, command, digits, kept, left_of, lines, metrics

pytestmark = [pytest.mark.flower, pytest.mark.xdist_group("deployment")]  # which share one, and end it


def children(process) -> list[str]:
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return found.stdout.split()


class Up:
    """`coreplay flower up`: one deployment for several tests; the last of them stops it."""

    def __init__(self, folder):
        self.folder = folder
        options = ("--clients", 3, "--tls", "-o", folder)
        self.process = command("flower", "up", *options, stdout=subprocess.PIPE, text=True)
        self.said = self.process.stdout.readline()

    @property
    def address(self):
        return read_json(self.folder / "deployment.json")["address"]

    def stop(self):
        os.kill(self.process.pid, signal.SIGINT)
        return self.process.wait(60)


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    made = Up(tmp_path_factory.mktemp("up") / "deployment")
    try:
        assert "SuperLink at 127.0.0.1" in made.said
        yield made
    finally:
        if made.process.poll() is None:
            made.stop()
        made.process.stdout.close()


def test_deployment_equals_the_local_engine(up, tmp_path):
    settings = {"federated__rounds": 1}
    run(digits(**settings), tmp_path / "local")
    over = digits(engine__name="flower", engine__connection=str(up.folder), **settings)
    done = run(over, tmp_path / "flower")
    assert kept([tmp_path / "local" / "buffers.sqlite"]) == kept(client_stores(up.folder / "clients"))
    np.testing.assert_allclose(metrics(tmp_path / "flower"), metrics(tmp_path / "local"), rtol=1e-5)
    for name in ("rounds.jsonl", "coordination.jsonl"):
        assert lines(tmp_path / "flower", name) == lines(tmp_path / "local", name)
    assert done.metrics["accuracy"] == Run.load(tmp_path / "local").metrics["accuracy"]


class Stranger:
    """A SuperNode that must not be let in."""

    def __init__(self, up, log, *options):
        given = ["flower-supernode", "--superlink", up.address, "--port", str(free_port()), *options]
        given += ["--node-config", "partition-id=0", "--max-retries", "1", "--max-wait-time", "5"]
        self.log = log
        with log.open("wb") as output:
            surroundings = environment(up.folder / "flwr")
            self.process = subprocess.Popen(
                given, env=surroundings, stdout=output, stderr=output, start_new_session=True
            )

    def said(self) -> str:
        """Return what it says before it ends."""
        try:
            assert self.process.wait(90) != 0
        finally:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leaves a helper behind
        return self.log.read_text()


def test_strangers_are_refused(up, tmp_path):
    root = f"--root-certificates={up.folder / 'tls' / 'loopback.crt'}"
    stranger, known = node_key(tmp_path, 0), up.folder / "tls" / "node-0"
    other = f"--root-certificates={make_certificate(tmp_path / 'other')[0]}"
    refused = [
        Stranger(up, tmp_path / "unregistered.log", root, f"--auth-supernode-private-key={stranger}"),
        Stranger(up, tmp_path / "authority.log", other, f"--auth-supernode-private-key={known}"),
        Stranger(up, tmp_path / "keyless.log", root),
    ]
    said = [each.said() for each in refused]
    assert "305" in said[0]
    assert "certificate verify failed" in said[1]
    assert "must be registered" in said[2]
    assert len(children(up.process)) == 4  # the SuperLink and its three nodes go on


def test_ctrl_c_leaves_nothing_of_a_run_that_is_being_submitted(up, tmp_path):
    given = tmp_path / "run.toml"
    given.write_text(digits().toml())
    where = ("-o", tmp_path / "run", "--engine", "flower", "--connection", up.folder)
    submitting = command("run", given, *where, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (asking := children(submitting)) and time.monotonic() < until:
        time.sleep(0.05)
    assert asking
    os.kill(submitting.pid, signal.SIGINT)
    said = submitting.communicate(timeout=120)[1]
    assert submitting.returncode == 130
    assert ("--resume" if (tmp_path / "run").exists() else "run the same command again") in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in asking)
    runs = Connection.find(str(up.folder)).ask("ls", "coreplay")["runs"]
    assert all(run["status"].startswith("finished") for run in runs)


def test_ctrl_c_stops_a_deployment_and_leaves_nothing_behind(up):
    started = children(up.process)
    assert len(started) == 4
    assert up.stop() == 0
    for pid in started:
        assert left_of(pid) == ""
    with pytest.raises(InputError, match="not running"):
        Connection.find(str(up.folder))


class Following(threading.Thread):
    """A run in a thread, whose events can be waited for."""

    def __init__(self, settings, folder, resume=False):
        super().__init__()
        self.settings, self.folder, self.resume = settings, folder, resume
        self.events, self.problem = [], None
        self.start()

    def run(self):
        try:
            launch(self.settings, self.folder, resume=self.resume, observer=self.events.append)
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
    """Then, when two of three are gone, the run stops; with them back it goes on."""
    changes = {"engine__connection": str(plain.folder), "engine__timeout": 25, "engine__quorum": 0.5}
    settings = digits(engine__name="flower", **changes)
    going = Following(settings, tmp_path / "run")
    going.until("round")
    time.sleep(0.5)  # long enough to be asked, too short to answer
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
    going.until("round", 4)
    plain.kill_node(0)  # too many for the evaluation
    going.join(200)
    said = str(going.problem)
    assert "evaluation: 1 of 3 clients answered, the quorum is 2" in said
    assert "'client0'" in said
    assert "'client2'" in said
    assert not (tmp_path / "run" / "summary.json").exists()
    plain.start_node(0)
    plain.start_node(2)
    resumed = Following(settings, tmp_path / "run", resume=True)
    resumed.join(300)
    assert resumed.problem is None
    assert (tmp_path / "run" / "summary.json").exists()
    rows = lines(tmp_path / "run", "rounds.jsonl")
    assert [list(row.get("missing", ())) for row in rows][1::2] == [["client0"], ["client2"]]
    warned = " ".join(event.facts["text"] for event in going.events if event.kind == "warning")
    assert all(repr(client) in warned for client in ("client0", "client1", "client2"))
    assert lines(tmp_path / "run", "coordination.jsonl")[1]["answered"] == 2  # without client1
    assert len(before["client0"]) == len(before["client2"]) == 3
    assert kept(plain.folder.glob(stores)) == before  # what was kept is there after the restarts
    assert len(lines(tmp_path / "run", "metrics.jsonl")) == 4  # two periods, each tested on both


def test_connections_that_do_not_exist(tmp_path):
    with pytest.raises(InputError, match="--connection"):
        Connection.find(None)
    with pytest.raises(InputError, match="no deployment"):
        Connection.find(str(tmp_path / "nowhere"))
    assert Connection.find("somewhere") == Connection("somewhere", None)
