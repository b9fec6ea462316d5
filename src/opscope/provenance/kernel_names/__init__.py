"""What a kernel's name says (function, functor, family, types, tile, …), each fact with its grade.

`decode` reads every grammar known; `template_arguments` takes a C++ name apart. Both are pure, never raise
and take time linear in the length of the name. Imports nothing of the rest of provenance.
"""

from opscope.provenance.kernel_names.cxx_name import template_arguments
from opscope.provenance.kernel_names.decoded_kernel import DecodedKernel
from opscope.provenance.kernel_names.decoder import decode

__all__ = ["DecodedKernel", "decode", "template_arguments"]
