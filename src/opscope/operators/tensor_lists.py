"""What the recorder leaves out of lists of tensors: their element types, and lists of more than 30 members.

Types come from the kernel of the call. The members of an optimizer's lists are shaped like the gradients of
the step, and one block of a multi-tensor kernel takes 65536 elements of one tensor: only if the gradients of
a step need exactly as many blocks as the call launched are they taken for its lists. Imports no torch.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TypeAlias

from opscope.model.session import Session
from opscope.operators.arguments import (
    CallArguments,
    TensorArgument,
    TensorListArgument,
    parse_arguments,
    with_arguments,
    with_list_types,
)
from opscope.operators.element_types import element_type
from opscope.provenance.kernel_names.decoder import decode

# Source: PyTorch 2.11.0, ATen/native/cuda/MultiTensorApply.cuh, kChunkSize.
CHUNK_ELEMENTS = 65536
_MULTI_TENSOR = "multi_tensor_apply_kernel"
# Steps are counted in fp32, whatever the type of the parameters (torch/optim/adam.py, adagrad.py).
_STEPS, _STEP_TYPE = "state_steps", "float"
_FUNCTOR_TYPE = re.compile(r"Functor<\s*((?:[\w:]|\s(?=\w))+(?:<[\w:\s]+>)?)\s*[,>]")
_COPIED_TYPES = re.compile(r"::Copy<\s*([^,]+?)\s*,\s*([^,]+?)\s*>$")
_OPAQUE_TYPE = re.compile(r"OpaqueType<(\d+)u?>$")
# Stand-ins of a size, for kernels that move elements without looking at them.
_TYPE_OF_SIZE = {1: "unsigned char", 2: "short int", 4: "int", 8: "long int", 16: "c10::complex<double>"}
_METADATA_DEPTH = re.compile(r"Metadata<(?:.*,\s*)?(\d+)>$")

_Shapes: TypeAlias = tuple[tuple[int, ...], ...]

_GRADIENTS_SQL = """
SELECT trace_id, step, input_shapes::VARCHAR AS shapes, input_types::VARCHAR AS types, count(*) AS gradients
FROM operators WHERE name = 'torch::autograd::AccumulateGrad' AND input_shapes IS NOT NULL GROUP BY ALL"""


# Shapes of all gradients that a step accumulated, by element type; each set sorted, and there once.
Gradients: TypeAlias = frozenset[tuple[tuple[str, _Shapes], ...]]


def _shapes_of_blocks(gradients: Gradients, block_count: int, type_name: str) -> _Shapes | None:
    """The only set of gradients that needs so many blocks: all of a step, or all of one type."""
    found = set()
    for step in gradients:
        of_type = (shapes for name, shapes in step if element_type(name) == element_type(type_name))
        everything = tuple(sorted(shape for _, shapes in step for shape in shapes))
        found |= {shapes for shapes in (*of_type, everything) if _blocks(shapes) == block_count}
    return found.pop() if len(found) == 1 else None


def read_gradients(session: Session) -> Gradients:
    steps: dict[tuple[int, int | None], dict[str, Counter[tuple[int, ...]]]] = defaultdict(
        lambda: defaultdict(Counter)
    )
    for trace_id, step, shapes, types, count in session.query(_GRADIENTS_SQL):
        for gradient in parse_arguments("", shapes=shapes, types=types).tensors[:1]:
            if gradient.type_name is not None:
                steps[trace_id, step][gradient.type_name][gradient.shape] += count
    return frozenset(
        tuple((type_name, tuple(sorted(shapes.elements()))) for type_name, shapes in sorted(by_type.items()))
        for by_type in steps.values()
    )


def with_kernel_types(call: CallArguments, kernel: str | None) -> CallArguments:
    """The call, its lists of tensors having the element types that its kernel's name tells."""
    if kernel is None or not call.list_positions:
        return call
    return with_list_types(call, _list_types(call, kernel))


def with_list_members(
    call: CallArguments, kernel: str | None, block_count: int | None, gradients: Gradients
) -> CallArguments | None:
    """The call, its unrecorded lists being those of the gradients; None unless that is certain."""
    if kernel is None or block_count is None:
        return None
    decoded = decode(kernel)
    if not (decoded.function or "").endswith(_MULTI_TENSOR) or not decoded.template_arguments:
        return None
    lists = call.list_positions
    types = _list_types(call, kernel)
    depth = _METADATA_DEPTH.search(decoded.template_arguments[0])
    filled = None if depth is None else _filled_lists(call, lists, int(depth[1]))
    if filled is None or not filled <= types.keys():
        return None
    shapes = _shapes_of_blocks(gradients, block_count, types[lists[0]])
    if shapes is None:
        return None
    members = {
        position: TensorListArgument(tuple(TensorArgument(shape, types[position]) for shape in shapes))
        for position in filled
    }
    if call.has(_STEPS):
        step = TensorArgument((), _STEP_TYPE, ())
        members[call.names.index(_STEPS)] = TensorListArgument((step,) * len(shapes))
    empty = {position: TensorListArgument(()) for position in lists if position not in members}
    return with_arguments(call, {**members, **empty})


def _filled_lists(call: CallArguments, lists: list[int], depth: int) -> set[int] | None:
    """Positions of the lists whose members the kernel takes; None if they do not follow.

    Optimizer kernels take the first ones, the rest being empty; others all, and one of results if need be.
    """
    if call.name.rpartition("::")[2].startswith("_fused_"):
        return set(lists[:depth]) if depth <= len(lists) else None
    return set(lists) if len(lists) in (depth, depth - 1) else None


def _list_types(call: CallArguments, kernel: str) -> dict[int, str]:
    """Element type of each list of tensors, by position; without those that are not known."""
    lists = call.list_positions
    arguments = decode(kernel).template_arguments
    copied = next((found for text in arguments if (found := _COPIED_TYPES.search(text))), None)
    if copied is not None and len(lists) == 2:
        names = [copied[1], copied[2]]
    else:
        names = [_common_type(arguments) or ""] * len(lists)
    types = dict(zip(lists, names, strict=True))
    if call.has(_STEPS):
        types[call.names.index(_STEPS)] = _STEP_TYPE
    return {position: type_name for position, type_name in types.items() if element_type(type_name)}


def _common_type(template_arguments: tuple[str, ...]) -> str | None:
    if not template_arguments:
        return None
    opaque = _OPAQUE_TYPE.search(template_arguments[0])
    if opaque is not None:
        return _TYPE_OF_SIZE.get(int(opaque[1]))
    functor = next((found for text in template_arguments if (found := _FUNCTOR_TYPE.search(text))), None)
    return template_arguments[0] if functor is None else functor[1]


def _blocks(shapes: Iterable[tuple[int, ...]]) -> int:
    return sum(-(-TensorArgument(shape).element_count // CHUNK_ELEMENTS) for shape in shapes)
