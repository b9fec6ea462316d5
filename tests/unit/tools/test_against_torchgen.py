"""PyTorch's own generator as the judge; skipped where no PyTorch is installed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from opscope.provenance.operators.schema import schema_of
from opscope.provenance.sources.signatures import coarse_type
from torch_tables.operator_table import (
    DERIVATIVES_YAML,
    NATIVE_FUNCTIONS_YAML,
    TAGS_YAML,
    build_operator_table,
)

pytestmark = [pytest.mark.torch, pytest.mark.exhaustive(few=False)]


@pytest.fixture(scope="module")
def packaged():
    """The yaml files of the installed PyTorch."""
    torchgen = pytest.importorskip("torchgen")
    return Path(torchgen.__file__).parent / "packaged"


@pytest.fixture(scope="module")
def theirs(packaged):
    """What torchgen makes of its files."""
    gen = importlib.import_module("torchgen.gen")
    return gen.parse_native_yaml(str(packaged / NATIVE_FUNCTIONS_YAML), str(packaged / TAGS_YAML))


@pytest.fixture(scope="module")
def ours(packaged):
    """What this room makes of them, by name with overload."""
    functions = build_operator_table(packaged).functions
    return {entry.qualified_name.removeprefix("aten::"): entry for entry in functions}


def test_the_same_functions(theirs, ours):
    assert set(ours) == {str(function.func.name) for function in theirs.native_functions}


def test_the_same_dispatch(theirs, ours):
    expected = {name: {} for name in ours}
    for key, index in theirs.backend_indices.items():
        for name, kernel in index.index.items():
            expected[str(name)][str(key)] = kernel.kernel
    assert {name: entry.dispatch for name, entry in ours.items()} == expected


@pytest.mark.parametrize(
    ("ours_of", "theirs_of"),
    [
        (lambda entry: entry.schema, lambda function: str(function.func)),
        (lambda entry: str(schema_of(entry)), lambda function: str(function.func)),
        (lambda entry: schema_of(entry).kind.value, lambda function: function.func.kind().name),
        (lambda entry: entry.yaml_line, lambda function: function.loc.line),
        (lambda entry: entry.structured, lambda function: function.structured),
        (
            lambda entry: entry.structured_delegate,
            lambda function: function.structured_delegate and str(function.structured_delegate),
        ),
        (lambda entry: set(entry.tags), lambda function: function.tags - {"pt2_compliant_tag"}),
        (lambda entry: set(entry.variants), lambda function: {one.name for one in function.variants}),
        (lambda entry: list(entry.autogen), lambda function: [str(name) for name in function.autogen]),
        (lambda entry: entry.generated, lambda function: "generated" in function.tags),
        (lambda entry: entry.ufunc, lambda function: bool(function.ufunc_inner_loop)),
        (lambda entry: entry.has_manual_binding, lambda function: function.manual_cpp_binding),
        (lambda entry: entry.python_module, lambda function: function.python_module),
    ],
    ids=[
        "schema", "parsed schema", "kind", "line", "structured", "delegate", "tags", "variants", "autogen",
        "generated", "ufunc", "manual binding", "module",
    ],
)  # fmt: skip
def test_the_same_fields(theirs, ours, ours_of, theirs_of):
    expected = {str(function.func.name): theirs_of(function) for function in theirs.native_functions}
    assert {name: ours_of(entry) for name, entry in ours.items()} == expected


@pytest.mark.parametrize("symbolic_sizes", [False, True])
def test_the_same_parameters(theirs, ours, symbolic_sizes):
    types = importlib.import_module("torchgen.api.types")
    local = importlib.import_module("torchgen.local")
    expected = {}
    with local.parametrize(use_const_ref_for_mutable_tensors=False, use_ilistref_for_tensor_lists=False):
        for function in theirs.native_functions:
            arguments = types.NativeSignature(function.func, symint=symbolic_sizes).arguments()
            expected[str(function.func.name)] = [coarse_type(one.nctype.cpp_type()) for one in arguments]
    found = {
        name: [coarse_type(one.type) for one in schema_of(entry).arguments] for name, entry in ours.items()
    }
    assert found == expected


def test_the_same_groups_of_variants(theirs, ours):
    def groups(signatures):
        members: dict[object, set[str]] = {}
        for name, signature in signatures:
            members.setdefault(signature, set()).add(name)
        return {frozenset(group) for group in members.values()}

    expected = (
        (str(one.func.name), one.func.signature(strip_default=True)) for one in theirs.native_functions
    )
    assert groups((name, schema_of(one).signature) for name, one in ours.items()) == groups(expected)


def test_the_same_backward_nodes(theirs, packaged):
    loading = importlib.import_module("torchgen.packaged.autograd.load_derivatives")
    autograd = importlib.import_module("torchgen.api.autograd")
    infos, _ = loading.load_derivatives(
        *(str(packaged / name) for name in (DERIVATIVES_YAML, NATIVE_FUNCTIONS_YAML, TAGS_YAML))
    )
    formulas, forward = {}, {}
    for function in autograd.match_differentiability_info(theirs.native_functions, infos):
        for info in (function.info or {}).values():
            if info.op is not None and function.func.func.kind().name not in {"out", "scratch"}:
                formulas[info.op] = {
                    ", ".join(one.var_names): " ".join(one.original_formula.split())
                    for one in info.derivatives
                }
                forward.setdefault(info.op, set()).add(f"aten::{function.func.func.name}")
    nodes = {node.node: node for node in build_operator_table(packaged).derivatives}
    assert {name: set(node.forward) for name, node in nodes.items()} == forward
    own = {name: node.formulas for name, node in nodes.items() if node.reference is None}
    assert own == {name: formulas[name] for name in own}
