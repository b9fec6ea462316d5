"""What is known of GPUs without one at hand: architectures, devices, and the names drivers give them.

Every number comes with its source; one that is not certain is None. Free of torch; imports only model, units
and errors.
"""
