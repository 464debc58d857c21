"""Kernel templates: segment -> schedule -> kernel IR."""
