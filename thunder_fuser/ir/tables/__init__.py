"""The tables of operations: one row per operation, with all that the compiler knows of it."""
