"""What binaries say of kernels: libraries at hand, those mapped into this process, and the vendor's.

Everything is read with the code here, without CUDA's tools. A library is read once per build and kept.
"""

from opscope.provenance.binaries.library import (
    LibraryKernels,
    Route,
    cached_library,
    read_library,
)
from opscope.provenance.binaries.process import (
    KernelOrigin,
    mapped_libraries,
    units_of_process,
    vendor_libraries,
    vendor_of_file,
)
from opscope.provenance.binaries.translation_unit import TranslationUnit

__all__ = [
    "KernelOrigin",
    "LibraryKernels",
    "Route",
    "TranslationUnit",
    "cached_library",
    "mapped_libraries",
    "read_library",
    "units_of_process",
    "vendor_libraries",
    "vendor_of_file",
]
