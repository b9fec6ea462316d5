"""Finds out whether a machine can profile PyTorch programs: each check looks and judges itself.

What several checks ask (the driver, the GPUs, torch) an `ExaminedMachine` finds out once. What may crash or
hang runs in a process of its own, within a time limit.
"""
