from __future__ import annotations

import pytest


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
