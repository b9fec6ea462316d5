"""Triton kernels: the good version of each operator, and a simple one to learn from beside it.

Load them with `opscope.kernels.triton_loader`, which decides whether a copy is compiled or interpreted.
"""
