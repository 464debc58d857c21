"""The CUDA target: NVRTC, the driver, launches."""
