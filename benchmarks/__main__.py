"""Measures the targets that are present: prints tables, and writes them to files if asked to.

python -m benchmarks                                  everything
python -m benchmarks --section speed --filter rope    some tables, some rows
python -m benchmarks --section model                  what is expected of a GPU; none is needed
python -m benchmarks --section models                 what of whole models torch keeps; likewise
python -m benchmarks --section definitions            plans of nvFuser's benchmarks; likewise
python -m benchmarks --section compile-time           first calls of models, as they grow
python -m benchmarks --section dynamic-sizes          first calls of further sizes
python -m benchmarks --section training               steps of whole models
python -m benchmarks --out                            also into benchmarks/results
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks import compile_time, definitions, dynamic_sizes, growing, models, symint
from benchmarks.compiling import compiled
from benchmarks.contenders import FAST, OURS, PEERS
from benchmarks.dispatching import dispatched
from benchmarks.measuring import measured
from benchmarks.modelling import modelled
from benchmarks.report import heading, save
from benchmarks.table import Table
from benchmarks.training import trained
from benchmarks.workloads import WORKLOADS, Size
from thunder_fuser.config import options

RESULTS = Path(__file__).parent / "results"
SECTIONS = (
    "compilation",
    "model",
    "models",
    "definitions",
    "growth",
    "compile-time",
    "dynamic-sizes",
    "speed",
    "training",
    "dispatch",
    "algebra",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; the exit status is 1 if somebody failed or computed wrong numbers."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    devices = [torch.device(d) for d in ("cpu", "cuda") if chosen.device in (d, "all")]
    if not torch.cuda.is_available():
        if chosen.device == "cuda":
            parser.error("torch finds no CUDA device here")
        devices = [d for d in devices if d.type != "cuda"]
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    print(heading(devices))
    tables = []
    # A failure of ours is a row that says so, not a silent run in torch.
    with options(strict=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for table in _tables(chosen, devices):
            print(table.markdown(), flush=True)
            tables.append(table)
    if chosen.out:
        print("written:", *save(chosen.out, devices, tables))
    return int(any(table.failed for table in tables))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--filter", default="", help="only workloads whose name contains this")
    add("--section", nargs="+", choices=SECTIONS, default=SECTIONS, help="only these tables")
    add("--device", choices=("cpu", "cuda", "all"), default="all")
    add("--peers", nargs="*", choices=PEERS, default=PEERS, help="peers to measure too")
    add("--small", action="store_true", help="tiny tensors: tries the harness out")
    add("--threads", type=int, help="that everyone may use on a CPU; default: torch's number")
    add("--seconds", type=float, default=3.0, help="of timing, for each row")
    add("--out", nargs="?", const=RESULTS, type=Path, help="a folder for Markdown and JSON")
    return parser


def _tables(chosen: argparse.Namespace, devices: Sequence[torch.device]) -> Iterator[Table]:
    workloads = [w for w in WORKLOADS if chosen.filter.lower() in w.name.lower()]
    names = (OURS, FAST, *chosen.peers)
    if "compilation" in chosen.section:
        yield compiled(workloads, "small" if chosen.small else "full")
    if "model" in chosen.section:
        yield modelled(workloads, "small" if chosen.small else "full")
    if "models" in chosen.section:
        yield models.table(chosen.filter, 1 if chosen.small else None)
    if "definitions" in chosen.section:
        yield definitions.table(chosen.filter)
    if "growth" in chosen.section:
        yield growing.table()
    if "dynamic-sizes" in chosen.section:
        lengths = dynamic_sizes.LENGTHS[:2] if chosen.small else dynamic_sizes.LENGTHS
        yield dynamic_sizes.table(chosen.filter, lengths)
    if "compile-time" in chosen.section:
        yield compile_time.table(chosen.filter, (1,) if chosen.small else compile_time.LAYERS)
    for device in devices:
        size: Size = "small" if chosen.small else "host" if device.type == "cpu" else "full"
        if "speed" in chosen.section:
            yield measured(workloads, size, device, names, chosen.seconds)
        if "training" in chosen.section:
            yield trained(device, names, chosen.seconds, chosen.filter, chosen.small)
        if "dispatch" in chosen.section:
            yield dispatched(device, names, chosen.seconds)
    if "algebra" in chosen.section:
        yield symint.table()


if __name__ == "__main__":
    sys.exit(main())
