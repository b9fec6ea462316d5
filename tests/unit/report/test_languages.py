"""Documents in another language; messages found in finished texts."""

from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.model.finding import Finding, Severity
from opscope.report import document
from opscope.report.languages import Catalog, Language, catalog, catalog_entries, language_of, translated
from opscope.report.markdown import render_markdown

LINK = document.Link("Blas.cpp:589", "https://example.org/Blas.cpp")
DOCUMENT = document.Document(
    "Profiling summary",
    (
        document.FactList(
            (("GPU busy", ("91.4 %; ", document.Strong("CPU-bound"), ": GPU alone 7 ms, CPU alone 3 ms")),)
        ),
    ),
    (
        document.Section(
            "Kernels",
            (
                document.Table(
                    (document.numeric("Device time"),),
                    (("1.2 ms",), (document.Code("Device time"),)),
                    "All device time",
                ),
                document.Paragraph(("Implemented in ", LINK)),
                document.BulletList((("a curiosity of ", document.Strong("nobody's words")),)),
                document.CodeBlock("Device time"),
                document.FindingList((Finding("a.b", Severity.WARNING, "3 warnings.", "Record it again."),)),
            ),
        ),
    ),
)


def test_words_are_translated_and_names_are_not():
    report = translated(DOCUMENT, Language.ZH)
    (facts,) = report.blocks
    table, place, bullets, code, findings = report.sections[0].blocks
    assert report.title == "性能分析汇总"
    assert facts == document.FactList(
        (("GPU 繁忙", ("91.4 %；", document.Strong("受限于 CPU"), "：仅 GPU 需 7 ms，仅 CPU 需 3 ms")),)
    )
    assert table.columns == (document.numeric("设备时间"),)
    assert table.rows == (("1.2 ms",), (document.Code("Device time"),))
    assert table.caption == "全部设备时间"
    assert LINK in place.text
    # No message holds these words.
    assert bullets == document.BulletList((("a curiosity of ", document.Strong("nobody's words")),))
    assert code == document.CodeBlock("Device time")
    assert "**警告**" in render_markdown(document.Document("", (findings,)))
    assert "3 条警告。重新记录。" in render_markdown(document.Document("", (findings,)))


def test_a_name_moves_with_its_word_and_english_stays():
    gradient = document.Paragraph(("Gradient of ", document.Code("self")))
    assert translated(document.Document("", (gradient,)), Language.ZH).blocks == (
        document.Paragraph((document.Code("self"), " 的梯度")),
    )
    assert translated(DOCUMENT, Language.EN) is DOCUMENT


def test_a_strangers_private_characters_are_no_names():
    text = ("Gradient of \ue001", document.Code("self"), "\ue000")
    (shown,) = translated(document.Document("", (document.Paragraph(text),)), Language.ZH).blocks
    assert document.plain(shown.text).count("self") == 1


@cases("environment", "language")
def test_the_first_that_says_a_language_decides(environment, language):
    assert language_of([None if one == "unset" else one for one in environment]) == language


KNOWN = Catalog((
    ("Device time", "设备时间"),
    ("{} of device time", "设备时间的 {}"),
    ("{} of {}", "{1} 中的 {0}"),
    ("{} kernels", "{} 个内核"),
    ("{} takes {}", "{0} 占 {1}"),
    ("Compared with {}", "对比 {}"),
    ("the host waits", "主机等待"),
    ("launched by {}", "由 {} 启动"),
    ("not recorded", "未记录"),
))  # fmt: skip


@cases("text", "expected")
def test_a_text_is_found_by_its_messages(text, expected):
    assert KNOWN.translate(text) == expected


@given(st.text(alphabet=" ,.;:()abz0{}\ue000[", max_size=60))
def test_any_text_comes_to_an_end(text):
    found = catalog(Language.ZH).translate(text)
    assert found is None or isinstance(found, str)


def test_a_long_list_of_a_strangers_names_is_left_alone():
    assert KNOWN.translate(", ".join(["not a word of ours"] * 100)) is None
    assert KNOWN.translate(", ".join(["not a word of ours"] * 10_000)) is None


def test_what_has_no_translation_is_left_out_and_clauses_stand_for_themselves():
    files = {"a.py": {"{} launch": "{} 次启动", "new": ""}, "b.py": {"late; idle": "迟到；空闲"}}
    assert dict(catalog_entries(files)) == {
        "{} launch": "{} 次启动", "late; idle": "迟到；空闲", "late": "迟到", "idle": "空闲"
    }  # fmt: skip
