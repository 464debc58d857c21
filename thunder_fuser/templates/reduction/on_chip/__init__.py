"""On-chip data of a reduction kernel: row cache, shared memory, loads in flight, unrolling."""
