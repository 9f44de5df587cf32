"""What buffers hold at the end of a sweep's runs: whether the texts kept are longer, rarer, or more alike.

    python -m benchmarks.kept sweeps/slurp_speakers [-o docs/results/slurp_speakers/kept.md]

Of each strategy and budget, the mean over seeds of:

- words a text;
- bits a word: −log2 of a word's share of all words that the clients were offered; rare words have many;
- twice there: the share of texts that are in a buffer already, the client's own or another's;
- words covered: of the words of the old periods' test texts, the share that some buffer holds.

The first row is what all clients were offered before the last period. Needs the buffers, which the records of runs in
the repository do not have.
"""

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np

from coreplay.data import FederatedStream, load
from coreplay.errors import InputError
from coreplay.files import write_text
from coreplay.replay import Store, decode
from coreplay.runtime import Config
from coreplay.runtime.api import sample_clients
from coreplay.runtime.run_dir import CONFIG
from coreplay.runtime.strategy import ALL, NONE

EVERYTHING = ("all that was offered", "")


class Measure:
    """Figures of a collection of texts, for one sample of clients."""

    def __init__(self, stream: FederatedStream) -> None:
        old = range(stream.periods - 1)
        self.offered = [text for period in old for text in stream.of_period(period).texts]
        words = Counter(word for text in self.offered for word in text.split())
        self._bits = {word: -math.log2(count / words.total()) for word, count in words.items()}
        self._asked = [
            word for period in old for text in stream.of_period(period, "test").texts for word in text.split()
        ]

    def figures(self, texts: Iterable[str]) -> tuple[float, ...]:
        """Return words a text, bits a word, the share that is twice there, and the share of words covered."""
        texts = list(texts)
        words = [word for text in texts for word in text.split()]
        known = set(words)
        covered = sum(word in known for word in self._asked) / len(self._asked)
        bits = sum(self._bits[word] for word in words) / len(words)
        return len(words) / len(texts), bits, 1 - len(set(texts)) / len(texts), covered


@cache
def measure(config: str) -> Measure:
    """Return the measure of a sample of clients, made once."""
    stream = Config.model_validate_json(config).stream
    return Measure(sample_clients(load(stream.source, **stream.options), stream))


def table(sweep: Path) -> str:
    """Return the table of all finished runs of a sweep that have buffers, in Markdown."""
    found: defaultdict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    for path in sorted(sweep.glob(f"runs/*/{CONFIG}")):
        config = Config.load(path)
        buffers = path.parent / "buffers.sqlite"
        if config.replay.strategy in (NONE, ALL) or not buffers.exists() or not (path.parent / "summary.json").exists():
            continue
        of = measure(Config(stream=config.stream).model_dump_json())
        with Store.open(buffers) as store:
            texts = [decode(item.payload)["content"] for client in store.clients() for item in store.load(client).items]
        found[config.replay.label(), config.replay.budget_label()].append(of.figures(texts))
        if len(found[EVERYTHING]) < measure.cache_info().currsize:
            found[EVERYTHING].append(of.figures(of.offered))
    if not found:
        raise InputError(f"there is no finished run with buffers in {str(sweep / 'runs')!r}")
    lines = [
        "| strategy | budget | words a text | bits a word | twice there | words covered | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for (strategy, budget), rows in sorted(found.items(), key=lambda one: (one[0][1].zfill(6), np.mean(one[1], 0)[1])):
        long, bits, twice, covered = np.mean(rows, axis=0)
        lines.append(f"| {strategy} | {budget} | {long:.2f} | {bits:.2f} | {twice:.1%} | {covered:.1%} | {len(rows)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    text = table(given.sweep)
    print(text)
    if given.output:
        write_text(given.output, text)


if __name__ == "__main__":
    main()
