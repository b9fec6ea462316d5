"""The chain from an operator to its source, and what is said of a kernel."""

from msgspec.structs import replace

from opscope.analysis.launch_quality import ExplainedLaunch
from opscope.analysis.provenance import Accuracy, GeneratedCode, KernelFacts, NativeFunctionUse
from opscope.launches.facts import LaunchGeometry
from opscope.launches.launch_explanation import Heading, LaunchExplanation, Statement
from opscope.model.origin import Grade, SourceLocation
from opscope.report import provenance
from opscope.report.document import Code
from opscope.report.explanation import distinct_titles
from opscope.report.provenance import explained_launches, kernel_facts, launch_blocks

from .conftest import markdown_of

BLAS = SourceLocation(
    "aten/src/ATen/native/cuda/Blas.cpp", Grade.RELEASE_INDEX, 589, 592, Grade.NEIGHBOR_VERSION, "https://x"
)
KERNEL = SourceLocation("Gelu.cu", Grade.EXACT, 21, 30, Grade.EXACT)
ADDMM = NativeFunctionUse(
    name="aten::addmm", overload="", kind="native", category="matrix", schema="addmm(Tensor self) -> Tensor",
    overload_grade=Grade.EXACT, structured_delegate="addmm.out", dispatch_key="CUDA",
    cuda_function="addmm_out_cuda", stub=None, tags=("core",), yaml_line=7270,
    details={"yaml_url": "https://yaml"}, location=BLAS, stub_location=None, calls=6, self_device_ns=6_000,
)  # fmt: skip


OUTSIDE = {"schema": None, "structured_delegate": None, "dispatch_key": None, "location": None}
NODE = {
    "forward": ["aten::gelu", "aten::gelu_"], "formulas": {"self": "gelu_backward(grad, self)"},
    "derivatives_line": 12, "yaml_url": "https://yaml",
}  # fmt: skip
REPLACED = {
    "kernels": {"CUDA": "/home/me/ops.py:12"},
    "overrides": {"CUDA": "build/aten/src/ATen/RegisterCUDA_0.cpp:10"},
}
FUNCTIONS = {
    "every link of the chain": {"stub": "gelu_stub", "stub_location": KERNEL},
    "a launcher without a stub": {"stub_location": KERNEL, "details": {"launchers": ["GeluCUDAKernelImpl"]}},
    "several launchers": {"details": {"launchers": ["gather_topk", "sort"]}},
    "an overload that the trace does not tell": {
        "schema": None, "overload": None, "details": {"candidates": ["", "Scalar"]},
    },
    **{f"no yaml entry: {one}": {"kind": one, **OUTSIDE} for one in ("triton", "custom", "range", "native")},
    "generated code": {"kind": "generated", "location": None},
    "a node of autograd": {"kind": "backward", "details": NODE},
    "a node of an unknown operator": {"kind": "backward", "details": {}},
    "code that replaced PyTorch's": {"details": {**ADDMM.details, "registration": REPLACED}},
}  # fmt: skip
STUB = replace(ADDMM, stub="gelu_stub", stub_location=KERNEL)
OPERATORS = {
    "one place is said once": {"native_functions": (ADDMM,), "source": BLAS},
    "of a stub at that place the name remains": {"native_functions": (STUB,), "source": KERNEL},
    "other overloads and called operators": {
        "native_functions": tuple(replace(ADDMM, overload=one) for one in ("", "out", "", None)),
        "called_operators": tuple((f"aten::o{index}", 1_000, 5) for index in range(6)),
    },
}
MEASURED = Accuracy(0.9, 0.8, 1.0, 0.7, 0.6, 0.5, 0.4, None, {"kernel_unit": {"exact": 1.0}, "line": {}})


def test_what_is_said(summary, cpu_summary, expect):
    told = {name: provenance.function_facts(replace(ADDMM, **fields)) for name, fields in FUNCTIONS.items()}
    for name, fields in OPERATORS.items():
        operator = replace(summary.operators[0], **fields)
        told[name] = provenance.operator_chain_facts(operator, has_device=True)
    told["without a device"] = provenance.operator_chain_facts(cpu_summary.operators[0], has_device=False)
    told["places and releases"] = [
        ("a file without a line", provenance.location_text(SourceLocation("a.cu", Grade.INFERRED))),
        ("labeled", provenance.release_text("2.6.0", Grade.EXACT, "labeled 2.6.0")),
        ("given", provenance.release_text("2.6.0", None, None)),
        ("unknown", provenance.release_text(None, None, "no names")),
    ]
    measured = summary.having(accuracy=MEASURED, torch_version="2.6.0")
    expect("provenance.txt", markdown_of(told, {"accuracy": provenance.accuracy_blocks(measured)}))
    assert provenance.accuracy_blocks(summary) == ()


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


def test_what_is_known_of_a_kernel(expect):
    expect("kernels.txt", markdown_of({name: kernel_facts(one) for name, one in KERNELS.items()}))
    assert kernel_facts(POW)[0] == ("Name", Code(POW.name, is_whole=True))
    assert kernel_facts(POW, title=POW.name) == kernel_facts(POW)[1:]


def test_a_title_is_the_function_with_its_functor_or_the_name_where_alike():
    assert POW.title == "vectorized_elementwise_kernel<… pow_impl …>"
    assert KernelFacts("k", "x", function="a::(anonymous namespace)::softmax").title == "softmax"
    assert KernelFacts("Memcpy DtoH", "x").title == "Memcpy DtoH"
    plain = {"template_arguments": [(None, "int")]}
    assert KernelFacts("k", "x", function="(anonymous namespace)::kernel", fields=plain).title == "kernel"
    arguments = {"template_arguments": [(None, "cutlass_80_gemm")]}
    assert KernelFacts("k", "x", function="cutlass::Kernel", fields=arguments).title == "cutlass_80_gemm"
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


def test_how_it_parallelizes(summary, expect):
    facts = KernelFacts(LAUNCH.kernel, "x", function="f")
    kernel = replace(summary.kernels[0], name=LAUNCH.kernel, facts=facts)
    told = summary.having(kernels=(kernel,), accounts={("aten::a", LAUNCH.kernel): (LAUNCH,)})
    alone = told.having(accounts={(None, LAUNCH.kernel): (LAUNCH,)})
    blocks = {
        "sentences by heading, a shared grade once": launch_blocks(told, "aten::a", LAUNCH.kernel),
        "among several it is named": launch_blocks(told, "aten::a", LAUNCH.kernel, names_kernel=True),
        "its own under an operator not explained": launch_blocks(alone, "aten::b", LAUNCH.kernel),
        "nothing known": launch_blocks(told, None, LAUNCH.kernel),
    }
    expect("launches.txt", markdown_of({}, blocks))
    assert explained_launches(told, "aten::a", "other") == ()
