"""Code generation: kernel IR to CUDA C++, independent of templates."""
