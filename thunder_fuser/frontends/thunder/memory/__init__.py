"""Memory of traces: estimate for fusions, values saved for backward, recomputation for a budget."""
