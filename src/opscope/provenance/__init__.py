"""What an operator is: its category, and later its native function, kernels and source."""
