"""Native functions of PyTorch: yaml entries, overloads, what serves them on a device, backward nodes."""
