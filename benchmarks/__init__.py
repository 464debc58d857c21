"""What thunder_fuser costs, measured beside its peers: `python -m benchmarks --help`."""
