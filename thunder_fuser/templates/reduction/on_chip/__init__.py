"""On-chip data of a reduction kernel: row cache, shared memory, loads under way, unrolling."""
