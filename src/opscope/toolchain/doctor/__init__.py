"""Finds out whether a machine can profile PyTorch programs: probes gather facts, checks judge them.

A probe looks at one thing, within a time limit, and answers whatever happens; what may crash or hang (torch,
the CUDA driver, NVML) runs in a process of its own. A check is a pure function of the facts.
"""
