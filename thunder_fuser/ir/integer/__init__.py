"""The integer algebra: forms with floor semantics, bounds, divisions; sizes as polynomials."""
