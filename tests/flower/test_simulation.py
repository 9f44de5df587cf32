"""Runs on Flower's simulation: real Ray actors, in processes of their own."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from coreplay.coordination import Contribution, Session
from coreplay.flower.connection import environment
from coreplay.flower.deployment import free_port
from coreplay.runtime import run
from tests.flower.common import client_stores, command, config, digits, kept, left_of, lines, metrics, python

pytestmark = [pytest.mark.flower, pytest.mark.xdist_group("simulation")]  # Ray takes all cores: one at a time
ROOT = Path(__file__).parents[2]


def written(tmp_path, settings) -> str:
    place = tmp_path / f"{time.monotonic_ns()}.toml"
    place.write_text(settings.toml())
    return str(place)


CAPTURE = """
import sys
from pathlib import Path
from coreplay.flower import grid
from coreplay.flower.messages import from_record
from coreplay.runtime import Config, run

folder = Path(sys.argv[3])
folder.mkdir()
read = grid._read

def recording(message, sent):
    found = from_record(message.content)
    for name, data in {"data": found.data, **{k: v.tobytes() for k, v in found.arrays.items()}}.items():
        (folder / f"{len(list(folder.iterdir()))}-{name}.bin").write_bytes(data)
    return read(message, sent)

grid._read = recording
run(Config.load(sys.argv[1]), sys.argv[2])
"""


def contributions(settings, tmp_path, monkeypatch) -> list[np.ndarray]:
    """Return what the clients of a run contribute, from the serial engine, where it can be seen."""
    found, answer = [], Session.contribute

    def watched(self, *arguments, **options):
        reply = answer(self, *arguments, **options)
        found.append(Contribution.from_bytes(self._parts["contribution"]).vector)
        return reply

    with monkeypatch.context() as patch:
        patch.setattr(Session, "contribute", watched)
        run(settings, tmp_path / "seen")
    return found


PLUGIN = '''
from coreplay.learning.algorithms.fedavg import FedAvg
import coreplay

@coreplay.algorithm("mine")
class Mine(FedAvg):
    """Average, under a name of the user's own."""
'''


def test_simulation_equals_the_serial_engine_and_the_secure_sum_hides_contributions(tmp_path, monkeypatch):
    """Also with an algorithm from a plugin, which is sent to the clients."""
    (tmp_path / "mine.py").write_text(PLUGIN)
    changes = {"replay__secure": True, "federated__rounds": 1, "federated__algorithm": "mine"}
    settings = config(plugins=[str(tmp_path / "mine.py")], engine__name="serial", **changes)
    secret = contributions(settings, tmp_path, monkeypatch)
    assert len(secret) == 6  # 3 clients, 2 rounds
    telling = [vector for vector in secret if vector.any()]  # a client that stays with its choice sends a zero
    assert len(telling) >= 3
    path = written(tmp_path, settings.model_copy(update={"engine": config(engine__name="flower-simulation").engine}))
    done = python(CAPTURE, path, str(tmp_path / "ray"), str(tmp_path / "seen-by-server"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert kept([tmp_path / "seen" / "buffers.sqlite"]) == kept(client_stores(tmp_path / "ray" / "clients"))
    np.testing.assert_allclose(metrics(tmp_path / "ray"), metrics(tmp_path / "seen"), rtol=1e-5)
    assert lines(tmp_path / "ray", "rounds.jsonl") == lines(tmp_path / "seen", "rounds.jsonl")  # to the bit
    here, there = (lines(tmp_path / name, "coordination.jsonl") for name in ("seen", "ray"))
    np.testing.assert_allclose([row["relaxed"] for row in here], [row["relaxed"] for row in there], rtol=1e-4)
    captured = [path.read_bytes() for path in (tmp_path / "seen-by-server").glob("*-data.bin")]
    assert len(captured) > 4 * len(secret)  # join, keys, shares, masked vectors, reveals
    masked = 0
    for data in captured:
        assert b'"kind":"contribution"' not in data
        for vector in telling:
            assert vector.tobytes() not in data
            assert vector[:4].tobytes() not in data
        if b'"kind":"masked"' in data:
            masked += 1
            words = np.frombuffer(data[-4 * len(secret[0]) :], "<u4").astype(np.float64)
            spread = words.std() / 2**32
            assert 0.2 < spread < 0.4  # uniform: 0.289
            for vector in telling:
                signed = np.frombuffer(data[-4 * len(vector) :], "<i4").astype(np.float64)
                assert abs(np.corrcoef(signed, vector)[0, 1]) < 0.6
    assert masked == len(secret)


FAULTS = """
import os, sys, time
from dataclasses import replace
import numpy as np
from flwr.clientapp import ClientApp
from coreplay.flower import app
from coreplay.flower.messages import from_record, to_record
from coreplay.runtime import Config, EngineError, run

faulty = ClientApp()

@faulty.train()
@faulty.evaluate()
@faulty.query("coreplay")
def handle(message, context):
    request = from_record(message.content)
    who = context.node_config["partition-id"]
    late = request.period == 0 and request.round == 1 and request.kind == "train"
    if late and who == 0:
        raise ValueError("private words of a sample")
    if late and who == 1:
        time.sleep(10**6)
    reply = app.handle(message, context)
    if late and who in (2, 3, 4):
        found = from_record(reply.content)
        if who == 2:
            found = replace(found, arrays={"change": np.full_like(found.arrays["change"], np.nan)})
        else:
            found = replace(found, round=0) if who == 3 else replace(found, samples=-5)
        reply.content = to_record(found)
    return reply

app.client_app = faulty
folder = sys.argv[3]
try:
    run(Config.load(sys.argv[1]), folder)
except EngineError as error:
    print(error, os.path.exists(folder + "/summary.json"), flush=True)
run(Config.load(sys.argv[2]), folder, resume=True)
"""


def test_clients_that_fail_are_named_and_below_the_quorum_the_run_stops_and_can_be_resumed(tmp_path):
    """Five of eight clients fail in round 1: too many for one quorum, not for another."""
    changes = {"stream__options": {"num_clients": 8, "num_periods": 2}, "periods": 1, "engine__timeout": 20}
    folder = tmp_path / "run"
    strict, lenient = (
        written(tmp_path, digits(engine__name="flower-simulation", engine__quorum=quorum, **changes))
        for quorum in (0.9, 0.3)
    )
    done = python(FAULTS, strict, lenient, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "the quorum is 8" in done.stdout
    assert "did not answer within" in done.stdout
    assert "False" in done.stdout  # no summary yet
    row = lines(folder, "rounds.jsonl")[1]  # period 0, round 1
    clients = sorted(json.loads((folder / "clients.json").read_text())["train"])
    said = [row["missing"][client] for client in clients[:5]]
    for text, part in zip(said, ("failed", "did not answer", "NaN", "old reply", "how many samples"), strict=True):
        assert part in text
    assert set(row["missing"]) == set(clients[:5])
    assert (folder / "summary.json").exists()
    log = (folder / "run.log").read_text()
    assert "Traceback" not in log
    assert log.count(" begin ") == 2


def test_ctrl_c_stops_ray_and_everything_else(tmp_path):
    path = written(tmp_path, digits(engine__name="flower-simulation", federated__rounds=50))
    folder = tmp_path / "run"
    process = command("run", path, "-o", folder, stderr=subprocess.PIPE)
    until = time.monotonic() + 120
    while not (folder / "rounds.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"--resume" in said
    assert left_of(process.pid) == ""


@pytest.fixture
def flwr(tmp_path):
    """Call `flwr run` on a simulation of this test's own; the SuperLink that it starts is ended with the test."""
    home = tmp_path / "flwr"
    ports = {name: str(free_port()) for name in ("FLWR_LOCAL_SUPERLINK_HTTP_API_PORT", "FLWR_LOCAL_CONTROL_API_PORT")}
    surroundings = environment(home) | ports | {"COREPLAY_STATE": str(tmp_path / "state")}
    size = ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1", "--stream"]

    def call(app, settings):
        given = ["flwr", "run", str(app), "local", *size, "--run-config", settings]
        done = subprocess.run(given, env=surroundings, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout + done.stderr

    yield call
    found = subprocess.run(["pgrep", "-f", f"flower-superlink.*{home}"], capture_output=True, text=True, check=False)
    for process in found.stdout.split():
        os.kill(int(process), signal.SIGTERM)


def test_the_example_goes_on_where_it_stopped_and_adds_at_most_twenty_lines(tmp_path, flwr):
    """Two periods, and when the app is started again the third; the digits of the first are still known."""
    place = ROOT / "examples" / "flower_pytorch"
    added = sum("# replay" in line for path in place.glob("*.py") for line in path.read_text().splitlines())
    assert 5 < added <= 20
    model = f"model='{tmp_path / 'model.pt'}'"
    first = flwr(place, f"periods=2 {model}")
    assert "DEPRECATED" not in first
    assert "period 1: kept 120 samples" in first
    second = flwr(place, model)
    assert "period 2: kept 120 samples" in second
    assert "period 0" not in second
    found = second.rsplit("accuracy {", 1)[1]
    known = float(found.split("'accuracy_0': ")[1].split(",")[0])
    assert known > 0.5  # without replay the digits of the first period are forgotten
