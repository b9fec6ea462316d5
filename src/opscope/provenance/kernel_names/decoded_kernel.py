"""What a kernel's name says: one frozen record of optional fields, each with the grade of its evidence.

Grammars hand over two mappings of fields, those stated by a documented grammar and those inferred from an
observed one; the record is put together here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from opscope.model.evidence import Grade
from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.vocabulary import CATEGORY_OF_FAMILY


@dataclass(frozen=True)
class DecodedKernel:
    """A kernel's name taken apart. Fields are None (or empty) where the name does not tell.

    Element types have the short names of `element_types`. `grades` holds the evidence of each field that is
    not None or empty, except `name`.
    """

    name: str  # as recorded
    function: str | None = None  # qualified, without template arguments
    template_arguments: tuple[str, ...] = ()  # as printed
    library: str | None = None  # or generator, as the name itself says: `aten`, `nccl`, `triton`, `cub`, …
    family: str | None = None  # a name of `families.FAMILIES`
    variant: str | None = None  # form of its family: `vectorized`, `unrolled`, `strided`
    direction: str | None = None  # `forward` or `backward`
    architecture: str | None = None  # it was compiled for, `sm90`
    operand_type: str | None = None  # of the elements it reads, if all are of one
    multiply_type: str | None = None  # it multiplies in, where that differs from the operand's
    accumulator_type: str | None = None
    output_type: str | None = None
    layout: str | None = None  # as the grammar writes it, `tn`, `nhwc`
    tile: str | None = None  # of a thread block, `128x128x32` (M, N, K), or `128x128`
    mma_shape: str | None = None  # of one matrix instruction, `16x8x16`
    stages: int | None = None  # of the pipeline
    cluster: str | None = None  # of thread blocks, `2x1` or `2x1x1`
    split_k: bool | None = None  # work on K is split over thread blocks
    tensor_core: bool | None = None  # it uses tensor cores
    vector_width: int | None = None  # elements of one load
    output_vector_width: int | None = None  # outputs of one thread
    alignment: int | None = None  # of its operands, in elements
    head_dimension: int | None = None  # the largest it handles
    functor: str | None = None  # given to a generic kernel, or the function that owns the lambda
    operation: str | None = None  # that functor in one word, `gelu`, `add`, `sum`
    epilogue: str | None = None  # fused to its end, `bias`, `relu`
    fused_operators: tuple[str, ...] = ()  # in a generated name, as far as they can be told apart
    fused_operators_may_be_cut: bool | None = None  # the generator drops names past a number that is reached
    collective: str | None = None  # NCCL's name, `AllReduce`
    copy_direction: str | None = None  # `host_to_device`, `device_to_device`, `peer_to_peer`, …
    host_memory: str | None = None  # `pageable` or `pinned`, of a copy from or to the host
    grades: Mapping[str, Grade] = field(default_factory=dict, compare=False)

    @property
    def category(self) -> str | None:
        return None if self.family is None else CATEGORY_OF_FAMILY[self.family]

    @property
    def title(self) -> str:
        """`vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>`; the name itself where it has no parts."""
        return title_of(self.name, self.function, self.template_arguments, self.functor)


_WRAPPERS = frozenset(("Kernel", "Kernel2", "device_kernel", "kernel"))  # templates of CUTLASS


def title_of(name: str, function: str | None, arguments: Sequence[str], functor: str | None) -> str:
    """The function without its namespaces, and the functor without its; of CUTLASS's wrapper what it wraps.

    `gelu` of `at::native::gelu`; `cutlass_80_gemm_…` of `cutlass::Kernel2<cutlass_80_gemm_…>`. A title stands
    for a name and is not one: the full name is always kept beside it.
    """
    if function is None:
        return name
    last, first, applied = _last(function), arguments[0] if arguments else "", _last(functor or "")
    is_wrapper = last in _WRAPPERS and "cutlass" in f"{function}<{first}"
    title = (is_wrapper and _last(first.partition("<")[0])) or last
    return f"{title}<… {applied} …>" if applied else title


def _last(qualified: str) -> str:
    return qualified.rpartition("::")[2]


class Reading(msgspec.Struct):
    """What one grammar reads from a name: fields of DecodedKernel by grade. None values are dropped."""

    # Fields of a documented grammar (or source code), graded NAME_PATTERN
    stated: dict[str, Any] = msgspec.field(default_factory=dict)
    # Fields of an undocumented, observed pattern, graded INFERRED
    inferred: dict[str, Any] = msgspec.field(default_factory=dict)


def integer(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def decoded(name: str, cxx: CxxName, reading: Reading | None) -> DecodedKernel:
    """The record of a name and of what a grammar read from it (None: nothing)."""
    reading = reading or Reading()
    values: dict[str, Any] = {}
    grades: dict[str, Grade] = {}
    for fields, grade in (
        ({"function": cxx.function, "template_arguments": cxx.template_arguments}, Grade.NAME_PATTERN),
        (reading.inferred, Grade.INFERRED),
        (reading.stated, Grade.NAME_PATTERN),
    ):
        known = {key: value for key, value in fields.items() if value is not None and value != ()}
        values.update(known)
        grades.update(dict.fromkeys(known, grade))
    return DecodedKernel(name, grades=grades, **values)
