"""Makes the tables of a PyTorch release that opscope packages; CONTRIBUTING.md says how to run it."""
