"""Analyses of a fusion: nothing here changes one."""
