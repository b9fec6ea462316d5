"""Nsight Compute: its reports read with NVIDIA's own reader (extra `ncu`), its commands written and run.

Reading needs neither a GPU nor ncu. Knows nothing of traces: `analysis.counters` joins the two.
"""
