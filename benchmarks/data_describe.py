"""Loading and describing a stream: how long each takes, and what comes out, as docs/results/streams.md.

python -m benchmarks.data_describe [NAME=STREAM.jsonl.gz ...] --output docs/results
"""

import argparse
import time
from pathlib import Path

from benchmarks.common import header
from coreplay.data import FederatedStream, load
from coreplay.data.describe import describe
from coreplay.files import write_text
from coreplay.report.renderer import save_figure
from coreplay.report.studies import stream_figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("streams", nargs="*", help="NAME=FILE, beside the synthetic stream")
    parser.add_argument("--output", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    header("pyarrow")
    lines = [
        "# What the streams are like",
        "",
        "Made by `python -m benchmarks.data_describe NAME=FILE ...`. Divergences are",
    ]
    lines += [
        "Jensen-Shannon, bits; *random* is a random split of the same sizes ([what is measured](../streams.md)).",
        "",
    ]
    lines += [
        "| stream | samples | clients | drift, first v last | random | heterogeneity | random | load + describe, s |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, path in [("synthetic", ""), *(tuple(given.split("=", 1)) for given in arguments.streams)]:
        began = time.perf_counter()
        stream: FederatedStream = load("files", path=path) if path else load("synthetic", seed=0)
        loaded = time.perf_counter()
        text, details = describe(stream)
        done = time.perf_counter()
        print(f"{name}: {stream}, load {loaded - began:.2f} s, describe {done - loaded:.2f} s (asked: < 15 s together)")
        save_figure(stream_figure(name, text, details), arguments.output / f"stream_{name}.png")
        drift = f"{text.drift_first_last:.3f} | {text.drift_first_last_random:.3f}"
        apart = f"{text.heterogeneity:.3f} | {text.heterogeneity_random:.3f}"
        lines.append(f"| {name} | {text.samples} | {text.clients} | {drift} | {apart} | {done - began:.1f} |")
    for name in ("synthetic", *(given.partition("=")[0] for given in arguments.streams)):
        lines += ["", f"![{name}](stream_{name}.png)"]
    write_text(arguments.output / "streams.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
