"""native_functions.yaml → native functions: torchgen's defaults filled in, and the variants it generates.

Source: aten/src/ATen/native/README.md; torchgen/model.py, `NativeFunction.from_yaml`;
torchgen/native_function_generation.py, `generate_function`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from opscope.errors import InputError
from opscope.provenance.operators.dispatch import COMPOSITE_IMPLICIT, UFUNC_KEYS
from opscope.provenance.operators.schema import (
    Argument,
    Kind,
    NativeFunction,
    OperatorName,
    Return,
    Schema,
    parse_schema,
    plain,
    schema_of,
)

LINE = "__line__"


def read_mappings(path: Path) -> list[dict[str, Any]]:
    """The mappings of a file that is a list of mappings; key `LINE` holds the line of each, from 1."""
    import yaml  # noqa: PLC0415  (needed once per torch installation; 25 ms)

    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", source=path) from error
    try:
        document = yaml.load(content, Loader=_loader())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not YAML ({_first_line(error)})", source=path) from error
    if not isinstance(document, list) or not all(isinstance(item, dict) for item in document):
        raise InputError("not a list of mappings", source=path)
    return document


def text_of(item: Mapping[str, Any], key: str) -> str | None:
    """The text under a key; None if there is none."""
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"'{key}' is not text: {value!r}")
    return value


def words(value: Any) -> tuple[str, ...]:
    """The words of a text separated by commas, or of a list."""
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(word for part in value.split(",") if (word := part.strip()))
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError(f"neither words nor a list of words: {value!r}")


def _loader() -> Any:
    import yaml  # noqa: PLC0415

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one is absent from some builds

    class LineLoader(base):  # type: ignore[misc]
        """Notes in each mapping where it starts."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
            mapping[LINE] = node.start_mark.line + 1
            return mapping

    return LineLoader


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


_NAMESPACE = "aten"


def known_tags(tags: Path) -> set[str]:
    """The tags a tags.yaml defines."""
    return {str(item.get("tag")) for item in read_mappings(tags)}


def declared_functions(native_functions: Path, tags: set[str]) -> list[NativeFunction]:
    """The entries of a native_functions.yaml in its order."""
    functions = []
    for item in read_mappings(native_functions):
        try:
            functions.append(_function(item, tags))
        except ValueError as error:
            raise InputError(f"line {item[LINE]}: {error}", source=native_functions) from error
    if not functions:
        raise InputError("no entries", source=native_functions)
    return functions


def kernel_name(schema: Schema) -> str:
    """The C++ name of a function that names no implementation."""
    return f"{schema.name.name}_out" if schema.out else schema.name.name


def automatic_tags(schema: Schema, tags: set[str]) -> set[str]:
    """Tags that torchgen adds by the form of a schema, in the releases that have them."""
    added = {"out"} if schema.out else set()
    added |= {"inplace"} if schema.name.is_inplace else set()
    return added & tags


def _function(item: Mapping[str, Any], tags: set[str]) -> NativeFunction:
    text = text_of(item, "func")
    if text is None:
        raise ValueError("an entry without 'func'")
    head, separator, rest = text.partition("(")[0].partition("::")
    namespace, text = (head, text[len(head) + 2 :]) if separator and rest else (_NAMESPACE, text)
    schema = parse_schema(text)
    delegate = text_of(item, "structured_delegate")
    is_structured = bool(item.get("structured", False))
    return NativeFunction(
        name=f"{namespace}::{schema.name.name}",
        overload=schema.name.overload,
        schema=text,
        dispatch=_dispatch(item, schema, has_structured_kernel=is_structured or delegate is not None),
        structured=is_structured,
        structured_delegate=delegate,
        autogen=words(item.get("autogen")),
        tags=tuple(sorted({*words(item.get("tags")), *automatic_tags(schema, tags)})),
        variants=words(item.get("variants")) or ("function",),
        python_module=text_of(item, "python_module"),
        ufunc=bool(item.get("ufunc_inner_loop")),
        has_manual_binding=bool(item.get("manual_cpp_binding", False)),
        yaml_line=item[LINE],
    )


def _dispatch(item: Mapping[str, Any], schema: Schema, *, has_structured_kernel: bool) -> dict[str, str]:
    if item.get("dispatch") is None and not has_structured_kernel:
        return {COMPOSITE_IMPLICIT: kernel_name(schema)}
    declared = item.get("dispatch") or {}
    if not isinstance(declared, dict):
        raise ValueError(f"'dispatch' is not a mapping: {declared!r}")  # noqa: TRY004  (of the file)
    dispatch: dict[str, str] = {}
    for keys in declared:
        function = None if keys == LINE else text_of(declared, keys)
        if function is not None:
            dispatch.update((key, function) for key in words(keys))
    if item.get("ufunc_inner_loop"):
        dispatch.update({key: f"ufunc_{schema.name.name}_{key}" for key in UFUNC_KEYS})
    return dispatch


_KEY = "CompositeExplicitAutograd"
# Where several variants list a name, it is derived from the first of these.
_ORDER = (Kind.MUTABLE, Kind.INPLACE, Kind.OUT, Kind.SCRATCH, Kind.FUNCTIONAL)
_INHERITED_TAGS = {"nondeterministic_seeded", "view_copy"}


def generated_functions(functions: Iterable[NativeFunction], known_tags: set[str]) -> list[NativeFunction]:
    """One function per name in an `autogen` list, in order, less those that are declared."""
    declared = list(functions)
    # Where all variants are made of other operators, no variant of these is generated.
    whole: set[tuple[object, ...]] = set()
    other: set[tuple[object, ...]] = set()
    for entry in declared:
        is_decomposed = COMPOSITE_IMPLICIT in entry.dispatch and "core" not in entry.tags
        (whole if is_decomposed else other).add(schema_of(entry).signature)
    decomposed = whole - other
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


def _variant(entry: NativeFunction, target: OperatorName, known_tags: set[str]) -> NativeFunction:
    source = schema_of(entry)
    is_out = "out" in target.overload
    if is_out:
        schema = _out_schema(source, target)
    else:
        positional = tuple(plain(argument) for argument in source.positional)
        keyword_only = tuple(plain(argument) for argument in source.without_tensor_options)
        schema = Schema(target, positional, keyword_only, (), source.functional_returns())
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


def _out_schema(source: Schema, target: OperatorName) -> Schema:
    if source.kind is Kind.INPLACE:
        itself = next(argument for argument in source.positional if argument.name == "self")
        positional = tuple(plain(a) if a.name == "self" else a for a in source.positional)
        written = replace(itself, name="out", default=None)
        return Schema(target, positional, source.keyword_only, (written,), source.returns)
    # One written argument per tensor result; results are these, or the ones that are no tensors.
    taken = {letter for a in source.arguments for letter in (a.annotation or "") if letter.isalpha()}
    letters = [letter for letter in string.ascii_lowercase if letter not in taken]
    are_tensors = all(one.type == "Tensor" for one in source.returns)
    out: list[Argument] = []
    returns: list[Return] = []
    for index, one in enumerate(source.returns):
        if "Tensor" not in one.type:
            returns.append(Return(one.type, one.annotation, one.name))
            continue
        annotation, name = f"{letters[index]}!", "out" if len(source.returns) == 1 else f"out{index}"
        out.append(Argument(one.type, annotation, name))
        if are_tensors:
            returns.append(Return(one.type, annotation))
    if source.kind is Kind.MUTABLE:
        return Schema(target, source.positional, source.keyword_only, tuple(out), tuple(returns))
    positional = tuple(plain(argument) for argument in source.positional)
    keyword_only = tuple(plain(argument) for argument in source.without_tensor_options)
    return Schema(target, positional, keyword_only, tuple(out), tuple(returns))
