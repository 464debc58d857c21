"""`python -m tests.sweep [DTYPE ...] [--gradients] [--only TEXT]`: the table of differences."""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import torch

from tests.sweep.functions import ENTRIES
from tests.sweep.run import sweep, sweep_gradients

FLOATING = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
INTEGRAL = ("bool", "uint8", "int8", "int16", "int32", "int64")


def main() -> int:
    """Print a line a difference; the exit status says whether there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("dtypes", nargs="*", metavar="DTYPE", help="all where none is named")
    parser.add_argument("--gradients", action="store_true", help="gradients instead of results")
    parser.add_argument("--only", default="", metavar="TEXT", help="functions that contain it")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = {name: e for name, e in ENTRIES.items() if arguments.only in name}
    run = sweep_gradients if arguments.gradients else sweep
    total = 0
    for name in arguments.dtypes or FLOATING + (() if arguments.gradients else INTEGRAL):
        start = time.process_time()
        found = list(run(entries, getattr(torch, name)))
        for difference in found:
            print(difference, flush=True)
        total += len(found)
        print(
            f"# {name}: {len(found)} differences, {time.process_time() - start:.0f} s", flush=True
        )
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
