"""The map from schedules to CUDA C++ text."""
