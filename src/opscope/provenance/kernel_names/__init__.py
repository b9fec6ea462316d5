"""What a kernel's name says (function, functor, family, types, tile, …), each fact with its grade.

`decode` reads every grammar known; `function_of`, `template_arguments` and `owners` take a C++ name apart.
All of them are pure, never raise and take time linear in the length of the name. Imports nothing of the rest
of provenance.
"""

from opscope.provenance.kernel_names.cxx_name import function_of, owners, template_arguments
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode
from opscope.provenance.kernel_names.families import FAMILIES, Family

__all__ = [
    "FAMILIES",
    "DecodedKernel",
    "Family",
    "decode",
    "function_of",
    "owners",
    "template_arguments",
]
