"""Programs to profile: the built-in models and the user's own functions, all as a Workload with one `step()`.

Importing this package does not import torch; building a workload does.
"""
