"""The checks: each a pure function from the facts to an outcome, listed in `table`."""
