from __future__ import annotations

import pytest

from opscope.errors import InputError

SOFTMAX = """\
- func: softmax.int(Tensor self, int dim) -> Tensor
  variants: function, method

- func: _softmax(Tensor self, int dim) -> Tensor
  structured_delegate: _softmax.out
  dispatch:
    MkldnnCPU: mkldnn_softmax
    NestedTensorCPU, NestedTensorCUDA: softmax_nested
  tags: core

- func: _softmax.out(Tensor self, int dim, *, Tensor(a!) out) -> Tensor(a!)
  structured: True
  python_module: nn
  dispatch:
    CPU: softmax_cpu_out
    CUDA: softmax_cuda_out
"""


def test_fields_of_entries(make_table):
    table = make_table(SOFTMAX)
    composite, delegating, structured = table.functions
    assert composite.dispatch == {"CompositeImplicitAutograd": "softmax"}
    assert composite.variants == ("function", "method")
    assert (composite.yaml_line, delegating.yaml_line, structured.yaml_line) == (1, 4, 11)
    assert delegating.dispatch == {
        "MkldnnCPU": "mkldnn_softmax",
        "NestedTensorCPU": "softmax_nested",
        "NestedTensorCUDA": "softmax_nested",
    }
    assert (delegating.structured_delegate, delegating.tags) == ("_softmax.out", ("core",))
    assert (structured.qualified_name, structured.structured, structured.python_module, structured.tags) == (
        "aten::_softmax.out",
        True,
        "nn",
        ("out",),
    )


def test_ufunc_kernels_are_named_by_key(make_table):
    table = make_table(
        "- func: add.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)\n"
        "  structured: True\n  ufunc_inner_loop:\n    Generic: add (AllAndComplex)\n"
        "  dispatch:\n    MPS: add_out_mps\n"
    )
    entry = table.functions[0]
    assert entry.dispatch == {"MPS": "add_out_mps", "CPU": "ufunc_add_CPU", "CUDA": "ufunc_add_CUDA"}
    assert entry.ufunc


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ("- func: f(Tensor self)", "line 1: not a function schema"),
        ("- tags: core", "line 1: an entry without 'func'"),
        ("- func: f() -> ()\n  dispatch: f", "line 1: 'dispatch' is not a mapping"),
        ("- func: f() -> ()\n  dispatch:\n    CUDA: 3", "line 1: 'CUDA' is not text"),
        ("- func: f() -> ()\n  tags: {core: 1}", "line 1: neither words nor a list"),
        ("func: f() -> ()", "not a list of mappings"),
        ("- [1", "not YAML"),
        ("[]", "no entries"),
        ("- !!python/object:os.system f", "not YAML"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(make_table, functions, message):
    with pytest.raises(InputError, match=message) as caught:
        make_table(functions)
    assert str(caught.value.source).endswith("native_functions.yaml")


def test_a_missing_file_is_refused(write_yaml):
    from torch_tables.operator_table import build_operator_table

    folder = write_yaml(SOFTMAX)
    (folder / "autograd/derivatives.yaml").unlink()
    with pytest.raises(InputError, match="cannot be read"):
        build_operator_table(folder)


@pytest.mark.parametrize(
    ("declared", "name", "schema", "kernel"),
    [
        (
            "rand_like(Tensor self, SymInt n=1, *, ScalarType? dtype=None, Layout? layout=None,"
            " Device? device=None, bool? pin_memory=None, MemoryFormat? f=None) -> Tensor",
            "rand_like.out",
            "rand_like.out(Tensor self, SymInt n=1, *, MemoryFormat? f=None, Tensor(a!) out) -> Tensor(a!)",
            "rand_like_out_symint",
        ),
        (
            "f.x(Tensor(a) self) -> (Tensor, Tensor[], int)",
            "f.x_out",
            "f.x_out(Tensor self, *, Tensor(b!) out0, Tensor(c!)[] out1) -> int",
            "f_x_out",
        ),
        (
            "_foreach_exp_(Tensor(a!)[] self) -> ()",
            "_foreach_exp.out",
            "_foreach_exp.out(Tensor[] self, *, Tensor(a!)[] out) -> ()",
            "_foreach_exp_out",
        ),
        (
            "norm(Tensor input, Tensor(a!) mean) -> (Tensor, Tensor)",
            "norm.out",
            "norm.out(Tensor input, Tensor(a!) mean, *, Tensor(b!) out0, Tensor(c!) out1)"
            " -> (Tensor(b!), Tensor(c!))",
            "norm_out",
        ),
        (
            "norm(Tensor input, Tensor(a!) mean) -> (Tensor, Tensor)",
            "norm_functional",
            "norm_functional(Tensor input, Tensor mean) -> (Tensor, Tensor, Tensor mean_out)",
            "norm_functional",
        ),
    ],
)
def test_variants(make_table, declared, name, schema, kernel):
    entry = make_table(f"- func: {declared}\n  autogen: {name}\n  dispatch:\n    CUDA: f_cuda\n").named(
        f"aten::{name}"
    )
    assert entry.schema == schema
    assert entry.dispatch == {"CompositeExplicitAutograd": kernel}
    assert entry.generated
    assert "generated" in entry.tags
    assert entry.yaml_line == 1


def test_nothing_is_generated_of_what_is_made_of_other_operators(make_table):
    entry = "- func: prelu(Tensor self) -> Tensor\n  autogen: prelu.out\n"
    assert len(make_table(entry).functions) == 1
    assert len(make_table(f"{entry}  tags: core\n").functions) == 2


def test_nothing_is_generated_twice(make_table):
    table = make_table(
        "- func: f(Tensor self) -> Tensor\n  autogen: f.out\n  dispatch:\n    CUDA: a\n"
        "- func: f_(Tensor(a!) self) -> Tensor(a!)\n  autogen: f.out\n  dispatch:\n    CUDA: b\n"
        "- func: g.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)\n  autogen: g.out\n"
    )
    assert [entry.qualified_name for entry in table.functions] == [
        "aten::f", "aten::f_", "aten::g.out", "aten::f.out",
    ]  # fmt: skip
    assert table.functions[3].yaml_line == 5  # of the in-place one, as torchgen prefers
