"""What tests share: the oracle, generators of programs, batches of kernels."""
