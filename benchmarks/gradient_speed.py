"""Time of the factored operator on TinyBERT, beside one forward+backward pass, torch.func vmap and Opacus.

Run: python -m benchmarks.gradient_speed [--peers] [--repeats 5]
"""

import argparse
import warnings

import torch
from torch.func import functional_call, grad, vmap

import coreplay
from benchmarks.gradient_models import (
    TOKENS,
    full_loss,
    interleaved,
    masked_loss,
    print_versions,
    tinybert,
    train_step,
    utterances,
)

CHUNKS = (2, 8, 32)  # samples that vmap differentiates together: the fastest of these counts


def own_times(repeats):
    print("one forward+backward; gram with everything, ratio, limit; combine + project, ratio, limit")
    model = tinybert()
    for label, loss in (("masked only", masked_loss), ("everywhere", full_loss)):
        for n, limit in ((64, 2.5), (256, 5.0)):
            batch = utterances(n)
            G = coreplay.gradient_matrix(model, loss, batch)
            x = torch.rand(n)
            times = interleaved(
                {
                    "step": lambda loss=loss, batch=batch: train_step(model, loss, batch),
                    "gram": lambda loss=loss, batch=batch: coreplay.gradient_matrix(model, loss, batch).gram(),
                    "round": lambda G=G, x=x: G.project(G.combine(x)),
                },
                repeats if n <= 64 else max(3, repeats // 2),
            )
            step, gram, both = times["step"], times["gram"], times["round"]
            print(
                f"{label:12} {n:7} {step:8.3f}s {gram:8.3f}s {gram / step:6.2f} {limit:6.1f} "
                f"{both:8.3f}s {both / step:6.2f} {1.5:6.1f}",
                flush=True,
            )


def vmap_gram(model, batch, chunk):
    """Per-sample gradients by vmap over chunks, then their product: the explicit way."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    # vmap cannot follow transformers' branch on the mask's values: give the mask ready made
    seen = batch["attention_mask"].bool()[:, None, None, :].expand(-1, 1, TOKENS, TOKENS)
    batch = {**batch, "attention_mask": seen}

    def one(parameters, sample):
        single = {name: value.unsqueeze(0) for name, value in sample.items()}
        return functional_call(_Loss(model), {f"model.{k}": v for k, v in parameters.items()}, (single,)).sum()

    return _product(list(vmap(grad(one), in_dims=(None, 0), chunk_size=chunk)(parameters, batch).values()))


class _Loss(torch.nn.Module):
    """A loss as a module, so that functional_call can exchange the model's parameters."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, batch):
        """Return the losses."""
        return masked_loss(self.model, batch)


def _for_opacus(model):
    """Prepare a model for Opacus: it hooks in training mode only, and wants each parameter in one layer."""
    del model.cls.predictions.bias  # the decoder has it too
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for layer in model.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.0
    return model.train()


def opacus_gram(wrapped, batch):
    """Opacus' per-sample gradients, then their product."""
    wrapped.zero_grad(set_to_none=True)
    masked_loss(wrapped._module, batch).sum().backward()
    found = [p.grad_sample for p in wrapped.parameters() if getattr(p, "grad_sample", None) is not None]
    gram = _product(found)
    for p in wrapped.parameters():
        p.grad_sample = None
    return gram


def _product(gradients):
    gram = torch.zeros(len(gradients[0]), len(gradients[0]))
    for values in gradients:
        rows = values.flatten(1)
        gram += rows @ rows.T
    scale = gram.diagonal().rsqrt()
    return gram * scale.unsqueeze(1) * scale


def peers(repeats):
    from opacus import GradSampleModule

    n, batch = 64, utterances(64)
    model, other, step_model = tinybert(), tinybert(), tinybert()
    wrapped = GradSampleModule(_for_opacus(other), loss_reduction="sum", strict=False)
    own = coreplay.gradient_matrix(model, masked_loss, batch).gram()
    tried = {size: interleaved({"vmap": lambda size=size: vmap_gram(model, batch, size)}, 1)["vmap"] for size in CHUNKS}
    print("vmap by chunk size: " + ", ".join(f"{size}: {seconds:.3f}s" for size, seconds in tried.items()))
    best = min(CHUNKS, key=tried.__getitem__)
    for name, found in (("vmap", vmap_gram(model, batch, best)), ("Opacus", opacus_gram(wrapped, batch))):
        print(f"largest difference of {name}'s gram from ours: {abs(found.detach().numpy() - own).max():.1e}")
    times = interleaved(
        {
            "step": lambda: train_step(step_model, masked_loss, batch),
            "factored": lambda: coreplay.gradient_matrix(model, masked_loss, batch).gram(),
            "batch first": lambda: coreplay.gradient_matrix(model, masked_loss, batch, batch_first=True).gram(),
            "vmap": lambda: vmap_gram(model, batch, best),
            "Opacus": lambda: opacus_gram(wrapped, batch),
        },
        repeats,
        again=True,
    )
    print(f"\n{n} samples, masked logits, chunks of {best} for vmap; one forward+backward {times['step']:.3f}s")
    for name, wanted in (("vmap", 10), ("Opacus", 5)):
        for way in ("factored", "batch first"):
            ratio = times[name] / times[way]
            print(f"{name:8} {times[name]:8.3f}s  {way:11} {times[way]:6.3f}s  {ratio:5.1f} x faster (limit {wanted})")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="also vmap and Opacus; takes about 9 GB")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    print_versions("opacus")
    own_times(arguments.repeats)
    if arguments.peers:
        print()
        peers(max(1, arguments.repeats // 2))


if __name__ == "__main__":
    main()
