"""Random programs, run by torch and through the compiler, and what differs between the two.

`python -m tests.fuzz --kind torch --seed 0 --count 1000` prints every difference with the smallest
program that shows it, and one line of figures. See __main__.py.
"""
