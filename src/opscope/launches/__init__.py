"""How launches of CUDA kernels are parallel, explained from names, geometry, operator calls and devices.

Which kernel belongs to which family and what is said of it is in `launch_explanations.toml`; the modules of
rules work out the numbers, and for elementwise kernels and products the launches that would follow.
"""
