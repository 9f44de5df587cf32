"""A client's part in a coordination between messages: repeated requests, attempts, and secrets that are forgotten."""

import numpy as np
import pytest

from coreplay.coordination import Client, Server, Session
from coreplay.coordination.messages import Stamp
from coreplay.coordination.secure import SecureServer
from coreplay.coordination.secure.protocol import Keys, Masked, Reveal, Shares
from coreplay.errors import RefusedError

NAMES, BUDGET, DIMENSION = ["ann", "bo", "cy"], 3, 20


def client(name):
    rows = np.random.default_rng(NAMES.index(name)).normal(size=(12, DIMENSION)) + 0.5
    return Client(name, rows, BUDGET, run="run")


class Stored:
    """Clients that live in a fresh process for each message: only the state is left of a session."""

    def __init__(self):
        self.states = {}

    def __call__(self, name, call):
        session = Session(lambda: client(name), self.states.get(name))
        answer = call(session)
        self.states[name] = session.state()
        return answer

    def keys(self, name, attempt=0):
        return self(name, lambda session: session.contribute("one", None, secure=True, attempt=attempt)).data

    def step(self, name, step, message):
        """Take a step; the same once more gives the same answer, and another message for it is refused."""
        data = message.to_bytes()
        first = self(name, lambda session: session.step("one", step, 0, data))
        assert self(name, lambda session: session.step("one", step, 0, data)) == first
        with pytest.raises(RefusedError, match=f"has answered another '{step}'"):
            self(name, lambda session: session.step("one", step, 0, b"another"))
        return first


def test_a_secure_sum_over_stored_states_survives_repeated_requests():
    clients = Stored()
    server = SecureServer(dict.fromkeys(NAMES, float(BUDGET)), DIMENSION, Stamp("run", 0, 0))
    for name in NAMES:
        server.receive(Keys.from_bytes(clients.keys(name)))
    for name in NAMES:
        server.receive(Shares.from_bytes(clients.step(name, "share", server.roster())))
    for name in NAMES[:2]:  # the third drops out
        server.receive(Masked.from_bytes(clients.step(name, "mask", server.inbox(name))))
    for name in NAMES[:2]:
        server.receive(Reveal.from_bytes(clients.step(name, "reveal", server.request())))
    expected = sum(client(name).begin().vector for name in NAMES[:2])
    np.testing.assert_allclose(server.total(), expected, atol=1e-4)


def test_each_attempt_and_each_coordination_has_secrets_of_its_own():
    clients = Stored()
    first = clients.keys("ann")
    second = clients.keys("ann", attempt=1)
    assert clients.keys("ann", attempt=1) == second != first
    for attempt, words in ((3, "tried 3 times at most"), (-1, "tried 3 times at most")):
        with pytest.raises(RefusedError, match=words):
            clients.keys("ann", attempt=attempt)
    session = Session(lambda: client("ann"), clients.states["ann"])
    with pytest.raises(RefusedError, match="not in the secure sum of round 1"):
        session.step("one", "share", 1, b"")
    with pytest.raises(RefusedError, match="has not been part of this coordination"):
        session.step("another", "share", 0, b"")
    assert clients.keys("ann") not in (first, second)  # it begins again


def test_an_earlier_attempt_of_a_later_round_is_refused():
    server = Server({"ann": BUDGET, "bo": BUDGET}, DIMENSION, 3, run="run")
    sessions = {name: Session(lambda name=name: client(name)) for name in ("ann", "bo")}
    for session in sessions.values():
        assert server.receive(session.contribute("one", None).data).counted
    broadcast = server.broadcast().to_bytes()
    keys = [sessions["ann"].contribute("one", broadcast, secure=True, attempt=k).data for k in (0, 1)]
    assert keys[0] != keys[1]
    with pytest.raises(RefusedError, match="attempt 0 at this secure sum is over: client is in attempt 1"):
        sessions["ann"].contribute("one", broadcast, secure=True, attempt=0)


def test_secrets_are_forgotten_after_the_round_and_at_the_end():
    server = Server(dict.fromkeys(("ann", "bo"), BUDGET), DIMENSION, 3, run="run")
    sessions = {name: Session(lambda name=name: client(name)) for name in ("ann", "bo")}
    for session in sessions.values():
        assert server.receive(session.contribute("one", None).data).counted
    ann, broadcast = sessions["ann"], server.broadcast().to_bytes()
    plain = len(ann.state())
    ann.contribute("one", broadcast, secure=True)
    assert len(ann.state()) > plain + 100
    ann.finish("one", broadcast)
    assert b"secure" not in ann.state()
    assert b"contribution" not in ann.state()
    with pytest.raises(RefusedError, match="not in the secure sum"):
        ann.step("one", "share", 1, b"")


def test_a_coordination_begun_anew_forgets_what_was_answered_before():
    session = Session(lambda: client("ann"))

    def rounds(name):
        server = Server({"ann": BUDGET}, DIMENSION, 3, run="run")
        broadcast, sent = None, []
        while not server.done:
            sent.append(session.contribute(name, broadcast).data)
            assert server.receive(sent[-1]).counted
            broadcast = server.broadcast().to_bytes()
        return sent, session.finish(name, broadcast).tolist()

    assert rounds("one") == rounds("one") == rounds("two")
    with pytest.raises(RefusedError, match="has not been part of this coordination"):
        session.finish("three", b"broadcast")
    assert len(session.finish("three", None)) == BUDGET  # alone
