from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from opscope.analysis.launch_quality import ExplainedLaunch
from opscope.analysis.provenance import GeneratedCode, KernelFacts
from opscope.analysis.summary import Summary
from opscope.launches.facts import LaunchGeometry
from opscope.launches.launch_explanation import Heading, LaunchExplanation, Statement
from opscope.model.evidence import Grade
from opscope.model.location import SourceLocation
from opscope.report.document import Code
from opscope.report.explanation import distinct_titles
from opscope.report.json_encoding import encode
from opscope.report.kernel_section import explained_launches, kernel_facts, launch_blocks
from opscope.report.summary_json import SUMMARY_KEYS

from .conftest import markdown_of

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


UNITS = tuple(f"u{index}.cu" for index in range(6))
MODULES = (*(f"layers.{at}.norm" for at in range(12)), "head", "")
COMPUTED = GeneratedCode("inductor", "0_inference", ("aten::gelu",), (), MODULES, (), (), None)
KERNELS = {
    "everything": POW,
    "a bare name": KernelFacts("secret", "other"),
    "a family of a later release": KernelFacts("x", "other", family="of a later release"),
    "many units": KernelFacts("k", "other", units=UNITS, unit_grade=Grade.EXACT),
    "a unit is no source of its own": KernelFacts(
        "k", "other", units=("u.cu",), unit_grade=Grade.EXACT, location=SourceLocation("u.cu", Grade.EXACT)
    ),
    "equal layers are told once": replace(POW, generated=(COMPUTED,)),
}


def test_what_is_known_of_a_kernel(expect: Callable[[str, str], None]) -> None:
    expect("kernels.txt", markdown_of({name: kernel_facts(one) for name, one in KERNELS.items()}))
    assert kernel_facts(POW)[0] == ("Name", Code(POW.name, is_whole=True))
    assert kernel_facts(POW, title=POW.name) == kernel_facts(POW)[1:]


def test_a_title_is_the_function_with_its_functor() -> None:
    assert POW.title == "vectorized_elementwise_kernel<… pow_impl …>"
    assert KernelFacts("k", "x", function="a::(anonymous namespace)::softmax").title == "softmax"
    assert KernelFacts("Memcpy DtoH", "x").title == "Memcpy DtoH"
    plain = {"template_arguments": [(None, "int")]}
    assert KernelFacts("k", "x", function="(anonymous namespace)::kernel", fields=plain).title == "kernel"
    arguments = {"template_arguments": [(None, "cutlass_80_gemm")]}
    assert KernelFacts("k", "x", function="cutlass::Kernel", fields=arguments).title == "cutlass_80_gemm"


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


def test_how_it_parallelizes(told: Summary, expect: Callable[[str, str], None]) -> None:
    alone = told.having(accounts={(None, LAUNCH.kernel): (LAUNCH,)})
    blocks = {
        "sentences by heading, a shared grade once": launch_blocks(told, "aten::a", LAUNCH.kernel),
        "among several it is named": launch_blocks(told, "aten::a", LAUNCH.kernel, names_kernel=True),
        "its own under an operator not explained": launch_blocks(alone, "aten::b", LAUNCH.kernel),
        "nothing known": launch_blocks(told, None, LAUNCH.kernel),
    }
    expect("launches.txt", markdown_of({}, blocks))
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
