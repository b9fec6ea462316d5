import json

from fakes import TraceBuilder


def test_files_are_written_and_named_last(opscope, trace, tmp_path):
    names = "out/analysis.json", "out/report.md", "page.html", "s.opscope", "marked.json", "stacks.json"
    files = [tmp_path / name for name in names]
    options = ("-o", "-o", "-o", "--save", "--export-trace", "--stacks")
    words = [word for pair in zip(options, files, strict=True) for word in pair]
    outcome = opscope("analyze", trace, *words).fine()
    assert outcome.out.splitlines()[-6:] == [f"Wrote {file}" for file in files]
    report = files[1].read_text("utf-8")
    assert "### 4.1 aten::addmm" in report
    assert "96×1×1 | 128×1×1 | 200 | 49,152 B | 12.0 %" in report
    assert "To repeat" in files[2].read_text("utf-8")
    first = opscope("analyze", trace, "--json").json
    assert json.loads(files[0].read_text("utf-8")) == first
    assert opscope("analyze", files[3], "--json").json == first
    (profile,) = json.loads(files[5].read_text("utf-8"))["profiles"]
    assert (profile["name"], profile["endValue"]) == ("trace.json", 452_125)
    # The trace with its critical path is the same recording.
    assert opscope("analyze", files[4], "--json").json["summary"] == first["summary"]


def test_as_many_ranges_are_shown_as_operators(opscope, tmp_path):
    builder = TraceBuilder()
    for number in range(12):
        at = 100 * number
        builder.event("user_annotation", f"layer {number:02}", at, 90, 1, {})
        builder.operator("aten::mm", at + 5, 20).launch(at + 10).kernel("gemm", at + 20, 40 - number)
    trace = builder.write(tmp_path / "trace.json")
    outcome = opscope("analyze", trace, "--by", "range:layer \\d+", "--top", "10")
    outcome.fine("layer 09", "2 more ranges take 59.0 µs")
    assert "layer 10" not in outcome.out.partition("By range")[2].partition("more ranges")[0]
