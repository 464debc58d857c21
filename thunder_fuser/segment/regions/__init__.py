"""Joint graph -> regions: partition of a whole program, forward and backward, into fusions."""
