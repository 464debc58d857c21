"""What thunder_fuser costs, measured against its peers: `python -m benchmarks --help`."""
