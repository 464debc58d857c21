"""Index arithmetic: integer forms as expressions of kernel IR, and as values of tensors."""
