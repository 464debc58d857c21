"""The tables of operations: a row an operation, all that the compiler knows of it."""
