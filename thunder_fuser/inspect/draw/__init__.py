"""Drawings of a program as SVG."""
