"""What the server accepts of replies: sums of updates and of metric terms, whoever sent them."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coreplay.errors import InputError
from coreplay.runtime.aggregation import Weights, evaluate, sample_round, sum_over_clients
from coreplay.runtime.engine import Engine, QuorumError
from coreplay.runtime.requests import CHANGE, MODEL, Evaluate, EvaluateReply, KeptReply, Train, TrainReply


class Replies(Engine):
    """An engine whose clients send replies that are known before."""

    def __init__(self, replies, quorum=0.0):
        super().__init__()
        self.replies, self.quorum = replies, quorum
        clients = tuple(sorted(replies))
        counts = np.array([[3, 4]] * len(clients))
        self.registry = SimpleNamespace(clients=clients, periods=2, counts=lambda split: counts)

    def ask(self, requests, observe, missing):
        yield from ((client, self.replies[client]) for client, _ in requests)

    def rewind(self, period):
        pass


GOOD = EvaluateReply(totals=[1.0, 2.0], weights=[3.0, 4.0])


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (EvaluateReply(totals=[1.0, 1.0], weights=[-5.0, -5.0]), "sent weight -5 for the 3 test samples of period 0"),
        (EvaluateReply(totals=[1.0, 1.0], weights=[3.0, 1e9]), "sent weight 1e+09 for the 4 test samples of period 1"),
        (EvaluateReply(totals=[1.0], weights=[1.0, 1.0]), "must send 2 sums of metric terms and of weights"),
        (EvaluateReply(totals=[np.nan, 1.0], weights=[3.0, 1.0]), "all finite"),
        (EvaluateReply(totals=[1.0, 1.0], weights=[3.0, 0.0]), "sent weight 0"),
        (KeptReply(), "must send 2 sums"),
    ],
)
def test_a_client_with_impossible_metrics_is_named_and_left_out(reply, words):
    reports = []
    found = evaluate(Replies({"ann": GOOD, "bo": reply}), Evaluate(), 2, 1.0, reports.append)
    assert words in found.missing["bo"]
    assert words in reports[0].text
    assert [(one.total, one.weight) for one in found.sums] == [(1.0, 3.0), (2.0, 4.0)]
    with pytest.raises(QuorumError, match="evaluation: 1 of 2 clients answered, the quorum is 2; missing: 'bo'"):
        evaluate(Replies({"ann": GOOD, "bo": reply}, 1.0), Evaluate(), 2, 1.0, reports.append)


def summed(replies, quorum=0.0):
    request = Train(arrays={MODEL: np.zeros(2, np.float32)})
    about = (list(replies), lambda client: 3, {CHANGE: 2}, 2, Weights(0.0), lambda report: None, "training")
    return sum_over_clients(Replies(replies, quorum), request, *about)


def trained(vector, samples=3, **fields):
    return TrainReply(samples=samples, arrays={CHANGE: np.asarray(vector, np.float32)}, **fields)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (trained([np.nan, 0]), "sent a change with NaN or infinity"),
        (trained([1, 2, 3]), "sent a change of another shape than the model's"),
        (TrainReply(samples=3, arrays={CHANGE: np.zeros(2)}), "sent a change of another shape"),
        (TrainReply(samples=3), r"must send the vectors ['change']: got []"),
        (trained([1, 2], samples=-5), "must say how many samples it has, from 1 to 3: got -5"),
        (trained([1, 2], samples=4), "must say how many samples it has, from 1 to 3: got 4"),
        (trained([1, 2], total=np.inf), "sent a loss that is not a finite number"),
        (KeptReply(), "sent a reply of another kind"),
    ],
)
def test_a_client_with_an_impossible_update_is_named_and_left_out(reply, words):
    found = summed({"ann": trained([1, 2]), "bo": reply})
    assert words in found.missing["bo"]
    assert found.weight == 3
    assert found.sums[CHANGE].tolist() == [3, 6]
    with pytest.raises(QuorumError, match="training: 0 of 1 clients answered, the quorum is 1; missing: 'bo'"):
        summed({"bo": reply})


def test_a_round_without_clients_is_an_error():
    with pytest.raises(InputError, match="no client answered: training"):
        summed({})


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_reshuffled_clients_all_have_their_turn_before_one_has_its_next(number, most, seed):
    clients, rounds = np.arange(number) * 3, -(-number // most)
    for turn in range(3):
        dealt = [sample_round(clients, most, "reshuffle", (seed, 1), turn * rounds + k) for k in range(rounds)]
        assert sorted(np.concatenate(dealt).tolist()) == clients.tolist()
        assert max(map(len, dealt)) <= most


def test_uniform_sampling_draws_each_round_anew():
    rounds = [sample_round(np.arange(50), 10, "uniform", (0, 0), round) for round in range(40)]
    assert all(len(set(chosen.tolist())) == 10 for chosen in rounds)
    visits = np.bincount(np.concatenate(rounds), minlength=50)
    assert visits.min() < 8 < visits.max()
