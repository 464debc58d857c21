"""Binding of a call: inputs are checked, sizes solved, arguments laid out for launches."""
