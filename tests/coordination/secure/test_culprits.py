"""Secure sums with clients that do not keep to the protocol: they are named, and the sum of the rest comes out."""

import dataclasses

import numpy as np
import pytest
from tests.coordination.secure.test_secure import vector

from coreplay.coordination.messages import Stamp
from coreplay.coordination.secure import ImpossibleSumError, SecureClient, SecureServer, add_securely
from coreplay.coordination.secure.protocol import SEALED_BYTES, SHARE_BYTES, Complaint, Keys, Masked, Reveal, Shares
from coreplay.errors import InputError

STAMP = Stamp("r", period=2, round=3)


class Group:
    """Clients of a secure sum, one of whom changes what it sends; every attempt has new ones, as on devices."""

    def __init__(self, count, change, whose="c1", silent=()):
        self.vectors = {f"c{k}": vector(k) for k in range(count)}
        self.change, self.whose, self.silent, self.named, self.attempts = change, whose, silent, {}, 0

    def ask(self, step, messages, attempt):
        if step == "keys":
            self.attempts = attempt + 1
            self.clients = {name: SecureClient(name, STAMP, bound=2.0) for name in messages}
            found = {name: client.advertise().to_bytes() for name, client in self.clients.items()}
        else:
            found = {n: self.clients[n].answer(step, data, self.vectors[n]) for n, data in messages.items()}
        found = {name: data for name, data in found.items() if (name, step) not in self.silent}
        kinds = {"keys": Keys, "share": Shares, "mask": Masked, "reveal": Reveal}
        if self.whose in found:
            found[self.whose] = self.change(kinds[step].from_bytes(found[self.whose]), self).to_bytes()
        return found

    def add(self, bounds=None):
        bounds = bounds or dict.fromkeys(self.vectors, 2.0)
        return add_securely(self.ask, bounds, 7, STAMP, report_culprit=self.named.setdefault)


def equal_keys(message, group):
    return dataclasses.replace(message, shares=message.masks) if isinstance(message, Keys) else message


def copied_key(message, group):
    other = group.clients["c0"].advertise()
    return dataclasses.replace(message, masks=other.masks) if isinstance(message, Keys) else message


def garbage(message, group):
    if not isinstance(message, Shares):
        return message
    return dataclasses.replace(message, sealed=dict.fromkeys(message.sealed, "ab" * SEALED_BYTES))


def false_commitment(message, group):
    return dataclasses.replace(message, commitment="00" * 32) if isinstance(message, Shares) else message


def empty_reveal(message, group):
    return dataclasses.replace(message, seeds={}, keys={}) if isinstance(message, Reveal) else message


def wrong_share(message, group):
    if not isinstance(message, Reveal):
        return message
    return dataclasses.replace(message, seeds=message.seeds | {"c0": "00" * SHARE_BYTES})


def malformed_share(message, group):
    return dataclasses.replace(message, seeds=message.seeds | {"c0": "x"}) if isinstance(message, Reveal) else message


def short_vector(message, group):
    return dataclasses.replace(message, words=message.words[:3]) if isinstance(message, Masked) else message


def false_complaints(message, group):
    if not isinstance(message, Masked):
        return message
    return Complaint(*message.stamp, message.client, [name for name in group.clients if name != "c1"])


@pytest.mark.parametrize("count", [3, 5])
@pytest.mark.parametrize(
    ("change", "reason", "again"),
    [
        (equal_keys, "a key twice", False),
        (copied_key, "that of another client", False),
        (garbage, "clients can't use", True),
        (false_commitment, "do not give its seed", True),
        (empty_reveal, "other clients than it was asked for", False),
        (wrong_share, "a wrong share of client 'c0'", False),
        (malformed_share, "a wrong share of client 'c0'", False),
        (short_vector, "must have 7 numbers", False),
        (false_complaints, "complained of theirs", True),
    ],
)
def test_a_client_that_would_stop_the_sum_is_named_and_the_sum_of_the_rest_comes_out(count, change, reason, again):
    group = Group(count, change)
    found = group.add()
    assert list(group.named) == ["c1"]
    assert reason in group.named["c1"]
    assert group.attempts == 1 + again
    assert set(group.vectors) - {"c1"} <= set(found.survivors)
    np.testing.assert_allclose(found.total, sum(group.vectors[name] for name in found.survivors), atol=1e-6)


def test_a_wrong_share_where_no_other_is_left_is_named_and_the_sum_done_again():
    """Of four, one drops out and one lies: two good shares are fewer than the threshold of three."""
    group = Group(4, wrong_share, silent=[("c3", "mask")])
    found = group.add()
    assert list(group.named) == ["c1"]
    assert (group.attempts, found.survivors) == (2, ["c0", "c2"])
    np.testing.assert_allclose(found.total, group.vectors["c0"] + group.vectors["c2"], atol=1e-6)


def test_one_complaint_keeps_only_the_client_out_that_made_it():
    def one(message, group):
        return Complaint(*message.stamp, "c1", ["c0"]) if isinstance(message, Masked) else message

    group = Group(5, one)
    assert group.add().survivors == ["c0", "c2", "c3", "c4"]
    assert group.attempts == 1


def test_a_sum_is_not_tried_for_ever():
    """A new culprit in every attempt: after the third the sum is given up, and all are named."""

    class Many(Group):
        def ask(self, step, messages, attempt):
            self.whose = f"c{attempt}"
            return super().ask(step, messages, attempt)

    group = Many(8, false_commitment)
    with pytest.raises(InputError, match="'c2' do not give its seed"):
        group.add()
    assert list(group.named) == ["c0", "c1", "c2"]


def test_a_sum_longer_than_its_vectors_can_be_is_refused():
    def huge(message, group):
        if not isinstance(message, Masked):
            return message
        return dataclasses.replace(message, words=message.words + np.uint32(2**30))

    with pytest.raises(ImpossibleSumError, match="at most 10 is possible"):
        Group(5, huge).add()


def test_one_huge_bound_does_not_round_the_others_away():
    bounds = {"c0": 2.0, "c1": 2.0**38, "c2": 2.0, "c3": 2.0}
    with pytest.raises(InputError, match=r"'c1' has a bound of .* rounded away"):
        SecureServer(bounds, 7, STAMP)
    group = Group(4, lambda message, group: message)
    found = group.add(bounds)
    assert found.survivors == ["c0", "c2", "c3"]
    assert "rounded away" in group.named["c1"]
    np.testing.assert_allclose(found.total, sum(group.vectors[name] for name in found.survivors), atol=1e-6)
