"""Peak memory of the factored gram, beside a training step on the same pool; and how it grows with the pool.

Every measurement is a process of its own. `base` is the peak once the model and the batch are there.

Run: python -m benchmarks.gradient_memory
"""

import argparse
import resource
import subprocess
import sys
import time

import coreplay
from benchmarks.gradient_models import TOKENS, full_loss, masked_loss, print_versions, tinybert, train_step, utterances

LOSSES = {"masked only": masked_loss, "everywhere": full_loss}
MEGABYTE = 1e6


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE


def measure(task, logits, n, limit, shortest):
    """Run one task in this process and print base, peak and seconds."""
    model, batch, loss = tinybert(), utterances(n, shortest=shortest), LOSSES[logits]
    base, start = peak(), time.perf_counter()
    if task == "step":
        train_step(model, loss, batch)
    else:
        coreplay.gradient_matrix(model, loss, batch, memory_limit=limit).gram()
    print(base, peak(), time.perf_counter() - start)


def apart(task, logits, n, limit, shortest=None):
    """Measure in a process of its own: base and peak in megabytes, seconds."""
    command = [sys.executable, "-m", "benchmarks.gradient_memory", "--task", task, "--logits", logits]
    command += ["--samples", str(n), "--limit", str(limit), "--shortest", str(shortest or TOKENS)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(word) for word in output.split()[-3:]]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=["step", "gram"])
    parser.add_argument("--logits", choices=sorted(LOSSES))
    parser.add_argument("--samples", type=int)
    parser.add_argument("--limit", type=int, default=2 * 2**30)
    parser.add_argument("--shortest", type=int)
    given = parser.parse_args()
    if given.task:
        measure(given.task, given.logits, given.samples, given.limit, given.shortest)
        return
    print_versions()
    print("peak of step and gram, ratio; the same beyond base, ratio, limit of the ratio")
    for logits in LOSSES:
        for n in (64, 256):
            base, step, _ = apart("step", logits, n, given.limit)
            own_base, gram, _ = apart("gram", logits, n, given.limit)
            more, own_more = step - base, gram - own_base
            print(
                f"{logits:12} {n:7} {step:7.0f}MB {gram:7.0f}MB {gram / step:6.2f} "
                f"{more:7.0f}MB {own_more:7.0f}MB {own_more / more:6.2f} {2.0:6.1f}",
                flush=True,
            )
    limit = 2**30
    print(f"\nflatness with memory_limit={limit / MEGABYTE:.0f} MB, masked logits, 5 to 16 tokens")
    for n in (250, 500, 2000):
        base, gram, seconds = apart("gram", "masked only", n, limit, shortest=5)
        print(f"{n:5} samples: {gram - base:6.0f}MB beyond base, {seconds:6.0f}s", flush=True)


if __name__ == "__main__":
    main()
