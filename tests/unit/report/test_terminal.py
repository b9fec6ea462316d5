import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from opscope.report.analysis import recording_document
from opscope.report.document import Code, Column, Document, FactList, Link, Section, Table, numbered, numeric
from opscope.report.names import fitting_names, least_width, shorten_middle
from opscope.report.terminal import column_widths, fit_widths, render_terminal

from .conftest import rendered


@pytest.mark.parametrize("width", [80, 100, 120, 160, 200])
def test_no_line_is_wider_than_the_console_and_no_number_is_cut(summary, width):
    text = rendered(recording_document(summary), width)
    assert max(map(len, text.splitlines())) <= width
    for number in ("6.00 ms", "60.0 %", "999,999 ns", "800 µs"):
        assert number in text
    assert "before_window" in text


def test_names_shrink_where_they_must_and_still_differ(summary):
    kernel = summary.kernels[0]
    narrow, wide = (rendered(recording_document(summary), width) for width in (80, 200))
    assert "sm80_xmma_gemm…128x64x8" in narrow
    assert (kernel.name in narrow, kernel.name in wide) == (False, True)
    twin = replace(kernel, name=kernel.name.replace("tilesize128", "tilesize64"))
    text = rendered(recording_document(summary.having(kernels=(kernel, twin))), 100)
    assert "128x64x8" in text and "64x64x8" in text


def test_names_are_text_and_the_full_report_renders_too(summary, cpu_summary):
    for name, shown in (("evil\x1b[2J\u202e" * 20, "evil"), ("[bold]x[/bold]", "[bold]x[/bold]")):
        operator = replace(summary.operators[0], name=name)
        text = rendered(recording_document(summary.having(operators=(operator,))), 120)
        assert shown in text
        assert not {"\x1b", "\u202e"} & set(text)
    assert "4.1 aten::addmm" in rendered(numbered(recording_document(summary, is_full=True)), 120)
    assert "ranked by CPU time" in rendered(recording_document(cpu_summary, is_full=True), 80)


PAGE = "https://github.com/pytorch/pytorch/blob/0123/aten/src/ATen/native/Linear.cpp#L73-L80"


@pytest.mark.parametrize(
    ("address", "is_linked"), [(PAGE, True), ("https://x.org/\x1b]8;;evil", False), ("file:///etc", False)]
)
def test_a_link_opens_only_a_plain_page(address, is_linked):
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system="truecolor")
    console.print(render_terminal(Document("t", (FactList((("File", Link("Linear.cpp:73", address)),)),))))
    assert ("\x1b]8;" in stream.getvalue()) is is_linked
    assert (PAGE in stream.getvalue()) is is_linked
    assert "Linear.cpp:73" in stream.getvalue()


def test_a_long_link_shrinks_as_a_name_does():
    file = "aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels/cutlassF_f32_aligned.cu:71"
    table = Table((Column("File"), Column("Known from")), ((Link(file, PAGE), "neighbor_version"),))
    for document in (Document("", (FactList((("File", Link(file, PAGE)),)),)), Document("", (table,))):
        text = rendered(document, 60)
        assert "aten/src" in text
        assert "aligned.cu:71" in text
        assert max(map(len, text.splitlines())) <= 60
    assert "neighbor_version" in rendered(Document("", (table,)), 60)


def test_a_name_that_must_be_whole_is_wrapped_and_not_cut():
    name = "function<" + "a" * 150 + ">"
    whole = rendered(Document("", (FactList((("Name", Code(name, is_whole=True)),)),)), 60)
    assert "…" not in whole
    assert whole.count("a") == 150 + 1  # and the one of the label
    assert rendered(Document("", (FactList((("Name", Code(name)),)),)), 60).count("a") == 1


NUMBER = column_widths(Column("Self time", is_number=True), ["1.00 ms"])
NAME = column_widths(Column("Kernel"), [Code("k" * 50)])
TEXT = column_widths(Column("Meaning"), ["several short words"])


def test_columns_shrink_in_turn_and_numbers_never():
    assert fit_widths([NUMBER, NAME, TEXT], 100) == [9, 50, 19]
    for width in (40, 22):  # headings wrap, texts narrow, then names and texts shrink
        widths = fit_widths([NUMBER, NAME, TEXT], width)
        assert (widths[0], sum(widths)) == (len("1.00 ms"), width)
    operator = column_widths(Column("Operator"), [Code("aten::native_layer_norm")])
    assert fit_widths([operator, NAME], 30) == [23, 7]
    longer = column_widths(Column("Operator"), [Code("aten::scaled_dot_product_attention")])
    assert fit_widths([longer, NAME, NUMBER], 50) == [27, 15, 7]
    assert fit_widths([NUMBER, NAME], 5)[0] == 7
    shortened = [shorten_middle(*one) for one in (("abcdefghij", 5), ("abc", 3), ("abc", 1))]
    assert shortened == ["ab…ij", "abc", "…"]


@pytest.mark.parametrize(("width", "hidden"), [(60, ()), (44, ("Least",)), (35, ("Spare", "Least"))])
def test_spare_columns_go_before_names_are_cut_and_are_named(width, hidden):
    columns = (Column("Name"), numeric("Spare", spare=True), numeric("Key"), numeric("Least", spare=True))
    name = "a_name_of_20_letters"
    row = (Code(name), "1,000,000", "2,000,000", "3,000,000")
    text = rendered(Document("", sections=(Section("", (Table(columns, (row,)),)),)), width)
    assert name in text
    assert "2,000,000" in text
    assert ("3,000,000" in text, "1,000,000" in text) == ("Least" not in hidden, "Spare" not in hidden)
    assert ("Hidden at this width: " in text) is bool(hidden)
    assert all(one in text.partition("Hidden at")[2] for one in hidden)


def test_names_that_would_read_the_same_show_where_they_part():
    names = [f"{'prefix' * 5}_{part}_{'suffix' * 5}" for part in ("128x64", "64x64")]
    first, second = fitting_names(names, 30)
    assert first.endswith("…128x64")
    assert second.endswith("…64x64")
    assert max(len(first), len(second)) <= 30
    assert fitting_names([names[0], names[0]], 30) == [shorten_middle(names[0], 30)] * 2


def test_the_telling_part_of_kernels_is_kept_and_operators_whole():
    kernel = "void at::native::{}_kernel<{}, at::native::GeluCUDAKernelImpl(x)::{{lambda()#2}}, a>(int, b)"
    names = [kernel.format("vectorized_elementwise", lanes) for lanes in (4, 8)]
    assert fitting_names(names[:1], 60) == ["vectorized_elementwise_kernel<… GeluCUDAKernelImpl …>"]
    assert fitting_names(names, 30) == ["GeluCUDAKernelImpl…4", "GeluCUDAKernelImpl…8"]
    alike = [kernel.format("vectorized_elementwise", 4), kernel.format("vectorized_elementwise", 4) + "(1)"]
    assert len(set(fitting_names(alike, 24))) == 2
    assert all(one.startswith("GeluCUDA") for one in fitting_names(alike, 24))
    wrapped = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x4_tn_align8>(X)"
    assert fitting_names([wrapped], 36) == ["cutlass_80_tensorop…128x64_64x4"]
    operator = "aten::_scaled_dot_product_efficient_attention_backward"
    assert fitting_names([operator], 12) == [operator]
    assert least_width([operator, *names]) == len(operator)
    assert max(map(len, fitting_names(["x" * 1_000_000, "y" * 5000], 30))) <= 30
