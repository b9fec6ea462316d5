"""Small programs as traces, and the values that the analyses would make of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import opscope
from fakes import H200, TraceBuilder
from opscope.advice import advise
from opscope.analysis.collectives import find_straggler
from opscope.analysis.launch_quality import TensorCoreUse
from opscope.analysis.roofline import Bound, CallEfficiency, CostCoverage, Efficiency, Roofline
from opscope.analysis.step_model import Gain, HostSpeed
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import HostTime, Timeline, TimePartition
from opscope.hardware.devices import DataType
from opscope.hardware.limits import DeviceLimits, Limit, LimitEvidence
from opscope.model.finding import Finding
from opscope.operators.effects import CallCost

# As measured on one: DESIGN's copy and products of 8192³.
MEASURED = {DataType.FP32: 51e12, DataType.TF32: 409e12, DataType.FP16: 780e12, DataType.BF16: 810e12}

Program = Callable[..., tuple[Finding, ...]]
MS = 1_000_000


def limits(evidence=LimitEvidence.MEASURED):
    """Those of an H200."""

    def limit(per_s):
        return Limit(per_s, evidence, "in a test")

    return DeviceLimits(
        "NVIDIA H200",
        memory=limit(4.28e12),
        peaks={data_type: limit(rate) for data_type, rate in MEASURED.items()},
        sm_count=132,
        compute_capability="9.0",
    )


def trace(**properties):
    """A builder of traces of an H200."""
    return TraceBuilder(deviceProperties=[H200], **properties)


OF_A_COST = {"flop_count": None, "read_bytes": None, "written_bytes": None, "data_type": DataType.FP32}


def call(
    operator, device_ns, *, shapes=None, types=None, fraction=0.5, bound=None, tensor_cores=None, **more
):
    """One distinct call; `device_ns` is of all its calls, `more` are facts of its cost and its own."""
    cost = CallCost(**{name: more.pop(name, usual) for name, usual in OF_A_COST.items()})
    roofline = Roofline(
        device_ns, device_ns, flop_count=cost.flop_count, bound=bound, tensor_cores=tensor_cores,
        attainable_ns=None if fraction is None else fraction * device_ns,
    )  # fmt: skip
    written = (None, '["float"]')
    if shapes is not None:
        types = types or ["float" if shape else "Scalar" for shape in shapes]
        written = (json.dumps(shapes), json.dumps(types))
    own = {"calls": 1, "kernels": (), **more}
    return CallEfficiency(
        own.pop("call_id", 0), operator, None, *written, cost=cost, roofline=roofline, **own
    )


def product(m, n, k, device_ns, *, type_name="float", data_type=DataType.FP32, **facts):
    """Calls of aten::mm."""
    size = 4 if data_type is DataType.FP32 else 2
    known = {
        "shapes": [[m, k], [k, n]], "types": [type_name, type_name], "data_type": data_type,
        "tensor_cores": TensorCoreUse.ELIGIBLE, "bound": Bound.COMPUTE, "flop_count": 2 * m * n * k,
        "read_bytes": size * k * (m + n), "written_bytes": size * m * n,
    }  # fmt: skip
    return call("aten::mm", device_ns, **{**known, **facts})


def host(device_ns, host_ns, *, launches=10, recorder_ns=0.0, steps=1, step_ns=None, trace_id=0):
    """The host of a step that takes the longer of both sides, unless said otherwise."""
    wall_ns = max(device_ns, host_ns) if step_ns is None else step_ns
    return HostTime(trace_id, steps, wall_ns, device_ns, host_ns, launches, recorder_ns, "in a test")


def partition(span_ns, idle=None, *, trace_id=0, **parts):
    """A device that computes but for its idle time."""
    idle = dict(idle or {})
    idle_ns = sum(idle.values())
    facts = {"exposed_copy_ns": 0, "exposed_communication_ns": 0, **parts}
    compute_ns = span_ns - idle_ns - facts["exposed_copy_ns"] - facts["exposed_communication_ns"]
    return TimePartition(trace_id, None, 0, span_ns, compute_ns, idle_ns=idle_ns, idle_by_cause=idle, **facts)


def quick_summary(session, **given):
    """Its Summary without what advice does not read, and with what the test gives itself."""
    return Summary(session, accounts={}, improvements={}, **given).complete()


@pytest.fixture(scope="session")
def summarized(tmp_path_factory):
    """The Session and Summary of builders, one for each rank; the same for the same content."""
    folder = tmp_path_factory.mktemp("advice")
    known = {}

    def load(*builders):
        key = tuple(builder.text() for builder in builders)
        if key not in known:
            paths = [
                builder.write(folder / f"{len(known)}_{number}.json")
                for number, builder in enumerate(builders)
            ]
            session = opscope.load(paths, threads=1)
            known[key] = session, quick_summary(session, efficiency=Efficiency(), timeline=Timeline())
        return known[key]

    yield load
    for session, _ in known.values():
        session.close()


@pytest.fixture
def advise_on(summarized):
    """The advice on builders' traces, with the values given in place of those the analyses would find."""

    def run(*builders, calls=(), kernels=None, hosts=(), partitions=(), known_limits=None, **timeline):
        session, summary = summarized(*builders)
        rates = limits() if known_limits is None else known_limits
        efficiency = Efficiency(rates, CostCoverage(), {}, kernels or {}, tuple(calls))
        values = Timeline(partitions=tuple(partitions), host=tuple(hosts), **timeline)
        models = tuple(AskedStep(one, efficiency.calls) for one in values.host)
        durations = [(step.trace_id, step.duration_ns) for step in summary.steps]
        arrivals = summary.collectives.rank_steps
        straggler = find_straggler(session, values.skews, arrivals, durations, values.left_out)
        given = {
            "efficiency": efficiency,
            "timeline": values,
            "counted_timeline": values,
            "straggler": straggler,
        }
        summary = advise(session, summary.having(**given), models[len(models) // 2] if models else None)
        return summary.advice or ()

    return run


class AskedChange:
    """What a rule asks of a change, without a graph: each method is noted with its arguments."""

    def __init__(self, model, asked=()):
        self.model, self.asked = model, asked

    def __getattr__(self, name):
        def note(*arguments, **_):
            self.asked += ((name, arguments),)
            return self

        return note

    def __and__(self, other):
        return AskedChange(self.model, self.asked + other.asked)

    @property
    def device_saved_ns(self):
        """Of calls that get other times what they lose; of anything else a tenth of a step."""
        scaled = [arguments[0].items() for name, arguments in self.asked if name == "scale_calls"]
        lost_ns = [self.model.calls_ns[one] * (1 - by) for found in scaled for one, by in found]
        return sum(lost_ns) if lost_ns else 0.1 * self.model.step_ns

    def apply(self, host):
        """A step that is the shorter, the more of the recorder is left out."""
        return self.model.step_ns * (1 - host.recorder / 10)


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the step for each gain, in order: methods of changes with their arguments."""
    monkeypatch.setattr(AskedStep, "asked", [])
    return AskedStep.asked


class AskedStep:
    """A step of these two sides. Device time that goes is its gain, if the host is not the slower one."""

    asked: ClassVar[list[tuple[tuple[str, tuple[Any, ...]], ...]]] = []

    loading: Mapping[int, Any] = {}
    unrecorded_error = missing = waits = None
    path: Sequence[Any] = ()
    host, *_ = hosts = (HostSpeed(1.0), HostSpeed(0.0), HostSpeed(2.0))
    launch_ns = timed = None

    def __init__(self, host, calls):
        self.calls_ns = {call.call_id: call.roofline.device_ns for call in calls}
        self.trace = SimpleNamespace(trace_id=host.trace_id)
        self.device_ns, self.busy_ns, self.launches = host.device_busy_ns, host.device_busy_ns, host.launches
        self.recorder_ns = host.recorder_ns or 0.0
        self.recorded_host_ns = host.launch_path_ns
        self.host_ns = host.launch_path_ns - self.recorder_ns
        self.host_range_ns = self.host_ns - self.recorder_ns / 3, self.host_ns + self.recorder_ns / 3
        self.step_ns = max(self.device_ns, self.host_ns)
        self.steps_ns = (self.step_ns,)
        self.is_host_bound = self.host_ns > self.device_ns
        self.unrecorded_share = self.host_ns / self.recorded_host_ns if self.recorded_host_ns else 1.0

    def change(self, effect=lambda _: None):
        """What an effect asks."""
        change = AskedChange(self)
        effect(change)
        return change

    def missing_for(self, _):
        """Nothing."""

    def extents(self, *_, **__):
        """Nowhere."""
        return {}

    between = launching = extents

    def is_named(self, names):
        """What was asked for."""
        return list(names)

    is_launched_by = is_named

    def gain(self, change, _):
        """What the device loses, if it decides or the change is about the host as well."""
        self.asked.append(change.asked)
        device_only = all(name.startswith("scale") for name, _ in change.asked)
        ns = 0.0 if self.is_host_bound and device_only else change.device_saved_ns
        return Gain(ns, 0.0, 2 * ns)

    def gain_ns(self, change):
        """The more, the better."""
        return len(change.asked) * 0.1 * self.step_ns


def codes(findings):
    """Their codes, in order, without the common part."""
    return [finding.code.removeprefix("advice.") for finding in findings]


def only(findings, code):
    """The one finding of a code."""
    (found,) = [finding for finding in findings if finding.code == f"advice.{code}"]
    return found


def told(findings, code, *words, has_gain):
    """The one finding of a code, after a look for these words in what it says."""
    finding = only(findings, code)
    text = "\n".join((finding.message, finding.gain_basis or "", finding.change or ""))
    for word in words:
        assert word in text
    assert (finding.estimated_gain_ns_per_step is not None) is has_gain
    return finding
