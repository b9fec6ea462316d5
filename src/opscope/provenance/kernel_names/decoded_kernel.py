"""What a kernel's name says: one frozen record of optional fields, each with the grade of its evidence.

A field that the name does not tell is None. Grammars hand over two mappings of fields, those stated by a
documented grammar and those inferred from an observed one; the record is put together here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opscope.model.evidence import Grade
from opscope.provenance.kernel_names.cxx_name import CxxName
from opscope.provenance.kernel_names.families import category_of_family


@dataclass(frozen=True)
class DecodedKernel:
    """A kernel's name taken apart. Every field but `name` and the tuples is None where it does not tell.

    Attributes:
        name: As recorded.
        function: Qualified name without template arguments.
        template_arguments: As printed.
        library: Library or generator the name itself names (`aten`, `nccl`, `triton`, `cub`, …).
        family: A name of `families.FAMILIES`.
        variant: Which form of its family, e.g. `vectorized`, `unrolled`, `strided`.
        direction: `forward` or `backward`.
        architecture: Architecture it was compiled for, `sm90`.
        operand_type: Element type of what it reads, if one; short names of `element_types`.
        multiply_type: Type it multiplies in, where that differs from the operand's.
        accumulator_type: Type it accumulates in.
        output_type: Element type of what it writes.
        layout: As the grammar writes it, `tn`, `nhwc`.
        tile: Thread-block tile, `128x128x32` (M, N, K), or `128x128`.
        mma_shape: Shape of one matrix instruction, `16x8x16`.
        stages: Pipeline stages.
        cluster: Thread-block cluster, `2x1` or `2x1x1`.
        split_k: Work on K is split over thread blocks.
        tensor_core: It uses tensor cores.
        vector_width: Elements of one load.
        output_vector_width: Outputs of one thread.
        alignment: Alignment of its operands in elements.
        head_dimension: Largest head dimension it handles.
        functor: Functor, or function that owns the lambda, given to a generic kernel.
        operation: That functor in one word, `gelu`, `add`, `sum`.
        epilogue: What is fused to its end, `bias`, `relu`.
        fused_operators: Operators named in a generated name, as far as they can be told apart.
        fused_operators_may_be_cut: The generator drops names past a number that is reached here.
        collective: NCCL's name of the collective, `AllReduce`.
        copy_direction: `host_to_device`, `device_to_host`, `device_to_device`, `peer_to_peer`, ….
        host_memory: `pageable` or `pinned` for a copy from or to the host.
        grades: Evidence of each field that is not None (or not empty), except `name`.
    """

    name: str
    function: str | None = None
    template_arguments: tuple[str, ...] = ()
    library: str | None = None
    family: str | None = None
    variant: str | None = None
    direction: str | None = None
    architecture: str | None = None
    operand_type: str | None = None
    multiply_type: str | None = None
    accumulator_type: str | None = None
    output_type: str | None = None
    layout: str | None = None
    tile: str | None = None
    mma_shape: str | None = None
    stages: int | None = None
    cluster: str | None = None
    split_k: bool | None = None
    tensor_core: bool | None = None
    vector_width: int | None = None
    output_vector_width: int | None = None
    alignment: int | None = None
    head_dimension: int | None = None
    functor: str | None = None
    operation: str | None = None
    epilogue: str | None = None
    fused_operators: tuple[str, ...] = ()
    fused_operators_may_be_cut: bool | None = None
    collective: str | None = None
    copy_direction: str | None = None
    host_memory: str | None = None
    grades: Mapping[str, Grade] = field(default_factory=dict, compare=False)

    @property
    def category(self) -> str | None:
        """Category of its family; None if it has none."""
        return None if self.family is None else category_of_family(self.family)


@dataclass
class Reading:
    """What one grammar reads from a name: fields of DecodedKernel by grade. None values are dropped.

    Attributes:
        stated: Fields of a documented grammar (or source code), graded NAME_PATTERN.
        inferred: Fields of an undocumented, observed pattern, graded INFERRED.
    """

    stated: dict[str, Any] = field(default_factory=dict)
    inferred: dict[str, Any] = field(default_factory=dict)


def decoded(name: str, cxx: CxxName, reading: Reading | None) -> DecodedKernel:
    """The record of a name and of what a grammar read from it (None: nothing)."""
    fields: dict[str, Any] = {}
    grades: dict[str, Grade] = {}
    if cxx.function is not None:
        fields["function"] = cxx.function
        grades["function"] = Grade.NAME_PATTERN
    if cxx.template_arguments:
        fields["template_arguments"] = cxx.template_arguments
        grades["template_arguments"] = Grade.NAME_PATTERN
    if reading is not None:
        for values, grade in ((reading.inferred, Grade.INFERRED), (reading.stated, Grade.NAME_PATTERN)):
            for key, value in values.items():
                if value is not None and value != ():
                    fields[key] = value
                    grades[key] = grade
    return DecodedKernel(name, grades=grades, **fields)
