"""How launches of CUDA kernels are parallel, explained from names, geometry, operator calls and devices.

Which kernel belongs to which family and what is said of it is in `launch_explanations.toml`; the modules of
rules work out the numbers and the launches that documented configurations would give.
"""

from __future__ import annotations

from opscope.launches.facts import DeviceFacts, LaunchFacts, parse_compile_arguments
from opscope.launches.launch_explanation import (
    Heading,
    LaunchCheck,
    LaunchExplanation,
    Statement,
    explain,
)
from opscope.launches.prediction import Expected

__all__ = [
    "DeviceFacts",
    "Expected",
    "Heading",
    "LaunchCheck",
    "LaunchExplanation",
    "LaunchFacts",
    "Statement",
    "explain",
    "parse_compile_arguments",
]
