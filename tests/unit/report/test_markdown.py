import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from case_tables import cases
from opscope.report.document import Code, Column, Document, Link, Paragraph, Section, Table
from opscope.report.markdown import render_markdown
from opscope.visible_text import visible

NAMES = [
    "void f<4, g(int&)::{lambda()#1}, std::array<char*, 2ul> >(int, |a|, `b`)",
    "a|b",
    "a\\|b",
    "`edge`",
    "```",
    "<script>alert(1)</script>",
    "aten::_softmax_",
    "&lt;not an entity&gt;",
    "[link](http://x) *bold* ~~gone~~ $x$",
]


def parse(markdown):
    return MarkdownIt("commonmark").enable("table").enable("strikethrough").parse(markdown)


def words(tokens):
    """The text a reader sees in each inline run."""
    return [
        "".join(child.content for child in token.children or ()) for token in tokens if token.type == "inline"
    ]


def pages(tokens):
    """Where the links lead."""
    children = [child for token in tokens for child in token.children or ()]
    return [child.attrs["href"] for child in children if child.type == "link_open"]


def table_of(*cells):
    columns = tuple(Column(f"c{index}") for index, _ in enumerate(cells))
    return render_markdown(Document("t", (Table(columns, (cells,)),)))


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_table_reads_as_recorded(name):
    tokens = parse(table_of(Code(name), name))
    assert words(tokens)[-2:] == [name, name]
    assert sum(token.type == "td_open" for token in tokens) == 2


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_a_heading_and_a_paragraph_reads_as_recorded(name):
    document = Document(name, (Paragraph((Code(name), " and ", name)),), (Section(name, number="4.1"),))
    tokens = parse(render_markdown(document))
    assert words(tokens) == [name, f"{name} and {name}", f"4.1 {name}"]
    assert not any(token.type.startswith(("html", "link")) for token in tokens)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp", "Zs"]), min_size=1))
def test_any_name_survives_as_code_in_a_table(name):
    assert words(parse(table_of(Code(name))))[-1] == visible(name)


@pytest.mark.parametrize("text", ["# title", "- item", "1. item", "> quote", "---", "+ item", "=== x"])
def test_a_paragraph_never_becomes_another_block(text):
    tokens = parse(render_markdown(Document("t", (Paragraph("before"), Paragraph(text)))))
    opened = [token.type for token in tokens if token.type.endswith("_open")]
    assert opened == ["heading_open", "paragraph_open", "paragraph_open"]
    assert words(tokens)[-1] == text


@pytest.mark.parametrize("name", [*NAMES, "a/b.cu:12", "](evil)"])
def test_a_link_reads_as_recorded_and_opens_its_page(name):
    page = "https://example.org/a%20b/file.cu#L1-L9"
    alone = render_markdown(Document("t", (Paragraph(Link(name, page)),)))
    for tokens in map(parse, (table_of(Link(name, page)), alone)):
        assert (words(tokens)[-1], pages(tokens)) == (name, [page])


@cases("address", "opened")
def test_an_address_cannot_break_out_and_is_a_page(address, opened):
    tokens = parse(table_of(Link("name", address)))
    assert pages(tokens) == ([] if opened is None else [opened])
    assert words(tokens)[-1] == "name"


def test_names_that_are_empty_or_hold_control_characters_are_shown():
    assert words(parse(table_of("a\nb\x1b[31m", Code("x\r\ny"))))[-2:] == ["a b [31m", "x y"]
    assert "(empty)" in table_of(Code(""))


def test_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="2 cells in a table of 1"):
        Table((Column("n"),), (("1", "2"),))
