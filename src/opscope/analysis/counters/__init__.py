"""Hardware counters: a report of Nsight Compute, joined to the calls of a recording, and what follows."""
