"""A day with a GPU: everything that only a GPU can show, in five stages below ten minutes each."""
