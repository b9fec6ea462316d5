"""Programs of the CUDA toolkit as opscope uses them: their commands and the files they write."""
