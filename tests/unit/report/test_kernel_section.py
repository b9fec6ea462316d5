from __future__ import annotations

import pytest
from msgspec.structs import replace

from opscope.analysis.kernel_titles import kernel_title
from opscope.analysis.launch_quality import ExplainedLaunch
from opscope.analysis.provenance import GeneratedCode, KernelFacts
from opscope.analysis.summary import Summary
from opscope.launches.facts import LaunchGeometry
from opscope.launches.launch_explanation import Heading, LaunchExplanation, Statement
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.report.document import Code, FactList, Paragraph, plain
from opscope.report.explanation import distinct_titles
from opscope.report.json_encoding import encode
from opscope.report.kernel_section import (
    explained_launches,
    kernel_facts,
    kernel_meaning,
    launch_blocks,
)
from opscope.report.summary_json import SUMMARY_KEYS

from .conftest import said

FUNCTOR = "at::native::(anonymous namespace)::pow_impl"
POW = KernelFacts(
    "void at::native::vectorized_elementwise_kernel<4, …>(int)",
    "elementwise",
    function="at::native::vectorized_elementwise_kernel",
    family="elementwise",
    fields={"functor": FUNCTOR, "vector_width": 4, "operand_type": "f32", "tensor_core": False,
            "template_arguments": [["vec_size", "4"], ["func_t", "x" * 60]]},
    grades={"family": "name_pattern", "vector_width": "name_pattern", "operand_type": "name_pattern",
            "tensor_core": "inferred"},
    units=("a/Pow.cu",),
    unit_grade=Grade.EXACT,
    binary="libtorch_cuda.so",
    location=SourceLocation("a/Pow.cu", Grade.EXACT, 3, 4, Grade.RELEASE_INDEX),
    template=SourceLocation("a/Loops.cuh", Grade.RELEASE_INDEX, 9, 12, Grade.RELEASE_INDEX),
)  # fmt: skip


def test_everything_known_of_a_kernel() -> None:
    assert said(kernel_facts(POW)) == {
        "Name": POW.name,
        "Does": "Computes each output element from the input elements at the same place (name_pattern)",
        "By its name": "operands f32, 4 elements per load (name_pattern); no tensor cores (inferred)",
        "Translation unit": "a/Pow.cu (exact)",
        "Registered by": "libtorch_cuda.so",
        "Source": "a/Pow.cu:3 (file: exact, line: release_index)",
        "Template": "a/Loops.cuh:9 (release_index)",
        "Template arguments": "vec_size=4",
        "… func_t": "x" * 60,
    }


def test_the_name_is_given_in_full_unless_it_is_the_title() -> None:
    assert kernel_facts(POW)[0] == ("Name", Code(POW.name, is_whole=True))
    assert "Name" not in said(kernel_facts(POW, title=POW.name))


def test_of_a_bare_name_nothing_is_made_up() -> None:
    bare = KernelFacts("secret", "other")
    assert kernel_facts(bare) == [("Name", Code("secret", is_whole=True))]
    assert (
        kernel_meaning(bare) is kernel_meaning(KernelFacts("x", "other", family="of a later release")) is None
    )


def test_many_units_are_counted_and_a_unit_is_no_source_of_its_own() -> None:
    units = tuple(f"u{index}.cu" for index in range(6))
    facts = said(kernel_facts(KernelFacts("k", "other", units=units, unit_grade=Grade.EXACT)))
    assert facts["Translation unit"] == "u0.cu, u1.cu, u2.cu, u3.cu and 2 more (exact)"
    alone = KernelFacts(
        "k", "other", units=("u.cu",), unit_grade=Grade.EXACT, location=SourceLocation("u.cu", Grade.EXACT)
    )
    assert "Source" not in said(kernel_facts(alone))


def test_a_title_is_the_function_with_its_functor() -> None:
    assert kernel_title(POW) == "vectorized_elementwise_kernel<… pow_impl …>"
    assert kernel_title(KernelFacts("k", "x", function="a::(anonymous namespace)::softmax")) == "softmax"
    assert kernel_title(KernelFacts("Memcpy DtoH", "x")) == "Memcpy DtoH"
    plain = {"template_arguments": [(None, "int")]}
    assert (
        kernel_title(KernelFacts("k", "x", function="(anonymous namespace)::kernel", fields=plain))
        == "kernel"
    )
    arguments = {"template_arguments": [(None, "cutlass_80_gemm")]}
    assert (
        kernel_title(KernelFacts("k", "x", function="cutlass::Kernel", fields=arguments)) == "cutlass_80_gemm"
    )


def test_where_titles_are_alike_the_names_stand() -> None:
    twin = KernelFacts("other name", "x", function=POW.function, fields={"functor": FUNCTOR})
    single = KernelFacts("void f<int>()", "x", function="f")
    assert distinct_titles([POW, twin, single]) == [Code(POW.name), Code("other name"), Code("f")]


GEOMETRY = LaunchGeometry((4, 2, 1), (128, 1, 1), 32, 0, 0.5, 3, 9_000)
STATEMENTS = (
    Statement(Heading.PARALLEL_OVER, "Rows are independent.", Grade.NAME_PATTERN),
    Statement(Heading.MEMORY, "Loads are coalesced.", Grade.INFERRED),
    Statement(Heading.MEMORY, "Stores too.", Grade.INFERRED),
    Statement(Heading.MEMORY, "32 registers.", Grade.EXACT),
)
LAUNCH = ExplainedLaunch("void f<int>()", GEOMETRY, LaunchExplanation("softmax", STATEMENTS), "[[8,4]]")


@pytest.fixture
def told(summary: Summary) -> Summary:
    kernel = replace(
        summary.kernels[0], name=LAUNCH.kernel, facts=KernelFacts(LAUNCH.kernel, "x", function="f")
    )
    return summary.having(kernels=(kernel,), accounts={("aten::a", LAUNCH.kernel): (LAUNCH,)})


def test_sentences_stand_by_heading_and_a_shared_grade_is_said_once(told: Summary) -> None:
    opening, facts = launch_blocks(told, "aten::a", LAUNCH.kernel)
    assert isinstance(opening, Paragraph)
    assert isinstance(facts, FactList)
    assert plain(opening.text) == "How it parallelizes, called with shapes [[8,4]]:"
    assert [(label, plain(text)) for label, text in facts.facts] == [
        ("Parallel over", "Rows are independent. (name_pattern)"),
        ("Memory", "Loads are coalesced. Stores too. (inferred) 32 registers. (exact)"),
    ]


def test_among_several_kernels_it_is_named_in_short(told: Summary) -> None:
    opening, _ = launch_blocks(told, "aten::a", LAUNCH.kernel, names_kernel=True)
    assert isinstance(opening, Paragraph)
    assert plain(opening.text).startswith("How it parallelizes, f, called")


def test_under_an_operator_not_explained_the_kernels_own_stands_in(told: Summary) -> None:
    alone = told.having(accounts={(None, LAUNCH.kernel): (LAUNCH,)})
    assert launch_blocks(alone, "aten::b", LAUNCH.kernel) != ()
    assert len(explained_launches(alone, "aten::b", LAUNCH.kernel)) == 1


def test_of_what_is_not_known_nothing_is_said(told: Summary) -> None:
    assert launch_blocks(told, None, LAUNCH.kernel) == ()
    assert explained_launches(told, "aten::a", "other") == ()


def test_as_json_unknown_is_null(told: Summary) -> None:
    assert encode(explained_launches(told, "aten::a", LAUNCH.kernel), SUMMARY_KEYS) == [
        {
            "kernel": LAUNCH.kernel,
            "shapes": [[8, 4]],
            "grid": [4, 2, 1],
            "block": [128, 1, 1],
            "family": "softmax",
            "launch_explained": None,
            "waves": None,
            "statements": [
                {"about": one.heading, "text": one.text, "grade": one.grade} for one in STATEMENTS
            ],
        }
    ]


def test_modules_of_generated_code_are_told_once_for_equal_layers() -> None:
    modules = (*(f"layers.{at}.norm" for at in range(12)), "head", "")
    code = GeneratedCode("inductor", "0_inference", ("aten::gelu",), (), modules, (), (), None)
    lines = {label: plain(text) for label, text in kernel_facts(replace(POW, generated=(code,)))}
    assert lines["In modules of 0_inference"] == "layers.*.norm ×12, head, the model itself (exact)"
