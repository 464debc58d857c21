"""Where kernels run: targets, compilation, launches."""
