"""Is every kernel of an own recording mapped exactly? Needs a CUDA device, nvcc, Triton; timm for ResNet-50.

    python benchmarks/gpu_provenance.py --output FILE.json [--work-dir DIR]

Records BERT, ResNet-50 (training), a kernel of an inline CUDA extension, a hand-written Triton kernel and a
compiled Transformer layer with its backward pass, then analyzes each recording as any user would: fractions
of device time with an exact unit, file and line, what is left without, and what noting the origins added to
the end of the recording.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import torch

import opscope
from opscope.analysis.summary import Summary, summarize

CUDA_SOURCE = """#include <torch/types.h>
#include <c10/cuda/CUDAStream.h>

__global__ void square_kernel(const float* x, float* y, long n) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * x[i];
}

torch::Tensor square(torch::Tensor x) {
    auto y = torch::empty_like(x);
    square_kernel<<<(x.numel() + 255) / 256, 256, 0, c10::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    return y;
}
"""


def bert(_: Path) -> Callable[[], object]:
    from opscope.workloads.target import resolve
    from opscope.workloads.workload import WorkloadOptions

    return resolve("bert", WorkloadOptions(dtype="float32", device="cuda")).build(8, 128).step


def resnet(_: Path) -> Callable[[], object]:
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


def extension(work_dir: Path) -> Callable[[], object]:
    from torch.utils import cpp_extension

    build = work_dir / "build"
    build.mkdir(parents=True, exist_ok=True)
    module = cpp_extension.load_inline(
        name="opscope_square",
        cpp_sources="torch::Tensor square(torch::Tensor x);",
        cuda_sources=CUDA_SOURCE,
        functions=["square"],
        build_directory=str(build),
    )
    x = torch.randn(4096, 4096, device="cuda")
    return lambda: torch.relu(module.square(x))


def triton_kernel(work_dir: Path) -> Callable[[], object]:
    import importlib.util

    source = work_dir / "doubling.py"
    source.write_text(
        "import torch, triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        "def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):\n"
        "    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n"
        "    mask = offsets < n\n"
        "    tl.store(y_ptr + offsets, 2 * tl.load(x_ptr + offsets, mask=mask), mask=mask)\n\n\n"
        "def double(x):\n    y = torch.empty_like(x)\n"
        "    double_kernel[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), BLOCK=1024)\n    return y\n"
    )
    spec = importlib.util.spec_from_file_location("doubling", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randn(4096, 4096, device="cuda")
    return lambda: module.double(x)


def compiled(_: Path) -> Callable[[], object]:
    layer = torch.nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True).cuda().bfloat16()
    model = torch.compile(layer)
    x = torch.randn(16, 256, 512, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    return lambda: model(x).float().square().mean().backward()


CASES: dict[str, Callable[[Path], Callable[[], object]]] = {
    "bert_fp32": bert,
    "resnet50_amp_train": resnet,
    "inline_cuda_extension": extension,
    "triton_kernel": triton_kernel,
    "compiled_transformer_layer": compiled,
}


def record(name: str, work_dir: Path) -> dict[str, Any]:
    folder = work_dir / name
    folder.mkdir(parents=True, exist_ok=True)
    if name == "compiled_transformer_layer":
        torch._dynamo.reset()
    seconds = {}
    for origins in (False, True):  # the last one is analyzed, with the libraries' caches filled
        seconds[origins] = timed_recording(CASES[name], folder, name, find_origins=origins)
    with opscope.load(folder / f"{name}.json.gz") as session:
        summary = summarize(session)
        checks = {check.name: check.holds for check in session.check()}
    return {
        "checks": checks,
        "seconds": {"without_origins": seconds[False], "with_origins": seconds[True]},
        **described(summary),
    }


def timed_recording(make: Any, folder: Path, name: str, *, find_origins: bool) -> float:
    step = make(folder)
    for path in folder.glob(f"{name}.*json*"):
        path.unlink()
    shutil.rmtree(folder / f"{name}.kernels", ignore_errors=True)
    options = {} if find_origins else {"find_origins": None}
    profiler = opscope.profile(
        folder, name=f"{name}.json.gz", warmup=3, active=2, track_compile=True, **options
    )
    started = time.perf_counter()
    with profiler:
        for _ in range(profiler.total_steps):
            step()
            profiler.step()
    return time.perf_counter() - started


def described(summary: Summary) -> dict[str, Any]:
    assert summary.accuracy is not None
    without_unit = [
        {
            "name": kernel.name[:200],
            "library": kernel.facts and kernel.facts.library,
            "fraction": kernel.fraction,
        }
        for kernel in summary.kernels
        if kernel.kind == "kernel" and kernel.facts and not kernel.facts.units and not kernel.facts.location
    ]
    binaries: dict[str, float] = {}
    for kernel in summary.kernels:
        if kernel.kind == "kernel" and kernel.facts is not None:
            key = kernel.facts.binary or "none"
            binaries[key] = binaries.get(key, 0.0) + kernel.fraction
    return {
        "torch_version": summary.torch_version,
        "device_time_ms": summary.device_time_ns / 1e6,
        "accuracy": {
            key: dict(value) if hasattr(value, "items") else value
            for key, value in msgspec.structs.asdict(summary.accuracy).items()
        },
        "binaries": binaries,
        "without_unit_or_source": without_unit,
        "sources": {
            kernel.name[:100]: str(kernel.facts.location).removeprefix(
                f"{Path(kernel.facts.location.file).parent}/"
            )
            if Path(kernel.facts.location.file).is_absolute()
            else str(kernel.facts.location)
            for kernel in summary.kernels[:40]
            if kernel.facts is not None and kernel.facts.location is not None
        },
        "findings": [finding.code for finding in summary.findings],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()) / "opscope_provenance")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    from opscope.capture.environment import collect_environment

    environment = collect_environment()
    results: dict[str, Any] = {
        "environment": {"torch": environment.torch, "cuda": environment.cuda_runtime,
                        "triton": environment.triton, "gpu": [gpu.name for gpu in environment.gpu]},
    }  # fmt: skip
    for name in options.cases:
        try:
            results[name] = record(name, options.work_dir)
        except Exception as error:  # noqa: BLE001 - the other cases still count; the failure is in the results
            results[name] = {"error": f"{type(error).__name__}: {error}"}
        options.output.write_text(json.dumps(results, indent=2, default=str) + "\n")
        print(name, json.dumps(results[name], default=str)[:400], flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
