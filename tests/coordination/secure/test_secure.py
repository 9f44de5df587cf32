"""The secure sum: right with any drop-outs above the threshold, a clear failure below it, and nothing said twice."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coreplay.coordination.messages import Stamp
from coreplay.coordination.secure import SecureClient, SecureServer, ThresholdError
from coreplay.coordination.secure.protocol import (
    SHARE_BYTES,
    Complaint,
    Inbox,
    Keys,
    Masked,
    Request,
    Reveal,
    Roster,
    Shares,
    add_masks,
    from_words,
    join,
    scale_of,
    split,
    to_words,
)
from coreplay.errors import InputError

STAMP = Stamp("r", period=2, round=3)


def begin(count=5, dimension=7, bound=2.0, threshold=None, silent=()):
    names = [f"c{k}" for k in range(count)]
    clients = {name: SecureClient(name, STAMP, bound=bound) for name in names}
    server = SecureServer(dict.fromkeys(names, bound), dimension, STAMP, threshold=threshold)
    for name in names:
        if name not in silent:
            server.receive(clients[name].advertise())
    return clients, server


def vector(seed, dimension=7, length=1.9):
    v = np.random.default_rng(seed).normal(size=dimension)
    return np.float32(length * v / np.linalg.norm(v))


def share(clients, server, silent=()):
    roster = server.roster()
    for name in roster.masks:
        if name not in silent:
            server.receive(clients[name].share(roster))


@given(
    count=st.integers(2, 7),
    fates=st.lists(st.integers(0, 4), min_size=7, max_size=7),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_drop_outs(count, fates, seed):
    """A client with fate f falls silent before its f-th message (4: never)."""
    fate = {f"c{k}": fates[k] for k in range(count)}
    names = sorted(fate)
    clients, server = begin(count, silent=[n for n in names if fate[n] < 1])
    left = [n for n in names if fate[n] >= 1]
    try:
        share(clients, server, silent=[n for n in names if fate[n] < 2])
        left = [n for n in left if fate[n] >= 2]
        given_ = {}
        for k, name in enumerate(names):
            if fate[name] >= 3 and name in left:
                given_[name] = vector(seed + k)
                server.receive(clients[name].mask(given_[name], server.inbox(name)))
        request = server.request()
        for name in given_:
            if fate[name] >= 4:
                server.receive(clients[name].reveal(request))
        total = server.total()
    except ThresholdError:
        enough = False
    else:
        enough = True
        assert server.survivors == sorted(given_)
        np.testing.assert_allclose(total, sum(given_.values()), atol=1e-6)
    assert enough == (sum(f >= 4 for f in fate.values()) >= server.threshold)


def whole(silent_at_mask=()):
    clients, server = begin()
    share(clients, server)
    answers = {n: c.mask(vector(k), server.inbox(n)) for k, (n, c) in enumerate(clients.items())}
    for name, answer in answers.items():
        if name not in silent_at_mask:
            server.receive(answer)
    return clients, server, answers


def test_a_late_vector_is_not_added_and_stays_hidden():
    clients, server, answers = whole(silent_at_mask=["c4"])
    request = server.request()
    server.receive(answers["c4"])  # too late: its pairwise key is about to be revealed
    for name in request.survivors:
        reveal = clients[name].reveal(request)
        assert "c4" in reveal.keys
        assert "c4" not in reveal.seeds
        server.receive(reveal)
    np.testing.assert_allclose(server.total(), sum(vector(k) for k in range(4)), atol=1e-6)
    assert "c4" not in server.survivors
    with pytest.raises(InputError, match="a second is refused"):
        clients["c0"].reveal(Request(*STAMP, survivors=sorted(clients)))


def test_repeated_messages_change_nothing():
    clients, server, answers = whole()
    server.receive(answers["c0"])
    server.receive(clients["c1"].advertise())
    request = server.request()
    for client in clients.values():
        reveal = client.reveal(request)
        server.receive(reveal)
        server.receive(reveal)
    np.testing.assert_allclose(server.total(), sum(vector(k) for k in range(5)), atol=1e-6)
    np.testing.assert_allclose(server.total(), sum(vector(k) for k in range(5)), atol=1e-6)


def test_one_masked_vector_looks_like_noise():
    clients, server = begin(3, dimension=20_000)
    share(clients, server)
    words = clients["c0"].mask(np.zeros(20_000, np.float32), server.inbox("c0")).words
    assert abs(np.mean(words / 2**32) - 0.5) < 0.01
    bits = np.unpackbits(words.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 0.005


def test_the_norm_bound_is_enforced_at_the_client():
    clients, server = begin()
    share(clients, server)
    for bad in (vector(0, length=2.1), np.full(7, np.nan, np.float32)):
        with pytest.raises(InputError, match="at most 2 is allowed"):
            clients["c0"].mask(bad, server.inbox("c0"))


def test_no_overflow_at_the_bound():
    clients, server = begin(4, dimension=1, bound=5.0)
    share(clients, server)
    for name, client in clients.items():
        server.receive(client.mask(np.float32([5.0]), server.inbox(name)))
    request = server.request()
    for client in clients.values():
        server.receive(client.reveal(request))
    assert server.total()[0] == pytest.approx(20.0, rel=1e-6)


def test_changed_shares_are_noticed():
    clients, server = begin()
    share(clients, server)
    inbox = server.inbox("c0")
    sealed = inbox.sealed | {"c1": inbox.sealed["c2"]}
    complaint = clients["c0"].mask(vector(0), dataclasses.replace(inbox, sealed=sealed))
    assert isinstance(complaint, Complaint)
    assert (complaint.client, complaint.accused) == ("c0", ["c1"])


def test_a_wrong_reveal_is_noticed():
    clients, server, _ = whole()
    request = server.request()
    for client in clients.values():
        reveal = client.reveal(request)
        seeds = reveal.seeds | {"c3": "00" * SHARE_BYTES}
        server.receive(dataclasses.replace(reveal, seeds=seeds))
    with pytest.raises(InputError, match="do not give"):
        server.total()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 2}, "more than half"),
        ({"limit": 0.5}, "limit must be at least"),
        ({"round": 9}, "roster is of"),
        ({"masks": {"c1": "00" * 32}}, "does not have the keys"),
    ],
)
def test_a_client_checks_the_roster(change, message):
    clients, server = begin()
    with pytest.raises(InputError, match=message):
        clients["c0"].share(dataclasses.replace(server.roster(), **change))


@pytest.mark.parametrize("key", ["zz", "00" * 31, "00" * 32, "xyz" * 20])
def test_a_bad_key_never_reaches_the_roster(key):
    clients, server = begin()
    with pytest.raises(InputError):
        server.receive(dataclasses.replace(clients["c0"].advertise(), masks=key))


@pytest.mark.parametrize("sealed", [{"c1": 5}, {"c1": ["a"]}, {"c1": None}])
def test_tables_hold_texts_only(sealed):
    with pytest.raises(InputError, match="inbox has sealed that is not a dict of texts"):
        Inbox(*STAMP, client="c0", sealed=sealed, digests={})


def test_a_client_speaks_once():
    clients, server = begin()
    share(clients, server)
    with pytest.raises(InputError, match="a second roster is refused"):
        clients["c0"].share(server.roster())
    clients["c0"].mask(vector(0), server.inbox("c0"))
    with pytest.raises(InputError, match="a second one is refused"):
        clients["c0"].mask(vector(1), server.inbox("c0"))
    with pytest.raises(InputError, match="2 survivors: the threshold is 4"):
        clients["c0"].reveal(Request(*STAMP, survivors=["c0", "c1"]))


def test_a_client_refuses_to_be_the_only_one():
    clients, server = begin()
    roster = server.roster()
    keys = {"masks": {"c0": roster.masks["c0"]}, "shares": {"c0": roster.shares["c0"]}}
    alone = dataclasses.replace(roster, threshold=1, **keys)
    with pytest.raises(InputError, match="threshold must be at least 2"):
        clients["c0"].share(alone)


def test_threshold_must_be_a_majority():
    assert [begin(count)[1].threshold for count in (2, 3, 4, 10)] == [2, 2, 3, 7]
    for threshold in (0, 2, 6):
        with pytest.raises(InputError, match="more than half"):
            begin(5, threshold=threshold)
    with pytest.raises(InputError):
        begin(1)


def test_messages_survive_as_bytes():
    clients, server, answers = whole()
    roster, inbox, request = server.roster(), server.inbox("c1"), server.request()
    sent = [clients["c1"].advertise(), roster, inbox, request, clients["c1"].reveal(request), answers["c1"]]
    for message, kind in zip(sent, (Keys, Roster, Inbox, Request, Reveal, Masked), strict=True):
        data = message.to_bytes()
        assert kind.from_bytes(data).to_bytes() == data
        with pytest.raises(InputError):
            kind.from_bytes(data[:-1])
        with pytest.raises(InputError):
            Shares.from_bytes(data)


@given(secret=st.binary(min_size=32, max_size=32), count=st.integers(1, 9), data=st.data())
def test_any_threshold_shares_give_the_secret(secret, count, data):
    threshold = data.draw(st.integers(1, count))
    shares = dict(enumerate(split(secret, threshold, count), 1))
    some = data.draw(st.permutations(sorted(shares)))[:threshold]
    assert join({k: shares[k] for k in some}) == secret


def test_fewer_shares_give_nothing():
    shares = split(b"k" * 32, 3, 5)
    with pytest.raises(InputError, match="do not give a secret"):
        join({1: shares[0], 2: shares[1]})


@given(values=st.lists(st.floats(-5, 5, width=32), max_size=30).map(np.float32))
def test_fixed_point_and_masks_come_off_again(values):
    scale = scale_of(50.0, 10)
    words = to_words(values, scale)
    before = words.copy()
    add_masks(words, [b"a" * 32, b"b" * 32], [b"c" * 32])
    add_masks(words, [b"c" * 32], [b"a" * 32, b"b" * 32])
    np.testing.assert_array_equal(words, before)
    np.testing.assert_allclose(from_words(words, scale), values, atol=2e-7)
