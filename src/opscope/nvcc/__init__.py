"""nvcc: CUDA C++ files compiled for chosen targets, and what the compiler says of each kernel.

Needs nvcc; a GPU only to run what was compiled or to be the target. Reads no environment of its own.
"""
