import json
import sys


def test_json_is_for_speedscope(opscope, trace, tmp_path):
    target = tmp_path / "stacks.json"
    opscope("flamegraph", trace, "-o", target).fine(out=f"Wrote {target}\n")
    document = json.loads(target.read_text())
    assert document["name"] == str(trace)
    (profile,) = document["profiles"]
    assert (profile["name"], profile["endValue"]) == ("trace.json", 452_125)


def test_nothing_is_printed_on_a_terminal(opscope, trace, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    opscope("flamegraph", trace).fails("--output stacks.json")
