"""The records of a sweep's finished runs in one file, and back: all that a report is made from, no model and no data.

    python -m benchmarks.records pack sweeps/slurp_speakers docs/results/slurp_speakers/runs.zip
    python -m benchmarks.records unpack docs/results/slurp_speakers/runs.zip sweeps/slurp_speakers

From the unpacked folder `coreplay report` makes the figures and tables in the docs (a test compares the tables), and
`coreplay sweep` with the same plan goes on with the runs that are missing. The file depends on the records alone, so
that packing them again changes nothing.
"""

import argparse
import zipfile
from pathlib import Path

from coreplay.errors import InputError
from coreplay.files import atomic_write

NAMES = ("config.toml", "versions.json", "metrics.jsonl", "coordination.jsonl", "buffers.jsonl", "summary.json")
WHEN = (1980, 1, 1, 0, 0, 0)  # the first moment that the format knows


def pack(sweep: Path, file: Path) -> int:
    """Write the records of all finished runs of a sweep; return how many there are."""
    runs = sorted(path.parent for path in sweep.glob("runs/*/summary.json"))
    if not runs:
        raise InputError(f"there is no finished run in {str(sweep / 'runs')!r}")
    with atomic_write(file) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for path in (run / name for run in runs for name in NAMES):
            if path.exists():
                entry = zipfile.ZipInfo(str(path.relative_to(sweep)), WHEN)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED, 9)
    return len(runs)


def unpack(file: Path, sweep: Path) -> int:
    """Put the records of runs into a sweep's folder; runs that are there already stay as they are."""
    with zipfile.ZipFile(file) as archive:
        fresh = [name for name in archive.namelist() if not (sweep / name).exists()]
        archive.extractall(sweep, fresh)
    return sum(name.endswith("/summary.json") for name in fresh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args()
    runs = (pack if given.what == "pack" else unpack)(given.source, given.target)
    print(f"{given.target}: {runs} runs")


if __name__ == "__main__":
    main()
