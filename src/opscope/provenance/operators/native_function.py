"""What is known of one native function and of one backward node: the values of an operator table."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from opscope.provenance.operators.schema import OperatorName, Schema, parse_schema

__all__ = ["Derivative", "NativeFunction", "schema_of"]


class NativeFunction(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of native_functions.yaml, or one that torchgen derives from such an entry.

    Args:
        name: With namespace, e.g. `aten::_softmax`.
        overload: Empty for the default one.
        schema: As the yaml writes it, without namespace.
        dispatch: Dispatch key → function that is registered for it, defaults filled in.
        structured: The functions are written as structured kernels.
        structured_delegate: Entry whose structured kernel serves this one, e.g. `_softmax.out`.
        autogen: Variants that are generated from this entry.
        tags: In alphabetical order.
        variants: `function`, `method`.
        python_module: `nn`, `linalg`, …, or None.
        ufunc: Its CPU and CUDA functions are generated from a scalar function.
        generated: It is not in the yaml: torchgen derives it.
        has_manual_binding: Its C++ interface is written by hand and mostly bypasses the dispatcher.
        yaml_line: From 1; of the entry it is derived from where `generated`.
    """

    name: str
    overload: str
    schema: str
    dispatch: dict[str, str]
    structured: bool = False
    structured_delegate: str | None = None
    autogen: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("function",)
    python_module: str | None = None
    ufunc: bool = False
    generated: bool = False
    has_manual_binding: bool = False
    yaml_line: int = 0

    @property
    def qualified_name(self) -> str:
        """Name and overload, e.g. `aten::add.Tensor`."""
        return str(OperatorName(self.name, self.overload))


class Derivative(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node of the backward graph.

    Args:
        node: Its name, e.g. `SoftmaxBackward0`.
        forward: Functions that record it, e.g. `aten::_softmax`; the one with the formulas first.
        formulas: Differentiable inputs (`mat1`, or `self, other` for a joint one) → C++ formula in the yaml.
        functions: Operators that the formulas call, by name, e.g. `aten::_softmax_backward_data`.
        helpers: C++ functions of autograd's own that the formulas call; these call operators in turn.
        dispatch_key: `Default`, or the autograd key it is for.
        yaml_line: In derivatives.yaml, from 1; 0 if it has none.
        reference: For a list operator without own formulas, the function whose formulas it applies to each
            tensor, with that function's argument names.
        description: What a node without formulas does.
    """

    node: str
    forward: tuple[str, ...] = ()
    formulas: dict[str, str] = {}
    functions: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    dispatch_key: str = "Default"
    yaml_line: int = 0
    reference: str | None = None
    description: str | None = None


@lru_cache(maxsize=8192)
def _parsed(schema: str) -> Schema:
    return parse_schema(schema)


def schema_of(entry: NativeFunction) -> Schema:
    """The parsed schema of an entry."""
    return _parsed(entry.schema)
