"""Kill -9 while buffers are written: none may be torn, none that was acknowledged may be lost.

    python -m benchmarks.replay_kill --kills 200

A process of its own writes buffers as fast as it can, in turns all clients of a group in one transaction and one
client alone, and says on its standard output when it begins and when it is done. It is killed at a random moment after
it began to open the store. Then the store is opened, which checks it, and every client's buffer must be exactly one
that was written, not older than the last that was said to be done; a group must be of one period; the buffer before
must be there too. The next writer goes on in the same store; every tenth begins a new one and is killed in the first
few milliseconds, while it makes it. A killed process is not a power cut: what the system holds in its cache stays.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from coreplay.replay import Buffer, Item, ReplayError, Store

GROUP, ALONE = tuple(f"client {k}" for k in range(20)), "alone"


def buffer_of(client: str, period: int) -> Buffer:
    """Return the one buffer that this client can have after this period, of some kilobytes."""
    rng = random.Random(f"{client} {period}")
    size = rng.randrange(30)
    items = tuple(Item(f"{period} {k}", rng.randint(0, period), rng.randbytes(rng.randrange(600))) for k in range(size))
    return Buffer(client, period, period * 100 + size, items)


def write(path: Path) -> None:
    """Write until killed."""
    print("opening", flush=True)
    store = Store.open(path)
    last = {client: store.load(client).period for client in (GROUP[0], ALONE)}
    print("open", flush=True)
    while True:
        last = {client: period + 1 for client, period in last.items()}
        group, alone = [buffer_of(client, last[GROUP[0]]) for client in GROUP], buffer_of(ALONE, last[ALONE])
        print(f"begin group {last[GROUP[0]]}", flush=True)
        store.replace(*group)
        print(f"done group {last[GROUP[0]]}", flush=True)
        print(f"begin alone {last[ALONE]}", flush=True)
        store.replace(alone)
        print(f"done alone {last[ALONE]}", flush=True)


def kill_once(path: Path, delay: float) -> list[str]:
    """Start a writer, kill it `delay` seconds after it began to open the store; return what it said."""
    program = [sys.executable, "-m", "benchmarks.replay_kill", "--write", str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        said = [writer.stdout.readline().strip()]
        time.sleep(delay)
        writer.kill()
        said += [line.strip() for line in writer.stdout if line.endswith("\n")]
    return said


def problems(path: Path, begun: dict[str, int], done: dict[str, int]) -> tuple[list[str], list[str]]:
    """Return what is torn and what is lost."""
    torn, lost = [], []
    try:
        with Store.open(path) as store:
            found = store.load_many([*GROUP, ALONE])
            before = {client: store.load(client, at=max(found[client].period - 1, -1)) for client in found}
    except ReplayError as error:
        return [str(error)], []
    if len({found[client].period for client in GROUP}) != 1:
        torn.append(f"group of several periods: {sorted(found[client].period for client in GROUP)}")
    for client, buffer in found.items():
        part, period = "alone" if client == ALONE else "group", buffer.period
        if period > begun[part] or (period >= 0 and buffer != buffer_of(client, period)):
            torn.append(f"{client} after period {period}")
        if period >= 1 and before[client] != buffer_of(client, period - 1):
            torn.append(f"{client} before period {period}")
        if period < done[part]:
            lost.append(f"{client}: period {done[part]} was done, {period} is stored")
    return torn, lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--longest", type=float, default=0.15, help="seconds from opening to the kill, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.write)
    rng = np.random.default_rng(options.seed)
    fell: Counter[str] = Counter()
    writes: Counter[str] = Counter()
    torn: list[str] = []
    lost: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for k in range(options.kills):
            if k % 10 == 0:
                path = Path(folder) / f"{k}.sqlite"
                begun, done = {"group": -1, "alone": -1}, {"group": -1, "alone": -1}
            said = kill_once(path, rng.uniform(0, options.longest if k % 10 else options.longest / 10))
            for line in said:
                word, *rest = line.split()
                if rest:
                    (begun if word == "begin" else done)[rest[0]] = int(rest[1])
                    writes[rest[0]] += word == "done"
            places = {"opening": "while opening", "begin": "in a write"}
            fell[places.get(said[-1].split()[0], "between writes")] += 1
            found = problems(path, begun, done)
            torn += found[0]
            lost += found[1]
    print(f"{options.kills} kills: {len(torn)} torn, {len(lost)} lost")
    print(f"writes done: {writes['group']} of {len(GROUP)} clients at once, {writes['alone']} of one client")
    print("kills fell: " + ", ".join(f"{count} {where}" for where, count in sorted(fell.items())))
    print(*torn, *lost, sep="\n", end="")
    sys.exit(bool(torn or lost))


if __name__ == "__main__":
    main()
