"""The probes: each gathers the facts of one thing from the surroundings it is given."""
