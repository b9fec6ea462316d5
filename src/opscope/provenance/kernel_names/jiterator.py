"""Names of the kernels ATen compiles at run time: `erfcx_vectorized4_kernel`, `i0_kernel`.

Source: pytorch/aten/src/ATen/native/cuda/jit_utils.cpp, whose templates write
`${name}_vectorized${vec_size}_kernel` and `${name}_kernel`. The plain form is everybody's, so it counts only
for the functions ATen gives to the jiterator.
"""

from __future__ import annotations

import re

from opscope.provenance.kernel_names.decoded_kernel import Reading

__all__ = ["read_jiterator"]

_VECTORIZED = re.compile(r"(?P<operation>\w+?)_vectorized(?P<width>\d+)_kernel")
_PLAIN = re.compile(
    r"(?P<operation>(?:modified_|scaled_modified_|spherical_)?bessel_\w+|airy_ai\w*|chebyshev_polynomial_\w+|hermite_polynomial_\w+"
    r"|laguerre_polynomial_\w+|legendre_polynomial_\w+|shifted_chebyshev_polynomial_\w+|zeta|erfcx|i0e?|i1e?|ndtri|log_ndtr"
    r"|entr|digamma|polygamma|lgamma|lcm|gcd|kaiser_window|erfinv|erfc|sinc|exp2)_kernel"
)


def read_jiterator(function: str) -> Reading | None:
    """What a run-time compiled elementwise kernel says; None if the name is not one."""
    vectorized = _VECTORIZED.fullmatch(function)
    if vectorized is not None:
        return Reading(
            {
                "library": "jiterator",
                "family": "elementwise",
                "variant": "vectorized",
                "vector_width": int(vectorized.group("width")),
                "operation": vectorized.group("operation").removesuffix("_kernel"),
            }
        )
    plain = _PLAIN.fullmatch(function)
    if plain is None:
        return None
    return Reading(
        inferred={"library": "jiterator", "family": "elementwise", "operation": plain.group("operation")}
    )
