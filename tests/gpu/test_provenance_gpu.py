"""Every kernel of a recording has an origin: a library, a user's own source, or generated code."""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import opscope  # noqa: E402
from opscope.model.sidecar import kernels_folder  # noqa: E402
from opscope.provenance.generated_code import source_hash  # noqa: E402

# Compilers warn of what does not matter here: architectures, precision, releases.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

CUDA_SOURCE = Path(__file__).with_name("own.cu").read_text(encoding="utf-8")

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
else:

    @triton.jit
    def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):  # noqa: N803
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        mask = offsets < n
        tl.store(y_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y


class Block(torch.nn.Module):
    """No matrix products: vendors assemble some of their kernels at run time."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(256)

    def forward(self, x):
        h = torch.nn.functional.gelu(x)
        h = self.norm(h)
        return torch.softmax(h, -1)


@pytest.fixture
def x():
    return torch.randn(128, 256, device="cuda", requires_grad=True)


@pytest.fixture
def needs_triton():
    if triton is None:
        pytest.skip("no Triton")


def record(step, folder, **options):
    with opscope.profile(folder, warmup=3, active=1, **options) as profiler:
        for _ in range(profiler.total_steps):
            step()
            profiler.step()
    return profiler.cycles[0].sidecar, profiler.session


def line_of(file, text):
    lines = Path(file).read_text().split("\n")
    (line,) = [number for number, content in enumerate(lines, 1) if content.startswith(text)]
    return line


def assert_all_explained(sidecar, session):
    """No gap, and every kernel name has a library with its units, or a source with its line."""
    assert sidecar.gaps == ()
    names = {name for (name,) in session.query("SELECT name FROM kernel_names WHERE kind = 'kernel'")}
    from_libraries = {kernel.name for kernel in sidecar.kernels if kernel.library and kernel.units}
    from_sources = {source.kernel for source in sidecar.kernel_sources if source.line}
    assert {kernel.name for kernel in sidecar.kernels} == names
    assert names == from_libraries | from_sources
    kept = "SELECT count(DISTINCT name_id) FROM (SELECT name_id FROM {0} UNION SELECT name_id FROM {1})"
    assert session.scalar(kept.format("kernel_origins", "kernel_sources")) == len(names)


def test_kernels_of_torch_and_of_an_extension(tmp_path, x):
    from torch.utils import cpp_extension

    build = tmp_path / "build"
    build.mkdir()
    extension = cpp_extension.load_inline(
        name="opscope_square",
        cpp_sources="torch::Tensor square(torch::Tensor x);",
        cuda_sources=CUDA_SOURCE,
        functions=["square"],
        build_directory=str(build),
    )
    with torch.no_grad():
        sidecar, session = record(lambda: extension.square(torch.relu(x)), tmp_path / "out")
    assert_all_explained(sidecar, session)
    (square,) = [kernel for kernel in sidecar.kernels if kernel.name.startswith("square_kernel(")]
    assert (square.library, [unit.name for unit in square.units]) == ("opscope_square.so", ["cuda.cu"])
    (source,) = sidecar.kernel_sources
    assert (source.kernel, source.kind.value) == (square.name, "cuda")
    assert Path(source.file).samefile(build / "cuda.cu")
    assert source.line == line_of(build / "cuda.cu", "__global__ void square_kernel(")
    (relu,) = [kernel for kernel in sidecar.kernels if kernel is not square]
    assert relu.library == "libtorch_cuda.so"
    assert relu.build_id
    assert session.query("SELECT torch_version, torch_git_version FROM traces") == [
        (str(torch.__version__), torch.version.git_version)
    ]


@pytest.mark.usefixtures("needs_triton")
def test_a_hand_written_triton_kernel(tmp_path, x):
    with torch.no_grad():
        sidecar, session = record(lambda: double(x), tmp_path)
    assert_all_explained(sidecar, session)
    (source,) = sidecar.kernel_sources
    assert (source.kernel, source.kind.value, source.evidence.value) == ("double_kernel", "triton", "process")
    assert source.file == __file__
    assert source.line == line_of(__file__, "    def double_kernel(")


@pytest.mark.usefixtures("needs_triton")
class TestCompiled:
    @pytest.fixture(autouse=True)
    def no_other_graphs(self):
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    def test_forward_and_backward(self, tmp_path, x):
        model = Block().cuda()
        compiled = torch.compile(model)
        sidecar, session = record(
            lambda: compiled(x).sum().backward(), tmp_path, track_compile=True, name="t.json.gz"
        )
        assert_all_explained(sidecar, session)
        generated = [source for source in sidecar.kernel_sources if source.kind.value == "inductor"]
        # Graphs are numbered through the process.
        assert {str(source.graph).partition("_")[2] for source in generated} == {"forward", "backward"}
        for source in generated:
            assert source.evidence.value == "launch"
            copy = tmp_path / source.copy
            assert copy.parent == kernels_folder(tmp_path / "t.json.gz")
            assert source_hash(copy.read_text()) == source.hash == copy.stem == Path(source.file).stem
            assert copy.read_text().split("\n")[source.line - 1].startswith(f"def {source.kernel}(")
            assert source.original_aten
            assert source.heuristic
            assert source.meta["kernel_name"] == source.kernel
        lines = {frame.line for source in generated for stack in source.stacks for frame in stack
                 if frame.file == __file__}  # fmt: skip
        first = line_of(__file__, "        h = torch.nn.functional.gelu(x)")
        assert lines == {first, first + 1, first + 2}
        forward = {node for source in generated for node in source.source_nodes}
        assert forward
        assert session.scalar("SELECT count(*) FROM triton_launches WHERE kernel_hash IS NULL") == 0

    def test_replays_of_a_cuda_graph(self, tmp_path, x):
        model = Block().cuda().eval()
        compiled = torch.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            sidecar, session = record(lambda: compiled(x), tmp_path)
        # Of each replayed node the recording noted where it was captured.
        noted = "attribution IN ('graph_node', 'graph_sequence')"
        assert session.scalar(f"SELECT count(*) FROM device_activities WHERE {noted}") > 0
        assert sidecar.gaps == ()
        names = {name for (name,) in session.query("SELECT name FROM kernel_names WHERE name LIKE 'triton%'")}
        assert names
        assert {source.kernel for source in sidecar.kernel_sources if source.line} == names
        assert {source.evidence.value for source in sidecar.kernel_sources} == {"process"}
        (key,) = {source.graph_key for source in sidecar.kernel_sources}
        assert session.scalar("SELECT count(*) FROM annotations WHERE contains(name, ?)", [key]) > 0

    def test_a_users_kernel_inside_a_compiled_function(self, tmp_path, x):
        compiled = torch.compile(lambda x: double(x) + 1)
        with torch.no_grad():
            sidecar, session = record(lambda: compiled(x), tmp_path)
        assert_all_explained(sidecar, session)
        (source,) = [source for source in sidecar.kernel_sources if source.kernel == "double_kernel"]
        assert (source.kind.value, source.user_file) == ("inductor", __file__)
        assert source.user_line in range(
            line_of(__file__, "    @triton.jit"), line_of(__file__, "def double(")
        )
        kept = "SELECT user_line FROM kernel_sources JOIN kernel_names USING (name_id) WHERE name = ?"
        assert session.query(kept, ["double_kernel"]) == [(source.user_line,)]
