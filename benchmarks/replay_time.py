"""Time of the replay store: one client, and a whole selection phase of a simulation.

    python -m benchmarks.replay_time

Samples are texts of ten words, 20 per client. The other side of one client's `replace` is a bare write and fsync of the
same bytes to a file, the least that any durable store can take; that of `replace` with all clients is one call per
client.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import header, pair
from coreplay.replay import Buffer, Item, Store, decode, encode

WORDS = ("play", "stop", "some", "jazz", "lights", "kitchen", "tomorrow", "remind", "weather", "the")


def buffers(clients: int, samples: int, period: int) -> list[Buffer]:
    rng = random.Random(period)

    def item(k: int) -> Item:
        text = " ".join(rng.choices(WORDS, k=10))
        return Item(f"{k:016x}", period, encode({"text": text, "label": k, "timestamp": 1_600_000_000 + k}))

    return [Buffer(f"client {m}", period, samples, tuple(item(k) for k in range(samples))) for m in range(clients)]


def median(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    header("safetensors")
    with tempfile.TemporaryDirectory() as folder:
        several = [buffers(options.clients, options.samples, period) for period in range(options.repeats + 2)]
        names = [buffer.client for buffer in several[0]]
        print(f"{options.clients} clients x {options.samples} samples, median of {options.repeats}")

        with Store.open(Path(folder) / "one.sqlite") as store, (Path(folder) / "bare").open("wb") as bare:
            payload = b"".join(item.payload for item in several[0][0].items)

            def write() -> None:
                bare.write(payload)
                bare.flush()
                os.fsync(bare.fileno())

            periods = iter(range(10**9))
            ours, theirs = pair(
                lambda: store.replace(Buffer("a", period := next(periods), period + 20, several[0][0].items)), write, 99
            )
            print(f"replace, one client: {ours * 1e3:.2f} ms; bare write and fsync {theirs * 1e3:.2f} ms")
            print(f"ratio {ours / theirs:.1f}")

        path = Path(folder) / "all.sqlite"
        with Store.open(path) as store, Store.open(Path(folder) / "single.sqlite") as other:
            at_once, singly = iter(several), iter(several)
            ours, theirs = pair(
                lambda: store.replace(*next(at_once)),
                lambda: [other.replace(buffer) for buffer in next(singly)],
                options.repeats,
            )
            print(
                f"replace all: {ours * 1e3:.0f} ms; client by client {theirs * 1e3:.0f} ms; ratio {theirs / ours:.1f}"
            )
            print(f"load_many: {median(lambda: store.load_many(names), options.repeats) * 1e3:.0f} ms")
            print(f"rewind by a period: {median(lambda: store.rewind(options.repeats - 1), 1) * 1e3:.0f} ms")
        opening = median(lambda: Store.open(path).close(), options.repeats)
        print(f"open with its check: {opening * 1e3:.1f} ms, {path.stat().st_size / 2**20:.1f} MB")

        fields = {"text": "play some jazz in the kitchen", "label": 3, "timestamp": 1_600_000_000}
        encoded = encode(fields)
        writing = median(lambda: [encode(fields) for _ in range(1000)], options.repeats)
        reading = median(lambda: [decode(encoded) for _ in range(1000)], options.repeats)
        print(f"encode {writing * 1e3:.1f} µs, decode {reading * 1e3:.1f} µs a text sample, {len(encoded)} bytes")


if __name__ == "__main__":
    main()
