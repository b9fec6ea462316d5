"""What one call takes and gives: its tensors without data, from a replay or from shape rules.

Operations and bytes are worked out from this alone, so that both ways of knowing the results count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from opscope.analysis.cost.arguments import CallArguments, TensorArgument, is_number, type_of
from opscope.analysis.cost.element_types import ElementKind

__all__ = ["CallEffects", "operator_stem"]


@dataclass(frozen=True)
class CallEffects:
    """One call with its results.

    Attributes:
        call: As recorded.
        inputs: Its tensors, those it is only given to write into (`out=`) left out, in order.
        outputs: Its results in the order of the schema, those of a list one by one. What it wrote in place is
            among them with its own strides; views of inputs are not.
    """

    call: CallArguments
    inputs: tuple[TensorArgument, ...]
    outputs: tuple[TensorArgument, ...]

    @cached_property
    def stem(self) -> str | None:
        """The operator without namespace and without the mark of in-place variants; None outside aten."""
        return operator_stem(self.call.name)

    @cached_property
    def is_in_place(self) -> bool:
        """Whether the name says that the first argument is overwritten."""
        return self.stem is not None and not self.call.name.endswith(self.stem)

    @cached_property
    def device_inputs(self) -> tuple[TensorArgument, ...]:
        """Inputs but for Python numbers, which stay on the host."""
        if all(is_number(tensor) for tensor in self.inputs):
            return self.inputs
        return tuple(tensor for tensor in self.inputs if not is_number(tensor))

    @cached_property
    def output(self) -> TensorArgument | None:
        """The first result."""
        return self.outputs[0] if self.outputs else None

    @cached_property
    def output_kind(self) -> ElementKind | None:
        """Kind of elements of the first result; None if unknown."""
        return _kind(self.outputs[:1])

    @cached_property
    def output_elements(self) -> int:
        """Elements of the first result."""
        return self.outputs[0].element_count if self.outputs else 0


def operator_stem(name: str) -> str | None:
    """`"add"` of `"aten::add"` and of `"aten::add_"`; None of an operator of another library."""
    namespace, separator, operator = name.partition("::")
    if namespace != "aten" or not separator:
        return None
    is_in_place = operator.endswith("_") and not operator.endswith("__")
    return operator[:-1] if is_in_place else operator


def _kind(tensors: Sequence[TensorArgument]) -> ElementKind | None:
    known = type_of(tensors[0]) if tensors else None
    return None if known is None else known.kind
