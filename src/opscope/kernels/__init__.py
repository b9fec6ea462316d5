"""Kernels written here, in CUDA C++ and in Triton, to be measured beside PyTorch's and to be learned from.

Importing this package imports neither torch nor Triton; building or launching a kernel does.
"""
