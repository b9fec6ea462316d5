"""Record which overloads PyTorch calls, and what a trace says of their arguments: ground truth for tests.

    scripts/record_operator_calls.py tests/unit/provenance/operators/recorded_calls.json.gz

Runs the samples of PyTorch's own operator tests on the CPU, forward and backward. Needs a PyTorch that
records overload names, and what its `torch.testing._internal` imports (`pip install expecttest scipy`).

Writes one item per distinct call: name with overload, recorded types. Calls that differ only in element types
are one. Calls of the TorchScript interpreter, which records more than arguments, are under `stack`.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

SAMPLES_PER_TYPE = 12
TYPES = (torch.float32, torch.int64, torch.complex64, torch.bool)
OPERATORS_PER_RECORDING = 40
_TAGS = {"", "Scalar", "ScalarList", "TensorList"}

Call = tuple[str, tuple[str, ...]]


def main(path: str) -> int:
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    calls: set[Call] = set()
    operators = operator_samples()
    for start in range(0, len(operators), OPERATORS_PER_RECORDING):
        chunk = operators[start : start + OPERATORS_PER_RECORDING]
        calls |= recorded(lambda chunk=chunk: [run_samples(operator) for operator in chunk])
    calls |= recorded(run_modules)
    document = {
        "torch": torch.__version__,
        "arguments": sorted(unique(calls)),
        "stack": sorted(unique(recorded(run_scripts))),
    }
    with gzip.GzipFile(path, "wb", compresslevel=9, mtime=0) as stream:
        stream.write(json.dumps(document, separators=(",", ":")).encode())
    print(f"Wrote {path} ({len(document['arguments'])} and {len(document['stack'])} calls)")
    return 0


def operator_samples() -> list[Any]:
    """PyTorch's operator tests."""
    from torch.testing._internal import common_methods_invocations as invocations  # noqa: PLC0415

    names = ("foreach_unary_op_db", "foreach_binary_op_db", "foreach_pointwise_op_db", "foreach_other_op_db")
    lists = [getattr(invocations, name, []) for name in names]
    return [*invocations.op_db, *(operator for of_kind in lists for operator in of_kind)]


def recorded(run: Callable[[], object]) -> set[Call]:
    """The calls of operators of PyTorch that a function makes."""
    config = _ExperimentalConfig(capture_overload_names=True)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=config
    ) as profiler:
        run()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    found = (
        (event["name"], event["args"].get("Input type")) for event in events if event.get("cat") == "cpu_op"
    )
    return {(name, tuple(types)) for name, types in found if name.startswith("aten::") and types}


def unique(calls: set[Call]) -> Iterator[Call]:
    """One call of those that differ only in element types."""
    seen = set()
    for name, types in sorted(calls):
        key = name, tuple(kind if kind in _TAGS else "tensor" for kind in types)
        if key not in seen:
            seen.add(key)
            yield name, types


def run_samples(operator: Any) -> None:
    """Call an operator with its own samples: as it is, in place, with `out`, and its gradient."""
    for dtype in TYPES:
        if dtype not in operator.dtypes:
            continue
        differentiable = dtype is torch.float32 and operator.supports_autograd
        with contextlib.suppress(Exception):
            samples = operator.sample_inputs("cpu", dtype, requires_grad=differentiable)
            for sample in islice(samples, SAMPLES_PER_TYPE):
                run_sample(operator, sample)


def run_sample(operator: Any, sample: Any) -> None:
    """Each variant may be one that the operator does not have."""
    arguments, options = (sample.input, *sample.args), sample.kwargs
    with contextlib.suppress(Exception):
        result = operator(*arguments, **options)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for one in results:
            if isinstance(one, torch.Tensor) and one.requires_grad:
                one.sum().abs().backward(retain_graph=True)
    detached = [one.detach().clone() if isinstance(one, torch.Tensor) else one for one in arguments]
    with contextlib.suppress(Exception):
        operator.inplace_variant(*detached, **options)
    with contextlib.suppress(Exception):
        operator(*detached, **options, out=torch.empty(0, dtype=detached[0].dtype))


def run_modules() -> None:
    """Modules, optimizers and tensors of other layouts."""
    nn = torch.nn
    image, sequence = torch.randn(2, 3, 16, 16), torch.randn(4, 16, 32)
    convolutions = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 8),
        nn.Upsample(scale_factor=2, mode="bilinear"), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    optimizers = (torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop, torch.optim.NAdam)
    for optimizer in optimizers:
        for foreach in (True, False):
            train(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), sequence, optimizer, foreach)
    train(convolutions, image, torch.optim.SGD, True)
    train(nn.LSTM(32, 16, 2, batch_first=True, bidirectional=True), sequence, torch.optim.AdamW, True)
    nested = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)])
    sparse = torch.randn(5, 5).relu().to_sparse()
    for run in (
        lambda: nested + nested, lambda: nested * 2, lambda: torch.nested.to_padded_tensor(nested, 0.0),
        lambda: sparse @ torch.randn(5, 5), lambda: sparse + sparse, lambda: sparse.coalesce().to_dense(),
        lambda: torch.quantize_per_tensor(torch.randn(4, 4), 0.1, 0, torch.quint8).dequantize(),
        lambda: torch.empty(0).set_(torch.randn(4).untyped_storage(), 0, (2, 2), (2, 1)),
    ):  # fmt: skip
        with contextlib.suppress(RuntimeError):
            run()


def train(module: Any, batch: Any, optimizer_class: Any, foreach: bool) -> None:
    """Two steps of training."""
    optimizer = optimizer_class(module.parameters(), lr=1e-3, foreach=foreach)
    for _ in range(2):
        optimizer.zero_grad()
        result = module(batch)
        (result[0] if isinstance(result, tuple) else result).pow(2).mean().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()


SCRIPT = """
def forward(x, w, b):
    y = torch.nn.functional.linear(x, w, b)
    z = torch.mm(y, y.t())
    both = torch.add(torch.cat([y, y], 1).sum(), torch.cumsum(z, 0).sum()) + torch.matmul(z, z).mean()
    v = torch.exp(z)
    chosen = torch.where(z > 0, z, z * 2).sum() + torch.matmul(x, w).sum()
    return both + torch.max(v) + torch.max(v, torch.abs(v)).sum() + torch.all(v > 0) + chosen + z.std()
"""


def run_scripts() -> None:
    """A program of the TorchScript interpreter."""
    forward = torch.jit.CompilationUnit(SCRIPT).forward
    for _ in range(3):
        forward(torch.randn(4, 8), torch.randn(8, 8), torch.randn(8))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
