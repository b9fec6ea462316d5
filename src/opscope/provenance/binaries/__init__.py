"""What binaries say of kernels: libraries at hand, those mapped into this process, and the vendor's.

Everything is read with the code here, without CUDA's tools. A library is read once per build and kept.
"""
