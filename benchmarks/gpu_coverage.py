"""How much of the GPU time of own recordings is known: kernels, their code, and replays of CUDA graphs?

    python benchmarks/gpu_coverage.py --output FILE.json [--work-dir DIR] [PROGRAM …]

Needs a CUDA device, nvcc and Triton; timm for ResNet-50. Each program is recorded as a user would and
analyzed: fractions of device time with an exact unit, file and line, and what is left without; of the device
time of replays the share with an operator, a module, bytes and operations; whether results are those without
a recorder. Recordings stay in the work directory.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

import opscope
from harness import environment, errors_kept, parser_of, write
from opscope.analysis.summary import Summary
from opscope.capture.calls import profile_call

Step = Callable[[], Any]

CUDA_SOURCE = Path(__file__).with_name("square.cu").read_text(encoding="utf-8")
TRITON_SOURCE = """import torch, triton
import triton.language as tl


@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(y_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=mask), mask=mask)


def double(x):
    y = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y
"""
# Of device time by activities that a graph launch replayed.
REPLAYED = """SELECT sum(a.duration_ns)::BIGINT AS ns,
    coalesce(sum(a.duration_ns) FILTER (WHERE a.operator_id IS NOT NULL), 0)::BIGINT AS with_operator,
    coalesce(sum(a.duration_ns) FILTER (WHERE c.evidence IS NOT NULL), 0)::BIGINT AS with_bytes,
    coalesce(sum(a.duration_ns) FILTER (WHERE c.flop_count IS NOT NULL), 0)::BIGINT AS with_flops
FROM device_activities a JOIN runtime_calls r USING (runtime_call_id)
LEFT JOIN activity_costs USING (activity_id) LEFT JOIN call_costs c USING (call_id)
WHERE r.name LIKE '%GraphLaunch%'"""


def bert(_: Path) -> Step:
    from opscope.workloads.target import resolve
    from opscope.workloads.workload import WorkloadOptions

    return resolve("bert", WorkloadOptions(dtype="float32", device="cuda")).build(8, 128).step


def resnet(_: Path) -> Step:
    import timm

    model = timm.create_model("resnet50").cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    images = torch.randn(32, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (32,), device="cuda")

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def extension(folder: Path) -> Step:
    from torch.utils import cpp_extension

    build = folder / "build"
    build.mkdir(exist_ok=True)
    module = cpp_extension.load_inline(
        name="opscope_square",
        cpp_sources="torch::Tensor square(torch::Tensor x);",
        cuda_sources=CUDA_SOURCE,
        functions=["square"],
        build_directory=str(build),
    )
    x = torch.randn(4096, 4096, device="cuda")
    return lambda: torch.relu(module.square(x))


def triton_kernel(folder: Path) -> Step:
    source = folder / "doubling.py"
    source.write_text(TRITON_SOURCE)
    spec = importlib.util.spec_from_file_location("doubling", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randn(4096, 4096, device="cuda")
    return lambda: module.double(x)


def compiled_layer(_: Path) -> Step:
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True).cuda().bfloat16()
    model = torch.compile(layer)
    x = torch.randn(16, 256, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return lambda: model(x).float().square().mean().backward()


def compiled_graph(_: Path) -> Step:
    """BERT compiled with CUDA graphs."""
    from opscope.workloads.models import Bert

    model = torch.compile(Bert().to("cuda", torch.bfloat16).eval(), mode="reduce-overhead")
    tokens = torch.randint(0, 30000, (8, 128), device="cuda")

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            return model(tokens)[0]

    return step


def replaying(work: Step) -> Step:
    """The work captured by the program itself, at its first step."""
    state: dict[str, Any] = {}

    def step() -> Any:
        if not state:
            with torch.cuda.stream(torch.cuda.Stream()):
                work()
            torch.cuda.synchronize()
            state["graph"] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(state["graph"]):
                state["result"] = work()
        state["graph"].replay()
        return state["result"]

    return step


def own_graph(_: Path) -> Step:
    from opscope.workloads.models import Bert

    model = Bert().to("cuda", torch.bfloat16).eval()
    tokens = torch.randint(0, 30000, (4, 128), device="cuda")
    return replaying(torch.no_grad()(lambda: model(tokens)[0]))


def two_streams(_: Path) -> Step:
    """A graph of two branches on two streams."""
    a, b = (torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    side = torch.cuda.Stream()

    def work() -> Any:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            first = (a @ b).relu()
        second = (b @ a).sigmoid()
        main.wait_stream(side)
        return first + second

    return replaying(work)


PROGRAMS: dict[str, Callable[[Path], Step]] = {
    "bert_fp32": bert,
    "resnet50_amp_train": resnet,
    "inline_cuda_extension": extension,
    "triton_kernel": triton_kernel,
    "compiled_transformer_layer": compiled_layer,
    "compiled_bert_graph": compiled_graph,
    "own_graph": own_graph,
    "two_streams": two_streams,
}


def recorded(name: str, work_dir: Path) -> dict[str, Any]:
    folder = work_dir / name
    folder.mkdir(parents=True, exist_ok=True)

    def made() -> Step:
        torch._dynamo.reset()
        torch.manual_seed(0)
        return PROGRAMS[name](folder)

    bare = made()
    for _ in range(4):
        expected = bare()
    if isinstance(expected, torch.Tensor):
        expected = expected.clone()  # a replay writes it anew
    for path in folder.glob(f"{name}.*json*"):
        path.unlink()
    shutil.rmtree(folder / f"{name}.kernels", ignore_errors=True)
    step, started = made(), time.perf_counter()
    result, cycle = profile_call(
        step, output_dir=folder, name=f"{name}.json.gz", warmup=2, active=2, unrecorded=0,
        with_modules=True, track_compile=True,
    )  # fmt: skip
    recording_s = time.perf_counter() - started
    with opscope.load(cycle.trace_path) as session:
        summary = Summary(session).complete()
        (replays,) = session.records(REPLAYED)
        checks = {check.name: check.holds for check in session.check()}
        described = known(summary)
    is_tensor = isinstance(expected, torch.Tensor) and "train" not in name
    whole = replays.pop("ns")
    in_modules = sum(one.total_device_ns for one in summary.program.modules if one.depth == 0)
    return {
        "checks": checks,
        "equal_to_unrecorded": bool(torch.equal(result, expected)) if is_tensor else None,
        "recording_s": recording_s,
        "gaps": [f"{gap.part}: {gap.reason}" for gap in cycle.sidecar.gaps],
        "graphs_noted": [
            {"file": one.file, "nodes": None if one.nodes is None else len(one.nodes)}
            for one in cycle.sidecar.graphs
        ],
        "replayed_ns": whole,
        "replayed": {key: ns / whole for key, ns in replays.items()} if whole else None,
        "with_module": in_modules / summary.device_time_ns,
        **described,
    }


def known(summary: Summary) -> dict[str, Any]:
    kernels = [one for one in summary.kernels if one.kind == "kernel" and one.facts is not None]
    binaries = Counter[str]()
    for one in kernels:
        binaries[one.facts.binary or "none"] += one.fraction
    return {
        "torch_version": summary.torch_version,
        "device_time_ms": summary.device_time_ns / 1e6,
        "accuracy": msgspec.structs.asdict(summary.accuracy),
        "binaries": dict(binaries),
        "without_unit_or_source": [
            {"name": one.name[:200], "library": one.facts.library, "fraction": one.fraction}
            for one in kernels
            if not one.facts.units and not one.facts.location
        ],
        "sources": {one.name[:100]: str(one.facts.location) for one in kernels if one.facts.location},
        "findings": [finding.code for finding in summary.findings],
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()) / "opscope_coverage")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", default=list(PROGRAMS))
    options = parser.parse_args()
    results: dict[str, Any] = {"environment": environment()}
    for name in options.programs:
        with errors_kept(results, name):
            results[name] = recorded(name, options.work_dir)
        write(options.output, results)
        print(name, str(results[name])[:400], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
