"""Templates that turn a segment into a schedule: what each thread computes, and how it reads
memory.
"""
