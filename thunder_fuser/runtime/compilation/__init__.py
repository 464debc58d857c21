"""Compilation of programs: ahead of the first call, and caches on disk."""
