"""Whether recorded calls run alone as they ran in the program: `opscope extract` on whole traces.

    python benchmarks/extraction.py TRACE …

Of the distinct calls that make up 95 % of the time of kernels below operators: how many are written and run,
and of how many the arguments were recorded. On a GPU each is recorded alone with a cold cache, then all calls
of the trace in its order, so that each finds in the caches what those before it left there: kernels, grids,
blocks and the median time are held against the trace. Without a GPU they run on the CPU, or on `meta`.

In order, a call is given what calls before it made where that has the size and type, but for weights; else
tensors that none has touched since long. A call that cannot run copies its tensors, and for kernels of no
call as much memory is written as their time allows.
"""

from __future__ import annotations

import inspect
import json
import statistics
import tempfile
from bisect import bisect
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness import environment, parser_of, write
from opscope import load
from opscope.analysis.summary import Summary
from opscope.errors import OpscopeError
from opscope.extraction.alone_calls import AloneCall, alone_calls, extracted
from opscope.extraction.inputs import VALUES
from opscope.extraction.starts import StartKind
from opscope.model.queries import grouped
from opscope.model.session import Session
from opscope.operators.arguments import CallArguments, type_of

SHARE, MOST_BYTES = 0.95, 1 << 30
NEAR, REPETITIONS, ROUNDS = 0.1, 10, 2
# Never the result of the call before; and what must not be: random results are no probabilities.
WEIGHTS, BY_CHANCE = frozenset({"weight", "bias", "mat2"}), frozenset({"multinomial", "bernoulli"})
# Inputs of a call that take turns, so that all have left the caches; results that others may be given.
MOST_SETS, SETS_BYTES, RECENT = 64, 256 << 20, 4
FLOATS, FLOATS_PER_NS = 64 << 20, 500  # to flush caches; read and written, of an H200
HAS_GPU = torch.cuda.is_available()
RECORDED, LAUNCHED, OTHERS = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8").split(";\n")


def main() -> None:
    parser = parser_of(__doc__, "extraction.json")
    parser.add_argument("traces", type=Path, nargs="+")
    options = parser.parse_args()
    results: dict[str, Any] = {"environment": environment(), "traces": []}
    for path in options.traces:
        results["traces"].append(row := trace_row(path))
        print({key: value for key, value in row.items() if key != "calls"}, flush=True)
        write(options.output, results)


def trace_row(path: Path) -> dict[str, Any]:
    with load(path) as session:
        every = sorted(alone_calls(session, Summary(session).efficiency), key=lambda one: -one.device_ns)
        calls, rows = [Made(one) for one in every if not one.then], dict[int, dict[str, Any]]()
        of_operators = [place for place, made in enumerate(calls) if made.is_operator]
        whole_ns, held_ns = sum(calls[place].one.device_ns for place in of_operators), 0
        for place in of_operators:
            if held_ns < SHARE * whole_ns:
                rows[place] = calls[place].row()
                held_ns += calls[place].one.device_ns
        if HAS_GPU:
            compare(session, calls, rows)
    held = [row for row in rows.values() if "near" in row]
    counted = Counter(row["outcome"] for row in rows.values())
    return {
        "trace": path.name,
        "count": len(rows),
        "recorded": len(rows) - counted["not recorded"],
        **counted,
        **{
            name: round(
                sum(row["device_ns"] * row[name] for row in held) / sum(row["device_ns"] for row in held), 4
            )
            for name in ("same_kernels", "near", "near_cold")
            if held
        },
        "calls": list(rows.values()),
    }


class Made:
    """A call as its file makes it."""

    def __init__(self, one: AloneCall) -> None:
        self.one, self.is_operator = one, not (one.sources or one.collective)
        self.file = extracted(1, one, start=None if one.activity_ids else StartKind.ATEN).file
        self.names: dict[str, Any] = {"__name__": "call", "make_inputs": self._alike, "reference": copies}
        if not (isinstance(self.file, OpscopeError) or one.collective):
            with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # where Triton reads a kernel
                print(self.file.text, file=file, flush=True)
                exec(compile(self.file.text, file.name, "exec"), self.names)

    def _alike(self, device: torch.device, seed: int) -> list[Any]:
        """Tensors of the call's sizes, where there is no file."""
        known = ((one.shape, type_of(one)) for one in self.one.call.tensors)
        return [torch.zeros(shape, dtype=getattr(torch, of.name), device=device) for shape, of in known if of]

    def inputs(self, device: str, seed: int = 0) -> Any:
        """What the call is given."""
        self.names["DEVICE"] = device
        return self.names["make_inputs"](torch.device(device), seed)

    def sets(self, count: int) -> list[Any]:
        """What it is given in so many calls, in turns."""
        try:
            size_bytes = sum(one.nbytes for one in flat(self.inputs("cuda")))
        except Exception:  # noqa: BLE001 - which its row tells
            self.names |= {"make_inputs": self._alike, "reference": copies}
            size_bytes = SETS_BYTES
        count = min(count, MOST_SETS, 1 + SETS_BYTES // max(1, size_bytes))
        return [self.inputs("cuda", seed) for seed in range(count)]

    def row(self) -> dict[str, Any]:
        """Whether it is written, and runs alone."""
        row = {"call": self.one.call.name, "shapes": self.one.shapes, "device_ns": self.one.device_ns}
        if isinstance(self.file, OpscopeError):
            outcome = "not recorded" if "Record with" in (self.file.hint or "") else "not written"
            return {**row, "outcome": outcome, "error": str(self.file)}
        try:
            is_small = sum(one.nbytes for one in flat(self.inputs("meta"))) < MOST_BYTES
            row["outcome"] = f"runs on {(device := 'cuda' if HAS_GPU else 'cpu' if is_small else 'meta')}"
            self.names["reference"](*self.inputs(device))
        except Exception as error:  # noqa: BLE001 - each is counted
            return {**row, "outcome": "fails", "error": f"{type(error).__name__}: {str(error)[:300]}"}
        return row


def compare(session: Session, calls: Sequence[Made], rows: dict[int, dict[str, Any]]) -> None:
    """Adds to rows how calls compare with the trace when all are made in its order."""
    launches = [number for made in calls for number in made.one.activity_ids]
    operators = [number for made in calls if not made.one.activity_ids for number in made.one.operator_ids]
    order = [(start_ns, -1, ns) for start_ns, ns in session.query(OTHERS, [operators, launches])]
    before, sets = [], []
    for place, made in enumerate(calls):
        numbers = made.one.activity_ids or made.one.operator_ids
        before.append(session.query(LAUNCHED if made.one.activity_ids else RECORDED, [list(numbers)]))
        order += [(start_ns, place, 0) for *_, start_ns in before[-1]]
        sets.append(made.sets(len(before[-1])))
    order.sort()
    running = [place for place, row in rows.items() if row["outcome"] == "runs on cuda"]
    runs = {place: partial(calls[place].names["reference"], *sets[place][0]) for place in running}
    alone = recorded((place, run) for place, run in runs.items() for _ in cold(run))
    for _, run in in_order(order, calls, sets):  # compiles and allocates
        run()
    found = recorded(in_order(order * ROUNDS, calls, sets))
    for place in running:
        launched = [Counter((name, *grid, *block) for name, grid, block in one[2]) for one in before[place]]
        kernels, _ = alone[place][-1] if alone[place] else (Counter[Any](), 0.0)
        recorded_ns, cold_ns, in_order_ns = (
            statistics.median(one[1] for one in of or [(None, 0.0)])
            for of in (before[place], alone[place], found[place])
        )
        rows[place] |= {
            "same_kernels": kernels in launched,
            "near": abs(in_order_ns / recorded_ns - 1) <= NEAR,
            "near_cold": abs(cold_ns / recorded_ns - 1) <= NEAR,
            "recorded_ns": recorded_ns,
            "in_order_ns": in_order_ns,
            "cold_ns": cold_ns,
            **({} if kernels in launched else {"kernels_alone": [name[:80] for name, *_ in kernels]}),
        }


def cold(run: Callable[[], object]) -> Iterator[None]:
    """As often as it is recorded, before each time."""
    run(), run()
    for _ in range(REPETITIONS):
        torch.zeros(FLOATS, device="cuda").sum()  # read: what is written would leave during the call
        torch.cuda.synchronize()
        yield


def in_order(
    order: Sequence[tuple[int, int, int]], calls: Sequence[Made], sets: Sequence[Sequence[Any]]
) -> Iterator[tuple[int, Callable[[], object]]]:
    """Each call with what those before it made."""
    flush = torch.zeros(FLOATS, device="cuda")
    recent: dict[Any, deque[Any]] = defaultdict(lambda: deque(maxlen=RECENT))
    turns: Counter[int] = Counter()
    results: list[Any] = []

    def run(made: Made, inputs: Sequence[Any]) -> None:
        try:
            results[:] = flat([made.names["reference"](*inputs)])
        except Exception as error:  # noqa: BLE001 - of one call of many
            print(f"{made.one.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            made.names["reference"] = copies

    for _, place, ns in order:
        if place < 0:
            flush[: ns * FLOATS_PER_NS].add_(1)
            continue
        made, inputs = calls[place], [*sets[place][turns[place] % len(sets[place])]]
        turns[place] += 1
        taken: Counter[Any] = Counter()
        names = [*inspect.signature(made.names["reference"]).parameters]
        for at, one in enumerate(inputs):
            if may_be_result(made.one.call, "".join(names[at : at + 1]), one):
                of = recent[key := (one.dtype, one.untyped_storage().nbytes())]
                if taken[key] < len(of):
                    like = of[taken[key]].as_strided(one.shape, one.stride())
                    inputs[at] = like.requires_grad_(one.requires_grad)
                    taken[key] += 1
        yield place, partial(run, made, inputs)
        for one in results:
            if one.storage_offset() == 0:
                recent[one.dtype, one.untyped_storage().nbytes()].appendleft(one.detach())


def may_be_result(call: CallArguments, name: str, one: Any) -> bool:
    is_weight = name in WEIGHTS and call.stem != "bmm"
    has_meaning = call.stem in BY_CHANCE or {name, f"{call.stem}.{name}"} & VALUES["kinds"].keys()
    is_plain = isinstance(one, torch.Tensor) and one.is_floating_point() and one.storage_offset() == 0
    return is_plain and not (is_weight or has_meaning)


def recorded(
    calls: Iterator[tuple[int, Callable[[], object]]],
) -> dict[int, list[tuple[Counter[Any], float]]]:
    """The kernels of each call, and their time: by a number that calls have."""
    with torch.profiler.profile() as profiler:
        for number, run in calls:
            with torch.profiler.record_function(f"call {number}"):
                run()
        torch.cuda.synchronize()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profiler.export_chrome_trace(file.name)
        every = json.loads(Path(file.name).read_text(encoding="utf-8"))["traceEvents"]
    events = grouped((one.get("cat"), one) for one in sorted(every, key=lambda one: float(one.get("ts", 0))))
    ranges = [one for one in events["user_annotation"] if one["name"].startswith("call ")]
    begins = [one["ts"] for one in ranges]
    host = (one for kind in ("cuda_runtime", "cuda_driver") for one in events.get(kind, ()))
    launched = {one["args"]["correlation"]: one["ts"] for one in host if "correlation" in one["args"]}
    of_range: dict[int, list[Any]] = defaultdict(list)
    for one in events.get("kernel", ()):
        place = bisect(begins, at := launched.get(one["args"]["correlation"], 0)) - 1
        if place >= 0 and at <= begins[place] + ranges[place]["dur"]:
            of_range[place].append(one)
    found: dict[int, list[tuple[Counter[Any], float]]] = defaultdict(list)
    for place, kernels in of_range.items():
        names = Counter((one["name"], *one["args"]["grid"], *one["args"]["block"]) for one in kernels)
        found[int(ranges[place]["name"].split()[1])].append((names, sum(one["dur"] for one in kernels) * 1e3))
    return found


def copies(*inputs: Any) -> list[Any]:
    return [one.clone() for one in flat(inputs)]


def flat(values: Any) -> list[Any]:
    every = (
        one for value in values for one in (flat(value) if isinstance(value, (list, tuple)) else [value])
    )
    return [one for one in every if isinstance(one, torch.Tensor)]


if __name__ == "__main__":
    main()
