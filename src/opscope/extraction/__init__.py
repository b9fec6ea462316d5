"""Recorded calls as files that run alone, with a version to start from, and the machine code of kernels."""
