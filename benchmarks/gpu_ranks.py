"""Two GPUs and more: DDP, FSDP2 and tensor parallel recorded by opscope, and what the links really carry.

    python benchmarks/gpu_ranks.py --output benchmarks/results/h100_ranks.json [--processes 2]
    python benchmarks/gpu_ranks.py --device cpu --output /tmp/ranks.json          # a rehearsal over gloo

Each program runs as a user would start it: `torchrun --nproc-per-node N -m opscope run`, and its folder is
analyzed. A plain NCCL loop of all-reduces, timed by CUDA events without a profiler, tells what the links
carry: the bus bandwidth that opscope reads from a recording of the same loop must be within 5 % of it from
64 MB on (below, gaps between kernels count). Of each recording is kept what collectives waited and moved,
and which process groups were recognized.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from harness import environment, median_s, parser_of, printed, write

MEGABYTES = (1, 16, 64, 256)
STEPS = 8
MOST_OFF = 0.05
TELLING_BYTES = 64 << 20
_MODULE = str(Path(__file__).resolve())


def main() -> int:
    parser = parser_of(__doc__, "ranks_recorded.json")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--traces", type=Path, help="keep recordings in this folder")
    parser.add_argument("--only", nargs="+", choices=sorted(PROGRAMS), default=sorted(PROGRAMS))
    parser.add_argument("--program", choices=sorted(PROGRAMS), help=argparse.SUPPRESS)
    parser.add_argument("--times", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        in_group(options.program, options.device, options.times)
        return 0
    results: dict[str, Any] = {"processes": options.processes, "device": options.device}
    results["environment"] = environment()
    with tempfile.TemporaryDirectory(prefix="opscope-ranks-") as scratch:
        for name in options.only:
            folder = (options.traces or Path(scratch)) / name
            folder.parent.mkdir(parents=True, exist_ok=True)
            results[name] = recorded(name, options.processes, options.device, folder)
            if name == "plain":
                results["bus_bandwidth"] = compared(results[name])
                del results[name]["collectives"]  # of every call
                print(json.dumps(results["bus_bandwidth"]))
            print(json.dumps({name: results[name]}), flush=True)
    write(options.output, results)
    large = [one["error"] for one in results.get("bus_bandwidth", []) if one["bytes"] >= TELLING_BYTES]
    is_near = all(one is not None and abs(one) <= MOST_OFF for one in large)
    return 0 if is_near or options.device == "cpu" else 1


def recorded(name: str, processes: int, device: str, folder: Path) -> dict[str, Any]:
    """One program bare, then recorded by opscope, then what opscope says of the recording."""
    times = folder.with_suffix(".json")
    command = [_MODULE, "--program", name, "--device", device]
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes),
    ]  # fmt: skip
    # NVLink multicast is often missing in virtual machines, and two GPUs gain nothing by it.
    plainly = {"NCCL_NVLS_ENABLE": os.environ.get("NCCL_NVLS_ENABLE", "0")}
    printed([*torchrun, *command, "--times", times], **plainly)
    steps = ["--steps", "none"] if name == "plain" else []
    recorder = ["-m", "opscope", "run", "--quiet", "--output-dir", folder, *steps]
    printed([*torchrun, *recorder, *command], **plainly)
    each = ["--top", "all"] if name == "plain" else []
    said = printed([sys.executable, "-m", "opscope", "analyze", folder, "--json", *each])
    document = json.loads(said)
    return {
        "timed": json.loads(times.read_text(encoding="utf-8")),
        "ranks": document["ranks"],
        "collectives": document.get("collectives"),
        "straggler": document.get("straggler"),
        "findings": [one["code"] for one in document["findings"]],
    }


def compared(plain: dict[str, Any]) -> list[dict[str, Any]]:
    """Bus bandwidth by size: of the timed loop, and as opscope reads it from the recording of it."""
    found = []
    for size_bytes, timed in ((one["bytes"], one["bus_bytes_per_s"]) for one in plain["timed"]):
        calls = [
            one for one in plain["collectives"] or () if one["bytes"] == size_bytes and one["bus_bytes_per_s"]
        ]
        rates = sorted(one["bus_bytes_per_s"] for one in calls)
        middle = rates[len(rates) // 2] if rates else None
        error = None if middle is None else middle / timed - 1
        found.append({"bytes": size_bytes, "timed": timed, "read": middle, "error": error})
    return found


def in_group(name: str, device: str, times: Path | None) -> None:
    """Run one program as one of the processes that torchrun started."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        place = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
        told = PROGRAMS[name](place)
        if times is not None and rank == 0:
            times.write_text(json.dumps(told), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def plain(device: Any) -> list[dict[str, Any]]:
    """All-reduces of one size after the other; seconds of each, the median of many in a row."""
    import torch
    import torch.distributed as dist

    found = []
    for megabytes in MEGABYTES if device.type == "cuda" else MEGABYTES[:2]:
        tensor = torch.ones(megabytes << 18, device=device)
        for _ in range(5):
            dist.all_reduce(tensor)
        call = partial(dist.all_reduce, tensor)
        samples = sorted(timed(call, device) for _ in range(20))
        count, size_bytes = dist.get_world_size(), megabytes << 20
        median_s = samples[len(samples) // 2]
        bus = 2 * (count - 1) / count * size_bytes / median_s
        found.append({"bytes": size_bytes, "median_s": median_s, "bus_bytes_per_s": bus})
    return found


def timed(call: Any, device: Any) -> float:
    """Seconds of a call, of many in a row; by CUDA events, so that launching is hidden."""
    import torch

    calls = 50 if device.type == "cuda" else 10
    if device.type != "cuda":
        return median_s(lambda: [call() for _ in range(calls)], 1) / calls
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(calls):
        call()
    last.record()
    torch.cuda.synchronize()
    return first.elapsed_time(last) / 1e3 / calls


def train(model: Any, device: Any, width: int) -> list[dict[str, Any]]:
    """Steps of training on random data; rank 1 computes more where there is a straggler."""
    import time

    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    seconds = []
    for step in range(STEPS):
        torch.manual_seed(step)
        batch = torch.randn(64, width, device=device)
        started = time.perf_counter()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return [{"step_s": one} for one in seconds]


def layers(device: Any) -> tuple[Any, int]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    width = 2048 if device.type == "cuda" else 64
    blocks = [
        nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(4)
    ]
    return nn.Sequential(*blocks).to(device), width


def ddp(device: Any) -> list[dict[str, Any]]:
    from torch.nn.parallel import DistributedDataParallel

    model, width = layers(device)
    ids = [device.index] if device.type == "cuda" else None
    return train(DistributedDataParallel(model, device_ids=ids), device, width)


def fsdp2(device: Any) -> list[dict[str, Any]]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, width = layers(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp_shard",))
    for block in model:
        fully_shard(block, mesh=mesh)
    return train(fully_shard(model, mesh=mesh), device, width)


def tensor_parallel(device: Any) -> list[dict[str, Any]]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model, width = layers(device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in model:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return train(model, device, width)


PROGRAMS = {"plain": plain, "ddp": ddp, "fsdp2": fsdp2, "tensor_parallel": tensor_parallel}


if __name__ == "__main__":
    sys.exit(main())
