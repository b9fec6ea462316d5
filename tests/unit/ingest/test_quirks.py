"""Exactness of times, values of every type, old formats, and what is said about a flawed trace."""

import json
from pathlib import Path

import pytest

import opscope
from case_tables import cases
from fakes import TraceBuilder
from opscope.errors import InputError
from opscope.model.finding import Severity
from opscope.results import load as load_traces


def trace_of(events, **properties):
    """A trace of events given as text, so that numbers keep their digits."""
    head = json.dumps({"schemaVersion": 1, **properties})[:-1]
    return f'{head}, "traceEvents": [\n' + ",\n".join(events) + "\n]}"


def operator(start, duration="1", name="a", **args):
    return (
        f'{{"ph": "X", "cat": "cpu_op", "name": {json.dumps(name)}, "pid": 1, "tid": 1, '
        f'"ts": {start}, "dur": {duration}, "args": {json.dumps(args)}}}'
    )


def findings(session):
    """Evidence by code, without what every small trace lacks."""
    usual = ("trace.absent", "trace.no_device_activity")
    return {f.code: f.evidence for f in session.findings() if f.code not in usual}


class TestTypes:
    def test_ids_may_be_numbers_or_strings(self, load):
        def trace(convert):
            built = TraceBuilder().operator("aten::mm", 10, 50).launch(12, external_id=1).kernel("k", 90, 5)
            for event in built.events:
                event["pid"], event["tid"] = convert(event["pid"]), convert(event["tid"])
                for key in ("External id", "correlation", "device", "stream"):
                    if key in event["args"]:
                        event["args"][key] = convert(event["args"][key])
            return built

        def rows(session):
            return [
                session.query("SELECT process, native_thread FROM threads"),
                session.query("SELECT external_id, self_device_ns FROM operators"),
                session.query("SELECT device, stream, correlation_id, attribution FROM device_activities"),
            ]

        numbers, strings = rows(load(trace(int))), rows(load(trace(str)))
        assert numbers == strings
        assert numbers == [[("1", "1")], [(1, 5_000)], [(0, 7, 101, "external_id")]]

    def test_a_grid_in_other_words_or_none(self, load):
        known = ["[1, 2, 3]", [1.0, 2, 3]]
        unknown = [{"x": 1}, [], None, 5, ["a", "b", "c"], "grid(1024,)"]
        trace = TraceBuilder()
        for at, grid in enumerate(known + unknown):
            trace.kernel("k", 10 * at, 2, grid=grid)
        rows = load(trace).query("SELECT grid_x, grid_y, grid_z FROM device_activities ORDER BY start_ns")
        assert rows == [(1, 2, 3)] * len(known) + [(None, None, None)] * len(unknown)

    def test_names_of_any_kind(self, load):
        names = [None, 5, ["x"], "", "a\x00b", "\U0001f525", "x" * 100_000]
        trace = TraceBuilder()
        for at, name in enumerate(names):
            trace.operator("x", 10 * at, 2).launch(10 * at).kernel("k", 10 * at + 5, 2)
            for event in trace.events[-3:]:
                event["name"] = name
        session = load(trace)
        expected = [name if isinstance(name, str | None) else json.dumps(name) for name in names]
        assert session.query("SELECT name FROM operators ORDER BY start_ns") == [(one,) for one in expected]
        kernels = "SELECT name FROM device_activities JOIN kernel_names USING (name_id) ORDER BY start_ns"
        assert session.query(kernels) == [(one or "",) for one in expected]
        assert all(check.holds for check in session.check())


class TestFlaws:
    def test_text_that_is_not_utf8_or_holds_control_characters(self, load):
        text = trace_of([operator("1"), operator("5", name="b")]).replace('"a"', '"a\x01\x7f"', 1)
        session = load(text)
        assert findings(session) == {"trace.control_characters": {"first_byte": text.index("\x01")}}
        assert session.query("SELECT name FROM operators ORDER BY 1") == [("a \x7f",), ("b",)]
        text = trace_of([operator("1", name="Größe")], note="ü").encode()
        text = text.replace(b"Gr\\u00f6\\u00dfe", b"Gr\xf6\xdfe")
        session = load(text)
        assert findings(session) == {"trace.invalid_utf8": {"first_byte": text.index(b"\xf6")}}
        assert session.query("SELECT name FROM operators") == [("Gr??e",)]

    def test_no_table_has_events_without_a_usable_time(self, load):
        times = (("NaN", "1"), ("Infinity", "1"), ("-Infinity", "1"), ("1e300", "1"), ("null", "1"),
                 ("1", "NaN"), ("1", "-0.001"), ("1", "null"), ("1", "1e300"))  # fmt: skip
        events = [operator(start, duration) for start, duration in times]
        session = load(trace_of([*events, operator("5", name="b")]))
        assert findings(session) == {"trace.events_without_time": {"event_count": len(times)}}
        assert session.query("SELECT name FROM operators") == [("b",)]
        odd = [
            operator("1", duration, "epoch").replace("cpu_op", category)
            for category in ("user_annotation", "python_function", "overhead")
            for duration in ("null", "-5")
        ]
        session = load(trace_of([*odd, operator("5")]))
        assert findings(session) == {"trace.events_without_time": {"event_count": len(odd)}}
        of_other_types = [operator("5", '"x"'), operator("[5]"), operator('{"a": 5}')]
        found = load(trace_of([*of_other_types, operator("9", name="b")]))
        assert found.query("SELECT name FROM operators") == [("b",)]
        assert {"trace.events_without_time", "trace.unexpected_types"} <= findings(found).keys()
        for table in ("annotations", "frames", "overheads", "steps"):
            assert session.scalar(f"SELECT count(*) FROM {table}") == 0

    def test_categories_no_table_holds_are_counted(self, load):
        trace = TraceBuilder().operator("a", 1, 2)
        for _ in range(3):
            trace.event("novel", "x", 1, 2, 1, {})
        trace.events.append({"ph": "C", "name": "counter", "pid": 1, "tid": 1, "ts": 1, "args": {"a": 1}})
        trace.events.append({"ph": "B", "cat": "cpu_op", "name": "b", "pid": 1, "tid": 1, "ts": 1})
        evidence = findings(load(trace))
        assert evidence["trace.categories_ignored"]["event_count"]["novel"] == 3
        assert sum(evidence["trace.categories_ignored"]["event_count"].values()) == 5

    @pytest.mark.parametrize("phase", ["i", None])
    def test_operators_of_another_phase_are_counted(self, load, phase):
        trace = TraceBuilder().operator("b", 5, 2).operator("a", 1, 2).operator("c", 9, 2)
        trace.events[1]["ph"] = phase
        session = load(trace)
        assert session.scalar("SELECT count(*) FROM operators") == 2
        assert findings(session)

    def test_marks_and_arrows_are_not_reported(self, load):
        trace = TraceBuilder().operator("a", 1, 2)
        trace.events += [
            {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch", "pid": "T", "tid": "T", "ts": 1},
            {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 9},
            {"ph": "s", "id": 5, "cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 1, "ts": 1},
            {"ph": "f", "id": 5, "cat": "async_gpu", "name": "x", "pid": 1, "tid": 1, "ts": 1, "bp": "e"},
        ]  # fmt: skip
        session = load(trace)
        assert findings(session).get("trace.categories_ignored", {}) == {"event_count": {"async_gpu": 1}}
        assert session.query("SELECT native_thread FROM threads") == [("1",)]

    def test_operators_and_kernels_that_overlap(self, load):
        trace = TraceBuilder().operator("a", 1, 10).operator("b", 5.5, 10).operator("c", 6, 1)
        session = load(trace)
        assert findings(session) == {"trace.operators_overlap": {"operator_count": 1}}
        assert session.query("SELECT name, parent_id, self_cpu_ns FROM operators ORDER BY operator_id") == [
            ("a", None, 10_000), ("b", None, 9_000), ("c", 1, 1_000),
        ]  # fmt: skip
        trace = TraceBuilder().kernel("a", 10, 10).kernel("b", 15, 10).kernel("c", 16, 2, stream=8)
        session = load(trace)
        assert findings(session)["trace.same_stream_overlap"] == {"activity_count": 1}
        assert session.query("SELECT span_ns, busy_ns, idle_ns FROM devices") == [(15_000, 15_000, 0)]
        session = load(TraceBuilder().operator("a", 1, 10).operator("b", 5, 7))
        assert findings(session) == {}
        assert session.query("SELECT name, parent_id, self_cpu_ns FROM operators ORDER BY operator_id") == [
            ("a", None, 4_000), ("b", 0, 7_000),
        ]  # fmt: skip

    def test_unattributed_time_by_reason(self, load):
        trace = TraceBuilder().operator("a", 10, 10).launch(12).kernel("mine", 30, 50)
        trace.kernel("early", 1, 2, correlation=50).kernel("lost", 90, 0.25, correlation=999)
        trace.event("kernel", "stray", 95, 47.75, 7, {"device": 0, "stream": 7})
        session = load(trace)
        assert findings(session) == {
            "attribution.before_window": {"duration_ns": 2_000, "activity_count": 1, "fraction": 0.02},
            "attribution.no_launch_record": {"duration_ns": 250, "activity_count": 1, "fraction": 0.0025},
            "attribution.no_correlation": {"duration_ns": 47_750, "activity_count": 1, "fraction": 0.4775},
        }
        severities = {f.code: f.severity for f in session.findings()}
        assert severities["attribution.before_window"] is Severity.WARNING
        assert severities["attribution.no_launch_record"] is Severity.INFO
        assert all(f.trace_id == 0 and f.message.endswith(".") for f in session.findings())

    def test_ids_of_another_numbering(self, load):
        trace = TraceBuilder()
        for index in range(4):
            trace.operator("a", 1_000 * index, 10, external_id=index)
            trace.launch(1_000 * index + 5, external_id=3 - index).kernel("k", 1_000 * index + 6, 2)
        session = load(trace)
        assert findings(session) == {"attribution.impossible_external_ids": {"id_count": 4}}
        assert session.query("SELECT DISTINCT attribution FROM device_activities") == [("correlation",)]

    def test_what_a_trace_lacks_is_said_once(self, load):
        def absent(builder):
            (lone,) = (one for one in load(builder).findings() if one.code == "trace.absent")
            return lone.evidence["absent"]

        of_torch = TraceBuilder().kernel("void at::native::fill<float>()", 1, 2)
        assert absent(of_torch) == ["operators", "runtime calls", "profiler steps", "device properties"]
        of_cuda = TraceBuilder().launch(1).kernel("solve(float*)", 3, 2)
        assert absent(of_cuda) == ["device properties"]
        whole = TraceBuilder(distributedInfo={"rank": 0}, deviceProperties=[{"id": 0, "name": "X"}]).step(
            1, 0, 50
        )
        whole.operator("a", 1, 5, **{"Input Dims": []}).launch(2).kernel("k", 3, 1)
        assert load(whole).findings() == []

    def test_ranks_matter_among_several_traces(self, load, make_trace):
        def traces(*ranks):
            headers = [{} if rank is None else {"distributedInfo": {"rank": rank}} for rank in ranks]
            return [
                make_trace(TraceBuilder(**header).operator("a", 1, 2), f"{index}.json")
                for index, header in enumerate(headers)
            ]

        def codes(*ranks):
            found = {f.code for f in load(traces(*ranks)).findings()}
            return {code for code in found if code.startswith("traces.")}

        assert codes(None) == set()
        assert codes(0, 1) == set()
        assert codes(0, None) == {"traces.without_rank"}
        with pytest.raises(InputError, match="both of rank 3, at the same time"):
            codes(3, 3)
        merged = load_traces(traces(3, 3), merge=True)
        assert [f.code for f in merged.findings() if f.code.startswith("traces.")] == ["traces.same_rank"]

    def test_missing_ranks_and_steps_are_named(self, load, make_trace):
        def said(steps, world):
            paths = []
            for rank, count in steps.items():
                trace = TraceBuilder(distributedInfo={"rank": rank, "world_size": world})
                for number in range(count):
                    trace.step(number, 100 * number, 90).operator("a", 100 * number + 1, 2)
                paths.append(make_trace(trace, f"{rank}.json"))
            return {f.code: f.message for f in load(paths).findings() if f.code.startswith("traces.")}

        assert said({0: 2, 1: 2}, 2) == {}
        found = said({0: 2, 2: 2, 3: 1}, 16)
        assert "3 of 16 ranks were read (1, 4, 5, 6, 7, 8, 9, 10, … not)" in found["traces.missing_ranks"]
        assert "most 2, but rank 3: 1." in found["traces.step_counts"]


def test_of_a_cut_trace_what_was_complete_is_loaded_and_what_was_lost_is_said(load):
    trace = TraceBuilder(distributedInfo={"rank": 2})
    for index in range(30):
        trace.operator(f"op{index}", 10 * index, 5)
    text = trace.text().encode()
    for cut in range(len(text) - 2, 400, -1013):
        complete = text[:cut].count(b"}}")
        lost = cut - text[:cut].rindex(b"}}") - 2
        session = load(text[:cut])
        assert session.query("SELECT count(*), max(name) FROM operators")[0][0] == complete
        assert findings(session) == {"trace.truncated": {"lost_bytes": lost, "size_bytes": cut}}
        assert session.query("SELECT rank, size_bytes FROM traces") == [(2, cut)]


class TestErrors:
    @cases("old", "new", "flaw")
    def test_an_event_that_is_no_json_costs_itself(self, load, old, new, flaw):
        text = trace_of([operator("1", name="fine"), operator("5"), operator("9", name="z")], note="é" * 9)
        position = text.index(old, text.index('"ts": 1,') + 8)
        text = text[:position] + new + text[position + len(old) :]
        session = load(text.replace("fine", "fi" + flaw + "ne"))
        names = [name for (name,) in session.query("SELECT name FROM operators ORDER BY start_ns")]
        assert len(names) == 2
        assert names[-1] == "z"
        assert "trace.broken_events" in findings(session)
        assert any("1 event left out" in one.message for one in session.findings())

    def test_operators_of_a_device_that_left_no_record(self, load, make_trace):
        def defects(name):
            event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "dur": 2, "ts": 1}
            return opscope.summarize(load(make_trace(json.dumps({"traceEvents": [event]})))).defects

        assert [one.code for one in defects("aten::cudnn_convolution")] == ["recording.no_device_operators"]
        assert not defects("aten::cudnn_is_acceptable")  # which CPUs ask too

    @cases("first", "second", "reason")
    def test_traces_of_different_jobs_are_refused(self, load, make_trace, first, second, reason):
        def trace(name, *, rank=None, world_size=None, process=1, operator="a", ts=10):
            job = {"distributedInfo": {"rank": rank, "world_size": world_size}} if world_size else {}
            event = {
                "ph": "X", "cat": "cpu_op", "name": operator, "pid": process, "tid": 1, "ts": ts, "dur": 2,
            }  # fmt: skip
            return make_trace(json.dumps({"traceEvents": [event], **job}), name)

        paths = [trace("a.json", **first), trace("b.json", **second)]
        if reason is None:
            load(paths)
            return
        with pytest.raises(InputError, match=reason) as caught:
            load(paths)
        assert "--merge" in str(caught.value)
        load(paths, merge=True)

    def test_traces_of_one_process_with_other_kernels_are_refused(self, load, tmp_path):
        def trace(name, kernel):
            made = TraceBuilder().operator("aten::mm", 0, 20).launch(5).kernel(kernel, 30, 10)
            return made.write(tmp_path / name)

        paths = [trace("a.json", "gemm"), trace("b.json", "attention")]
        with pytest.raises(InputError, match=r"a\.json and .*b\.json have few kernels in common"):
            load(paths)
        load([paths[0], trace("c.json", "gemm")])

    @cases("option", "value")
    def test_a_memory_limit_or_number_of_threads_that_is_none(self, load, option, value):
        with pytest.raises(InputError):
            load(TraceBuilder().operator("a", 1, 2), **{option: value})


LEGACY = Path(__file__).with_name("legacy_trace.json").read_text(encoding="utf-8")


def test_categories_and_keys_of_2021(load):
    session = load(LEGACY)
    columns = "name, external_id, call_stack, module_hierarchy, step"
    assert session.query(f"SELECT {columns} FROM operators") == [
        ("aten::mm", 2, "a.py(1): f;b.py(2): g", "Net.fc", 7)
    ]
    query = (
        "SELECT kind, stream, correlation_id, external_id, start_ns, grid_z, attribution, step "
        "FROM device_activities ORDER BY start_ns"
    )
    assert session.query(query) == [
        ("kernel", 7, 5, 2, 1_623_143_089_861_040_000, 3, "external_id", 7),
        ("memcpy", 7, 6, None, 1_623_143_089_861_050_000, None, "no_launch_record", None),
        ("memset", 7, 7, None, 1_623_143_089_861_052_000, None, "no_launch_record", None),
    ]
    assert session.query("SELECT step, device_ns, kernel_count FROM steps") == [(7, 8_000, 1)]
    assert session.query("SELECT name FROM annotations") == [("ProfilerStep#7",)]
    assert session.query("SELECT format, event_count FROM traces") == [("kineto_legacy", 6)]


def test_a_recording_of_intels_gpus(load):
    """Kernels have queues of SYCL and Level Zero in place of a stream, and nothing describes the device.

    Source: handleRuntimeKernelMemcpyMemsetActivities in libkineto's plugin for XPU.
    """
    built = TraceBuilder()
    queues = {"device": 0, "sycl queue": 64, "l0 queue": "0x5611", "context": "0x55", "kernel_id": 12}
    for number, (name, kernel) in enumerate((("aten::mm", "gemm_kernel"), ("aten::copy_", "Memcpy M2D")), 1):
        at, category = 100.5 * number, "gpu_memcpy" if name == "aten::copy_" else "kernel"
        ids = {"External id": number, "correlation": 4000 + number}
        built.operator(name, at, 50, external_id=number)
        built.event("xpu_runtime", "urEnqueueKernelLaunch", at + 5, 10, 1, ids)
        built.event(category, kernel, at + 20, 12.25, 64, {**ids, **queues}, process=0)
    session = load(built)
    assert session.query("SELECT name, self_device_ns, total_device_ns FROM operators ORDER BY start_ns") == [
        ("aten::mm", 12_250, 12_250), ("aten::copy_", 12_250, 12_250),
    ]  # fmt: skip
    assert session.query("SELECT kind, attribution FROM device_activities ORDER BY start_ns") == [
        ("kernel", "external_id"), ("memcpy", "external_id"),
    ]  # fmt: skip
    assert all(not one.violations for one in session.check())
