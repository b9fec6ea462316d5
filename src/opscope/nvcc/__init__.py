"""nvcc: CUDA C++ files compiled for chosen targets, and what the compiler says of each kernel.

Needs nvcc; a GPU only to run what was compiled or to be the target. Knows no hardware tables: which GPU a
target is, and what occupancy follows, is for callers to add. Reads no environment of its own.
"""
