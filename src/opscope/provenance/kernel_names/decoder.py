"""Chooses the grammar that reads a kernel's name.

Each grammar is a pure function from the name to a Reading, or None if the name is not of its language. The
first that answers wins; they go from unmistakable prefixes to words. Nothing here raises, whatever the name.
"""

from __future__ import annotations

from functools import lru_cache

from opscope.provenance.kernel_names.aten import read_aten
from opscope.provenance.kernel_names.cxx_name import CxxName, last_part, parse
from opscope.provenance.kernel_names.decoded_kernel import (
    DecodedKernel,
    Reading,
    decoded,
    find_grammar,
    read_grammar,
)
from opscope.provenance.kernel_names.libraries import (
    read_attention,
    read_cudnn,
    read_cutlass,
    read_dense_algebra,
    read_device_algorithm,
    read_hand_tuned,
    read_library,
    read_plain_words,
    read_rocm,
    read_serving,
    read_triton,
    read_xmma,
)

_COPIES = ("memory_set", "memory_copy", "amd_copy")
# No function or generated name comes near; what follows may take time square in the length.
_LONGEST = 2048
_ATEN_NAMESPACES = ("at::", "c10::", "c10d::")


@lru_cache(maxsize=65536)
def decode(name: str) -> DecodedKernel:
    """What a kernel's name says. Never raises; what the name does not say is None."""
    text = name.strip()
    copy = next(filter(None, (read_grammar(grammar, text) for grammar in _COPIES)), None)
    if copy is not None:
        return decoded(name, CxxName(None), copy)
    cxx = parse(text)
    return decoded(name, cxx, _read(cxx, text))


def _read(cxx: CxxName, text: str) -> Reading | None:
    function = cxx.function
    if function is None or len(function) > _LONGEST:
        return None
    last = last_part(function)
    if function.startswith(_ATEN_NAMESPACES) or find_grammar("aten_global", function) is not None:
        reading = read_aten(cxx, last)
        if reading is not None:
            return reading
    return (
        read_serving(cxx, text)
        or _read_generated(cxx, text)
        # Templates and functions of libraries, then plain words.
        or read_device_algorithm(cxx, last)
        or read_rocm(function)
        or read_cudnn(cxx, text)
        or read_dense_algebra(cxx, text)
        or read_library(cxx)
        or read_plain_words(last)
    )


def _read_generated(cxx: CxxName, text: str) -> Reading | None:
    """Names that a generator writes, and attention, often built from another's templates."""
    function = cxx.function or ""
    if function.startswith("triton_"):
        return read_triton(function)
    if function.startswith("nvjet_"):
        return read_grammar("nvjet", function)
    if "nccl" in function or "oneRankReduce" in function:
        return read_grammar("nccl", function)
    if "_xmma_" in function and (reading := read_xmma(function)) is not None:
        return reading
    first = cxx.template_arguments[0] if cxx.template_arguments else ""
    return (
        (read_attention(cxx, text) if "fft" not in function else None)
        or (read_cutlass(cxx, text) if any("cutlass" in part for part in (function, first)) else None)
        or read_hand_tuned(function)
        or read_grammar("jiterator", function)
        or read_grammar("jiterator_plain", function)
    )
