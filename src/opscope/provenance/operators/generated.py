"""The variants that torchgen generates: what an entry's `autogen` lists, with schema and kernel name.

Source: torchgen/native_function_generation.py, `generate_function`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import replace

from opscope.provenance.operators.declarations import COMPOSITE_IMPLICIT, automatic_tags, kernel_name
from opscope.provenance.operators.native_function import NativeFunction, schema_of
from opscope.provenance.operators.schema import Argument, Kind, OperatorName, Return, Schema, plain

__all__ = ["generated_functions"]

_KEY = "CompositeExplicitAutograd"
# Where several variants list a name, it is derived from the first of these.
_ORDER = (Kind.MUTABLE, Kind.INPLACE, Kind.OUT, Kind.SCRATCH, Kind.FUNCTIONAL)
_INHERITED_TAGS = {"nondeterministic_seeded", "view_copy"}


def generated_functions(functions: Iterable[NativeFunction], known_tags: set[str]) -> list[NativeFunction]:
    """One function per name in an `autogen` list, in order, less those that are declared."""
    declared = list(functions)
    decomposed = _decomposed(declared)
    sources: dict[tuple[str, str], NativeFunction] = {}
    for entry in declared:
        if schema_of(entry).signature in decomposed:
            continue
        namespace = entry.name.rpartition("::")[0]
        for name in entry.autogen:
            known = sources.setdefault((namespace, name), entry)
            if _ORDER.index(schema_of(entry).kind) < _ORDER.index(schema_of(known).kind):
                sources[namespace, name] = entry
    for entry in declared:
        sources.pop((entry.name.rpartition("::")[0], entry.qualified_name.rpartition("::")[2]), None)
    return [_variant(entry, OperatorName.parse(name), known_tags) for (_, name), entry in sources.items()]


def _decomposed(functions: Iterable[NativeFunction]) -> set[tuple[object, ...]]:
    """Signatures whose variants are all made of other operators: no variant of these is generated."""
    whole: set[tuple[object, ...]] = set()
    other: set[tuple[object, ...]] = set()
    for entry in functions:
        is_decomposed = COMPOSITE_IMPLICIT in entry.dispatch and "core" not in entry.tags
        (whole if is_decomposed else other).add(schema_of(entry).signature)
    return whole - other


def _variant(entry: NativeFunction, target: OperatorName, known_tags: set[str]) -> NativeFunction:
    source = schema_of(entry)
    is_out = "out" in target.overload
    schema = _out_schema(source, target) if is_out else _functional_schema(source, target)
    kernel = target.unambiguous if is_out else kernel_name(schema)
    if source.has_symbolic_sizes:
        kernel += "_symint"
    tags = {"generated", *(_INHERITED_TAGS & set(entry.tags)), *automatic_tags(schema, known_tags)}
    namespace = entry.name.rpartition("::")[0]
    return NativeFunction(
        name=f"{namespace}::{target.name}",
        overload=target.overload,
        schema=str(schema),
        dispatch={_KEY: kernel},
        tags=tuple(sorted(tags)),
        generated=True,
        yaml_line=entry.yaml_line,
    )


def _functional_schema(source: Schema, target: OperatorName) -> Schema:
    return Schema(
        target,
        tuple(plain(argument) for argument in source.positional),
        tuple(plain(argument) for argument in source.without_tensor_options),
        (),
        source.functional_returns(),
    )


def _out_schema(source: Schema, target: OperatorName) -> Schema:
    if source.kind is Kind.INPLACE:
        return _out_of_inplace(source, target)
    out, returns = _results_as_arguments(source)
    if source.kind is Kind.MUTABLE:
        return Schema(target, source.positional, source.keyword_only, out, returns)
    positional = tuple(plain(argument) for argument in source.positional)
    keyword_only = tuple(plain(argument) for argument in source.without_tensor_options)
    return Schema(target, positional, keyword_only, out, returns)


def _out_of_inplace(source: Schema, target: OperatorName) -> Schema:
    itself = next(argument for argument in source.positional if argument.name == "self")
    positional = tuple(plain(a) if a.name == "self" else a for a in source.positional)
    out = (replace(itself, name="out", default=None),)
    return Schema(target, positional, source.keyword_only, out, source.returns)


def _results_as_arguments(source: Schema) -> tuple[tuple[Argument, ...], tuple[Return, ...]]:
    """One written argument per tensor result; results are these, or the ones that are no tensors."""
    taken = {letter for a in source.arguments for letter in (a.annotation or "") if letter.isalpha()}
    letters = [letter for letter in string.ascii_lowercase if letter not in taken]
    is_single = len(source.returns) == 1
    are_tensors = all(one.type == "Tensor" for one in source.returns)
    out: list[Argument] = []
    returns: list[Return] = []
    for index, one in enumerate(source.returns):
        if "Tensor" not in one.type:
            returns.append(Return(one.type, one.annotation, one.name))
            continue
        annotation = f"{letters[index]}!"
        out.append(Argument(one.type, annotation, "out" if is_single else f"out{index}"))
        if are_tensors:
            returns.append(Return(one.type, annotation))
    return tuple(out), tuple(returns)
