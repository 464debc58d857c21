"""Runtime: targets, compilation of kernels, and launches."""
