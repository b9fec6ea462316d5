"""Are replays of CUDA graphs opened as eager code is? Needs a CUDA device and Triton.

    python benchmarks/gpu_graphs.py --output FILE.json [--work-dir DIR] [--device cuda:0]

Records BERT and GPT-2 compiled with CUDA graphs, a model whose graph the program captures itself, and one
that captures on two streams, each as a user would, and reads the recordings: the share of the replayed device
time that has an operator, a module, and bytes; how replays were matched; whether results are those without
notes, and what noting a capture takes. The recordings stay in the work directory.
"""

from __future__ import annotations

import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import opscope
from gpu_setup import environment_facts, parser_of, write
from opscope.analysis.summary import summarize
from opscope.capture.calls import profile_call

HEADS = 12
# Of device time by activities that a graph launch replayed.
SHARES = """
SELECT coalesce(a.attribution, '') AS attribution, count(*), sum(a.duration_ns)::BIGINT,
    coalesce(sum(a.duration_ns) FILTER (WHERE a.operator_id IS NOT NULL), 0)::BIGINT,
    coalesce(sum(a.duration_ns) FILTER (WHERE c.evidence IS NOT NULL), 0)::BIGINT,
    coalesce(sum(a.duration_ns) FILTER (WHERE c.flop_count IS NOT NULL), 0)::BIGINT
FROM device_activities a JOIN runtime_calls r USING (runtime_call_id)
LEFT JOIN activity_costs USING (activity_id) LEFT JOIN call_costs c USING (call_id)
WHERE r.name LIKE '%GraphLaunch%' GROUP BY 1 ORDER BY 3 DESC"""


class Block(nn.Module):
    """A GPT-2 block: Radford et al. 2019, section 2.3."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        batch, length, width = x.shape
        parts = self.attn(self.ln_1(x)).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.out(nn.functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """GPT-2 of 124 million parameters."""

    def __init__(self, layers: int = 12, width: int = 768, vocabulary: int = 50257) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(1024, width)
        self.h = nn.ModuleList(Block(width) for _ in range(layers))
        self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def compiled_bert(device: str) -> Callable[[], Any]:
    from opscope.workloads.models import Bert

    model = Bert().to(device, torch.bfloat16).eval()
    return compiled(model, torch.randint(0, 30000, (8, 128), device=device))


def compiled_gpt2(device: str) -> Callable[[], Any]:
    return compiled(
        GPT2().to(device, torch.bfloat16).eval(), torch.randint(0, 50000, (4, 128), device=device)
    )


def compiled(model: nn.Module, tokens: torch.Tensor) -> Callable[[], Any]:
    fast = torch.compile(model, mode="reduce-overhead")

    def step() -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            found = fast(tokens)
        return found[0] if isinstance(found, tuple) else found

    return step


def own_graph(device: str) -> Callable[[], Any]:
    """A program that captures eager GPT-2 itself, before it is recorded."""
    model = GPT2(layers=4).to(device, torch.bfloat16).eval()
    tokens = torch.randint(0, 50000, (4, 128), device=device)
    state: dict[str, Any] = {}

    def capture() -> None:
        with torch.no_grad():
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                model(tokens)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                state["result"] = model(tokens)
        state["graph"] = graph

    def step() -> Any:
        if not state:
            capture()
        state["graph"].replay()
        return state["result"]

    return step


def two_streams(device: str) -> Callable[[], Any]:
    """A graph of two branches on two streams."""
    a, b = (torch.randn(2048, 2048, device=device, dtype=torch.bfloat16) for _ in range(2))
    state: dict[str, Any] = {}

    def work() -> Any:
        main, side = torch.cuda.current_stream(), state["side"]
        side.wait_stream(main)
        with torch.cuda.stream(side):
            first = (a @ b).relu()
        second = (b @ a).sigmoid()
        main.wait_stream(side)
        return first + second

    def step() -> Any:
        if not state:
            state["side"] = torch.cuda.Stream()
            work()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                state["result"] = work()
            state["graph"] = graph
        state["graph"].replay()
        return state["result"]

    return step


PROGRAMS = {
    "bert": compiled_bert, "gpt2": compiled_gpt2, "own_graph": own_graph, "two_streams": two_streams,
}  # fmt: skip


def measured(name: str, device: str, folder: Path) -> dict[str, Any]:
    """One program recorded and read."""
    torch.manual_seed(0)
    bare = PROGRAMS[name](device)
    plain_s = []
    for _ in range(4):
        started = time.perf_counter()
        expected = bare().clone()
        torch.cuda.synchronize()
        plain_s.append(time.perf_counter() - started)
    torch._dynamo.reset()
    torch.manual_seed(0)
    step = PROGRAMS[name](device)
    started = time.perf_counter()
    result, cycle = profile_call(
        step, output_dir=folder, name=f"{name}.json.gz", warmup=2, active=4, unrecorded=4,
        with_modules=True, track_compile=True, overwrite=True,
    )  # fmt: skip
    recorded_s = time.perf_counter() - started
    session = opscope.load(cycle.trace_path)
    summary = summarize(session)
    rows = session.query(SHARES)
    total = sum(row[2] for row in rows)
    modules = summary.program.modules
    in_modules = sum(one.total_device_ns for one in modules if one.depth == 0)
    return {
        "equal_to_unrecorded": bool(torch.equal(result, expected)),
        "largest_difference": float((result.float() - expected.float()).abs().max()),
        "graphs_noted": [
            {"file": one.file, "nodes": None if one.nodes is None else len(one.nodes),
             "named": None if one.nodes is None else sum(node.name is not None for node in one.nodes),
             "numbered": None if one.nodes is None else sum(node.number is not None for node in one.nodes)}
            for one in cycle.sidecar.graphs
        ],
        "gaps": [f"{gap.part}: {gap.reason}" for gap in cycle.sidecar.gaps],
        "replayed_ns": total,
        "attributions": {row[0]: row[2] for row in rows},
        "with_operator": sum(row[3] for row in rows) / total if total else None,
        "with_bytes": sum(row[4] for row in rows) / total if total else None,
        "with_flops": sum(row[5] for row in rows) / total if total else None,
        "with_module": in_modules / summary.device_time_ns,
        "first_calls_plain_s": plain_s,
        "recording_s": recorded_s,
    }  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--work-dir", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    given = parser.parse_args()
    folder = given.work_dir or Path(tempfile.mkdtemp(prefix="opscope_graphs_"))
    results: dict[str, Any] = {"environment": environment_facts()}
    for name in given.only:
        try:
            results[name] = measured(name, given.device, folder)
        except Exception:  # noqa: BLE001 - the other programs are still worth their time
            results[name] = {"error": traceback.format_exc()}
        write(given.output, results)


if __name__ == "__main__":
    main()
