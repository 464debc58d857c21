"""Joint graph -> regions: what of a whole program becomes one fusion, forward and backward."""
