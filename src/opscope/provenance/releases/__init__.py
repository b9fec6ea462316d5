"""What is packaged of PyTorch releases: which source file each of their kernels comes from."""
