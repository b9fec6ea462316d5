"""Device time by the program's own structure: modules and source lines, forward and backward."""
