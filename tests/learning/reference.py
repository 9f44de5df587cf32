"""A plain federated loop over periods, and every learning method written a second time in the most obvious way.

Nothing of the library's learning code is used: parameters are lists of tensors, gradients come from autograd, states
are dictionaries. Random choices are drawn from the same generators as in the library.
"""

from copy import deepcopy

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn import functional

import coreplay
from coreplay.data import Samples
from coreplay.seeding import generator
from coreplay.tasks import batch_rows, view


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def mean_loss(task, model, samples, masks=None):
    batch = task.collate(samples, masks)
    return task.per_sample_loss(model, batch).sum() / task.weights(batch).sum()


def gradient_of(loss, model):
    return flat(torch.autograd.grad(loss, list(model.parameters())))


class Method:
    """FedAvg on the pool. Methods override what they change, from a period on; `run` is the loop that calls them."""

    from_period = 1

    def __init__(self, **options):
        self.__dict__.update(options)
        self.state, self.received = {}, {}

    def batches(self, me, default):
        return default

    def weigh(self, me, samples):
        return samples

    def loss(self, me, samples, batch, outputs, losses):
        return 0.0

    def gradient(self, me, gradient, loss):
        return gradient

    def finish_round(self, me):
        pass

    def aggregate(self, w, changes, weights, everybody):
        return w + sum(n * change for n, change in zip(weights, changes, strict=True)) / sum(weights)

    def end_round(self, w, weights):
        pass

    def finish_model(self, w, start):
        return w

    def finish_period(self, me):
        pass

    def end_period(self, w):
        pass

    def keep(self, me, kept):
        pass


class Client:
    """One client's turn: its pool, its model, and the generator of the method."""

    def __init__(self, run, name, period, round):
        self.run, self.name, self.period, self.task = run, name, period, run.task
        new = run.stream.samples(name, period)
        kept = run.buffers.get(name)
        self.pool = Samples.joined([new, kept]) if kept is not None else new
        self.new = self.pool[np.flatnonzero(self.pool.arrived == period)]
        self.kept = self.pool[np.flatnonzero(self.pool.arrived < period)]
        self.seen = run.offered.get(name, 0)
        self.rng = generator(run.seed, name, period, f"hook {run.hook}", round)
        self.model = deepcopy(run.model)
        self.w0 = flat(self.model.parameters())

    @property
    def w(self):
        return flat(self.model.parameters())

    def model_at(self, w):
        other = deepcopy(self.model).eval()
        torch.nn.utils.vector_to_parameters(w, other.parameters())
        return other

    def drawn_batches(self, samples, size):
        rows = batch_rows(self.task, samples, size, seed=int(self.rng.integers(2**62)), epoch=0)
        return (samples[r] for r in rows)


class Run:
    """The loop. `buffers` are chosen by naive_uniform with the library's generator."""

    def __init__(self, things, settings, method, hook, public=None):
        self.public = public
        self.stream, self.task, self.seed, self.hook = things.stream, things.task, settings.seed, hook
        self.options, self.settings = settings.federated, settings
        self.model = self.task.model(self.seed)
        self.buffers, self.offered = {}, {}
        self.counts = self.stream.counts("train")
        method.run = self
        for period in range(self.stream.periods):
            self.period_start = flat(self.model.parameters())
            self.method = method if period >= method.from_period else Method()
            for round in range(self.options.rounds):
                self.round(period, round)
            w = self.method.finish_model(flat(self.model.parameters()), self.period_start)
            torch.nn.utils.vector_to_parameters(w, self.model.parameters())
            if period + 1 < self.stream.periods:
                clients = [Client(self, name, period, self.options.rounds) for name in self.able(period)]
                for me in clients:
                    method.finish_period(me)
                method.end_period(w)
                self.method = method
                for me in clients:
                    self.choose(me, period)

    def able(self, period):
        return [name for name, count in zip(self.stream.clients, self.counts[:, period], strict=True) if count]

    def round(self, period, round):
        clients = [Client(self, name, period, round) for name in self.able(period)]
        for me in clients:
            self.train(me, period, round)
            self.method.finish_round(me)
        w, weights = clients[0].w0, [len(me.pool) for me in clients]
        new = self.method.aggregate(w, [me.w - w for me in clients], weights, sum(weights))
        torch.nn.utils.vector_to_parameters(new, self.model.parameters())
        self.method.end_round(new, weights)

    def train(self, me, period, round):
        rng = generator(self.seed, me.name, period, "training", round)
        order = int(rng.integers(2**62))
        epoch = period * self.options.rounds + round
        size = self.options.batch_size
        pool = me.pool if self.public is None else Samples.joined([me.pool, self.public])
        default = (pool[rows] for rows in batch_rows(self.task, pool, size, seed=order, epoch=epoch))
        me.model.train()
        me.steps = 0
        for given in self.method.batches(me, default):
            samples = self.method.weigh(me, given)
            batch = self.task.collate(samples, view(order, epoch))
            outputs = self.task.outputs(me.model, batch)
            scale = torch.from_numpy(samples.weight)
            losses = self.task.losses(outputs, batch) * scale
            loss = losses.sum() / (self.task.weights(batch) * scale).sum()
            extra = self.method.loss(me, samples, batch, outputs, losses)
            gradient = gradient_of(loss + extra, me.model)
            gradient = gradient * min(1.0, self.options.max_grad_norm / float(gradient.norm() + 1e-6))
            gradient = self.method.gradient(me, gradient, float(loss.detach()))
            torch.nn.utils.vector_to_parameters(me.w - self.options.learning_rate * gradient, me.model.parameters())
            me.steps += 1

    def choose(self, me, period):
        rng = generator(self.seed, me.name, period, "selection")
        budget = self.settings.replay.budget
        if len(me.pool) > budget:
            rows = coreplay.select(gram=np.eye(len(me.pool)), budget=budget, method="naive_uniform", seed=rng)
        else:
            rows = np.arange(len(me.pool))
        kept = me.pool[rows]
        self.method.keep(me, kept)
        self.buffers[me.name] = kept
        self.offered[me.name] = me.seen + len(me.new)


class Distillation(Method):
    """KL(teacher ‖ student), row by row."""

    average = None

    def loss(self, me, samples, batch, outputs, losses):
        average = me.run.period_start if self.average is None else self.average
        teachers = {"period_start": [me.run.period_start], "average": [average]}
        teachers["both"] = teachers["period_start"] + teachers["average"]
        owners = me.task.output_rows(batch)
        owners = range(len(samples)) if owners is None else owners.tolist()
        found = []
        for w in teachers[self.teacher]:
            with torch.no_grad():
                taught = me.task.outputs(me.model_at(w), batch)
            for row, owner in enumerate(owners):
                kept = samples.arrived[owner] < me.period
                if self.samples == "all" or (self.samples == "kept") == kept:
                    if self.where == "better" and not me.task.losses(taught, batch)[owner] < losses[owner]:
                        found.append(torch.zeros(()))
                        continue
                    p = functional.softmax(taught[row] / self.temperature, dim=0)
                    q = functional.softmax(outputs[row] / self.temperature, dim=0)
                    found.append((p * (p.log() - q.log())).sum())
        return self.strength * self.temperature**2 * torch.stack(found).mean() if found else 0.0

    def end_round(self, w, weights):
        self.average = w if self.average is None else self.decay * self.average + (1 - self.decay) * w


class L2(Method):
    """The gradient of the penalty by autograd."""

    def gradient(self, me, gradient, loss):
        w = me.w.requires_grad_()
        penalty = self.strength / 2 * (w - me.run.period_start).square().sum()
        return gradient + torch.autograd.grad(penalty, w)[0]


class EWC(Method):
    """A list of (Fisher information, anchor) per client, and the gradient of the sum of penalties by autograd."""

    def finish_period(self, me):
        self.state.setdefault(me.name, []).append((self.fisher(me), me.w))

    def fisher(self, me):
        masks = int(me.rng.integers(2**62))
        model = me.model.eval()
        squares = [gradient_of(mean_loss(me.task, model, me.pool[[k]], masks), model) ** 2 for k in range(len(me.pool))]
        return torch.stack(squares).mean(dim=0)

    def gradient(self, me, gradient, loss):
        w = me.w.requires_grad_()
        penalty, stiffness = (w * 0).sum(), torch.zeros_like(w)
        for fisher, anchor in self.terms(me):
            penalty = penalty + self.strength / 2 * (fisher * (w - anchor) ** 2).sum()
            stiffness = stiffness + me.run.options.learning_rate * self.strength * fisher
        return gradient + torch.autograd.grad(penalty, w)[0] / torch.maximum(stiffness, torch.ones_like(w))

    def terms(self, me):
        return self.state.get(me.name, [])


class OnlineEWC(EWC):
    """The last anchor, and decayed Fisher information."""

    def terms(self, me):
        found = self.state.get(me.name, [])
        decayed = [self.decay ** (len(found) - 1 - k) * fisher for k, (fisher, _) in enumerate(found)]
        return [(sum(decayed), found[-1][1])] if found else []


class FedCurv(EWC):
    """The clients' mean Fisher information, weighted by samples."""

    def __init__(self, **options):
        super().__init__(**options)
        self.common, self.found = [], []

    def finish_period(self, me):
        self.found.append((len(me.pool), self.fisher(me)))

    def end_period(self, w):
        total = sum(n for n, _ in self.found)
        self.common.append((sum(n * fisher for n, fisher in self.found) / total, w))
        self.found = []

    def terms(self, me):
        return self.common


class NewOnly(Method):
    """Steps on new samples, in the order that the method's generator gives."""

    def batches(self, me, default):
        return me.drawn_batches(me.new, me.run.options.batch_size)

    def reference(self, me, samples):
        masks = int(me.rng.integers(2**62))
        model = me.model_at(me.w)
        loss = mean_loss(me.task, model, samples, masks)
        return gradient_of(loss, model), float(loss.detach())


def projection(gradient, constraints):
    """Return the nearest vector with no negative product with any constraint, by a general solver on the dual."""
    G, g = torch.stack(constraints).double().numpy(), gradient.double().numpy()
    if (G @ g >= 0).all():
        return gradient
    lengths = np.linalg.norm(G, axis=1, keepdims=True)
    G = G / np.where(lengths > 0, lengths, 1)

    def dual(v):
        found = g + v @ G
        return 0.5 * found @ found, G @ found

    result = minimize(dual, np.zeros(len(G)), jac=True, bounds=[(0, None)] * len(G), tol=1e-14, method="L-BFGS-B")
    return torch.from_numpy(g + result.x @ G).float()


class AGEM(NewOnly):
    """One constraint."""

    def gradient(self, me, gradient, loss):
        return projection(gradient, [self.reference(me, me.kept)[0]]) if len(me.kept) else gradient


class GEM(NewOnly):
    """One constraint per earlier period."""

    def gradient(self, me, gradient, loss):
        if not len(me.kept):
            return gradient
        masks = int(me.rng.integers(2**62))
        model = me.model_at(me.w)
        groups = [me.kept[np.flatnonzero(me.kept.arrived == t)] for t in sorted(set(me.kept.arrived.tolist()))]
        return projection(gradient, [gradient_of(mean_loss(me.task, model, s, masks), model) for s in groups])


class MEGA(NewOnly):
    """Gradients in proportion to losses."""

    def gradient(self, me, gradient, loss):
        if not len(me.kept):
            return gradient
        reference, kept_loss = self.reference(me, me.kept)
        return gradient + kept_loss / loss * reference


class FedAGEM(NewOnly):
    """The reference is the mean over clients of what they found in the last round or at the end of the last period."""

    common = None

    def __init__(self, **options):
        super().__init__(**options)
        self.found = []

    def gradient(self, me, gradient, loss):
        return gradient if self.common is None else projection(gradient, [self.common])

    def finish_round(self, me):
        masks = int(me.rng.integers(2**62)) if len(me.kept) else None
        model = me.model_at(me.w0)
        none = torch.zeros_like(me.w0)
        found = gradient_of(mean_loss(me.task, model, me.kept, masks), model) if len(me.kept) else none
        self.found.append((len(me.pool), found))

    def finish_period(self, me):
        self.found.append((len(me.pool), self.reference(me, me.pool)[0]))

    def end_round(self, w, weights):
        mean = sum(n * found for n, found in self.found) / sum(n for n, _ in self.found)
        self.found = []
        if mean.any():
            self.common = mean

    def end_period(self, w):
        self.end_round(w, None)


class Interpolation(Method):
    """A point between two models."""

    def finish_model(self, w, start):
        return (1 - self.weight) * start + self.weight * w


class DER(Method):
    """Stored logits in a dictionary by sample; each kept sample looked up by itself."""

    def __init__(self, **options):
        super().__init__(**options)
        self.stored = {}

    def keep(self, me, kept):
        with torch.no_grad():
            logits = me.task.outputs(me.model.eval(), me.task.collate(kept))
        for k, number in enumerate(kept.ids.tolist()):
            self.stored.setdefault((me.name, number), logits[k])

    def loss(self, me, samples, batch, outputs, losses):
        kept = np.flatnonzero(samples.arrived < me.period).tolist()
        if not kept:
            return 0.0
        distances = [(outputs[k] - self.stored[me.name, int(samples.ids[k])]).square().mean() for k in kept]
        plain = sum(losses[k] for k in kept) / samples.weight.sum()
        return self.alpha * torch.stack(distances).mean() + (self.beta - 1) * plain


class Ratio(Method):
    """A fixed number of kept samples in each batch; by MIR if asked."""

    def batches(self, me, default):
        if not len(me.kept) or not len(me.new):
            return default
        return self.mixed(me)

    def mixed(self, me):
        size = me.run.options.batch_size
        count = round(self.kept_fraction * size)
        for batch in me.drawn_batches(me.new, size - count):
            if self.retrieval == "mir":
                rows = self.interfered(me, batch, count)
            else:
                rows = me.rng.choice(len(me.kept), count, replace=count > len(me.kept))
            yield Samples.joined([batch, me.kept[rows]])

    def interfered(self, me, batch, count):
        rows = me.rng.choice(len(me.kept), min(self.candidates, len(me.kept)), replace=False)
        if len(rows) <= count:
            return rows
        masks = int(me.rng.integers(2**62))
        model = me.model_at(me.w)
        gradient = gradient_of(mean_loss(me.task, model, batch, masks), model)
        gradient = gradient * min(1.0, me.run.options.max_grad_norm / float(gradient.norm()))
        ahead = me.model_at(me.w - me.run.options.learning_rate * gradient)
        with torch.no_grad():
            rise = [
                float(mean_loss(me.task, ahead, me.kept[[r]], masks) - mean_loss(me.task, model, me.kept[[r]], masks))
                for r in rows
            ]
        return rows[np.argsort(-np.array(rise), kind="stable")[:count]]


class Weight(Method):
    """Loss weights of kept samples."""

    def batches(self, me, default):
        return me.drawn_batches(me.pool, me.run.options.batch_size) if len(me.kept) else default

    def weigh(self, me, samples):
        if not len(me.kept):
            return samples
        weight = self.kept_weight or min(self.max_kept_weight, max(1.0, me.seen / len(me.kept)))
        return samples.replaced(weight=np.where(samples.arrived < me.period, weight, 1.0))


class FedDyn(Method):
    """Corrections per client in a dictionary."""

    common, from_period = 0.0, 0

    def gradient(self, me, gradient, loss):
        return gradient - self.state.get(me.name, 0.0) + self.alpha * (me.w - me.w0)

    def finish_round(self, me):
        self.state[me.name] = self.state.get(me.name, 0.0) - self.alpha * (me.w - me.w0)

    def aggregate(self, w, changes, weights, everybody):
        mean = sum(n * change for n, change in zip(weights, changes, strict=True)) / sum(weights)
        self.common = self.common - self.alpha * mean * sum(weights) / everybody
        return w + mean - self.common / self.alpha
