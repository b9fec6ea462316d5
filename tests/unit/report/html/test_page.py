"""The page: what is in it is what the tables hold, and no name gets out of its text."""

import base64
import gzip
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.step_view import step_times
from opscope.report.analysis import recording_document
from opscope.report.document import Document, Link, Paragraph, Section, plain
from opscope.report.html.page import render_page, session_page

BERT = Path(__file__).parents[4] / "src/opscope/data/bert_h200.json.gz"
MOST_BYTES = 3_000_000


class _Page(HTMLParser):
    """Elements with their attributes, texts of scripts and styles by themselves."""

    def __init__(self, text):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._open = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = tag if tag in {"script", "style"} else ""
        if self._open:
            self.raw.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, data):
        if self._open:
            self.raw[-1] = (self.raw[-1][0], self.raw[-1][1] + data)
        else:
            self.text += data

    def json(self, key):
        return next(json.loads(text) for attributes, text in self.raw if attributes.get("id") == key)


def hostile_trace(name):
    trace = TraceBuilder().step(1, 0, 100)
    trace.operator(name, 1, 20).launch(5).kernel(name, 10, 30)
    return trace.step(2, 100, 100).operator(f"aten::{name}", 101, 20).launch(105).kernel(name, 110, 30)


@pytest.fixture(scope="module")
def bert(shared_session):
    session = shared_session(BERT)
    text = session_page(session, Summary(session).complete(), command="opscope analyze x --output y")
    return session, _Page(text), text


def test_figures_of_the_page_are_of_all_device_time(bert):
    session, page, _ = bert
    figure = page.json("data")["steps"]
    (span_ns,) = {one.span_ns for one in Summary(session).complete().timeline.partitions}
    unit_ns = 1e6 if "(ms)" in figure["layout"]["xaxis"]["title"]["text"] else 1e3
    drawn_ns = sum(
        round(value * unit_ns) for trace in figure["data"] if trace["y"] != ["a step"] for value in trace["x"]
    )
    assert drawn_ns == span_ns
    (device_ns,) = session.query("SELECT sum(duration_ns) FROM device_activities")[0]
    icicle = page.json("data")["icicle"]["data"][0]
    assert round(icicle["values"][0] * 1e6) == device_ns
    for parent, whole in zip(icicle["ids"], icicle["values"], strict=True):
        below = [ns for of, ns in zip(icicle["parents"], icicle["values"], strict=True) if of == parent]
        assert sum(below) <= whole * (1 + 1e-9)


def test_streams_of_the_timeline_hold_every_activity_of_the_step(bert):
    session, page, _ = bert
    figure = page.json("data")["timeline"]
    rows = figure["layout"]["yaxis"]["ticktext"]
    stream = next(at for at, title in enumerate(rows) if title.startswith("stream"))
    mine = [one for one in figure["data"] if one["type"] == "bar" and one["y"][0] == stream]
    joined = sum(
        int(text.split()[1].replace(",", ""))
        for one in mine
        for text in one["hovertext"]
        if text.startswith("and ")
    )
    drawn = sum(len(one["x"]) for one in mine) + joined
    number = int(re.search(r"Step (\d+), event by event", page.text)[1])
    (step,) = [one for one in step_times(read_session(session), most=24) if one.step == number]
    (count,) = session.query(
        "SELECT count(*) FROM device_activities WHERE start_ns < ? AND start_ns + duration_ns > ?",
        [step.end_ns, step.start_ns],
    )[0]
    assert drawn == count > 200


def test_tables_say_what_the_document_says_and_the_bytes_are_the_same_each_time(bert):
    session, page, _ = bert
    document = recording_document(Summary(session).complete(), top=300, is_full=True, detailed=10)
    for section in document.sections:
        assert section.title in page.text
    table = next(section for section in document.sections if section.title == "Top operators").blocks[1]
    for row in table.rows:
        for cell in row:
            assert plain(cell) in page.text
    assert "opscope analyze x --output y" in page.text
    session, _, text = bert
    assert session_page(session, Summary(session).complete(), command="opscope analyze x --output y") == text


def test_scripts_run_by_hash_and_nothing_is_loaded(bert):
    _, page, text = bert
    (policy,) = [
        a["content"]
        for tag, a in page.elements
        if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    for attributes, content in page.raw:
        kind = attributes.get("type")
        script = gzip.decompress(base64.b64decode(content)).decode() if kind == "text/plain" else content
        if kind != "application/json":
            digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy
    assert not [tag for tag, a in page.elements if tag in {"link", "img", "iframe"} or "src" in a]
    assert not [a for _, a in page.elements if any(name.startswith("on") or name == "style" for name in a)]
    assert len(text.encode()) < MOST_BYTES


def markup(page):
    return [tag for tag, _ in page.elements if tag in {"script", "img", "svg", "style", "b"}]


@cases("name")
def test_hostile_names_stay_text(name, load):
    def page_of(word):
        session = load(hostile_trace(word))
        return session_page(session, Summary(session).complete(), command=f"opscope analyze '{word}'")

    text = page_of(name)
    page = _Page(text)
    assert markup(page) == markup(_Page(page_of("harmless")))
    assert not [a for _, a in page.elements if any(key.startswith("on") for key in a)]
    for unseen in "\x1b\x07\u202e":
        assert unseen not in text
    for figure in page.json("data").values():
        for word in figure.get("names", []):
            assert "<" not in word.replace("<br>", "")


def test_only_https_is_linked():
    links = (Link("good", "https://example.org/a"), Link("bad", "javascript:alert(1)"))
    document = Document("t", (), (Section("s", (Paragraph(links),)),))
    page = _Page(render_page(document))
    assert [a["href"] for tag, a in page.elements if tag == "a" and "rel" in a] == ["https://example.org/a"]
    assert "bad" in page.text


def test_without_operators_the_page_has_no_pictures(load):
    session = load(TraceBuilder().step(1, 0, 10))
    text = session_page(session, Summary(session).complete())
    assert _Page(text).json("data") == {}
    assert len(text) < 200_000


def test_pages_cost_other_verbs_nothing():
    code = "import sys, opscope, opscope.cli.analyze; assert not {'plotly', 'jinja2'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def figures(load, trace):
    session = load(trace)
    return _Page(session_page(session, Summary(session).complete())).json("data")


def test_memory_is_drawn_in_bytes(load):
    trace = hostile_trace("k")
    for start, allocated, reserved in ((5, 512, 4096), (50, 2048, 4096), (60, 1024, 4096)):
        args = {"Addr": 1, "Bytes": 512, "Device Type": 1, "Device Id": 0,
                "Total Allocated": allocated, "Total Reserved": reserved}  # fmt: skip
        trace.events.append(
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]",
             "pid": 1, "tid": 1, "ts": start,
             "args": args}
        )  # fmt: skip
    allocated_line, reserved_line = figures(load, trace)["memory"]["data"]
    assert allocated_line["y"] == [512, 2048, 1024]
    assert allocated_line["x"] == [0, 45, 55]
    assert reserved_line["y"] == [4096] * 3


def test_arrows_go_from_the_launch_to_its_kernel(load):
    figure = figures(load, hostile_trace("k"))["timeline"]
    (arrows,) = [one for one in figure["data"] if one["type"] == "scatter"]
    titles = figure["layout"]["yaxis"]["ticktext"]
    assert [titles[row] for row in arrows["y"][:2]] == ["runtime calls", "stream 7"]
    assert arrows["x"] == [5, 10, None]
