"""Where PyTorch's kernels and functors are defined, to the line, and where its sources are at hand."""
