"""The integer algebra: forms with floor semantics, bounds, divisions, products, counts."""
