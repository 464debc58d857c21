"""The sweep of special values: every function that is fused, on NaN, infinities and extremes.

`python -m tests.sweep` runs all of it and prints what differs from torch; CI runs a part.
"""
