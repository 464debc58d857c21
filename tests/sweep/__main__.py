"""`python -m tests.sweep [DTYPE ...] [--gradients] [--only TEXT]`: the table of differences."""

from __future__ import annotations

import argparse
import sys
import time
import warnings

import torch

from tests.sweep.functions import ENTRIES
from tests.sweep.known import KNOWN, KNOWN_GRADIENTS, unknown
from tests.sweep.run import Tally, sweep, sweep_gradients

FLOATING = ("float32", "float64", "bfloat16", "float16", "complex64", "complex128")
INTEGRAL = ("bool", "uint8", "int8", "int16", "int32", "int64")


def main() -> int:
    """Print a line a difference; the exit status says whether one is not known."""
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("dtypes", nargs="*", metavar="DTYPE", help="all where none is named")
    parser.add_argument("--gradients", action="store_true", help="gradients instead of results")
    parser.add_argument("--only", default="", metavar="TEXT", help="functions that contain it")
    parser.add_argument("--known", action="store_true", help="also print what is known to differ")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    entries = {name: e for name, e in ENTRIES.items() if arguments.only in name}
    run, rows = (sweep_gradients, KNOWN_GRADIENTS) if arguments.gradients else (sweep, KNOWN)
    is_wrong = False
    for name in arguments.dtypes or FLOATING + (() if arguments.gradients else INTEGRAL):
        start, tally = time.process_time(), Tally()
        found = list(run(entries, getattr(torch, name), tally))
        new = list(unknown(found, rows))
        for difference in found if arguments.known else new:
            print(difference, flush=True)
        seconds = time.process_time() - start
        print(
            f"# {name}: {tally.functions} functions, {tally.values} values, {len(new)} differ, "
            f"{len(found) - len(new)} more are known, {seconds:.0f} s",
            flush=True,
        )
        is_wrong |= bool(new)
    return 1 if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main())
