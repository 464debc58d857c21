"""The host target: a C++ compiler and a runtime that stands in for a GPU."""
