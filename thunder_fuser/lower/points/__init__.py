"""Points of pointwise kernels: outputs over one iteration space, in groups, pieces and rows."""
