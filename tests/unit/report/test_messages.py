from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opscope.report.languages import Language, catalog
from opscope.report.messages import Catalog, catalog_entries

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


@pytest.mark.parametrize(
    "case",
    [
        ("Device time", "设备时间"),
        ("  Device time ", "  设备时间 "),
        ("Device time.", "设备时间。"),
        ("12.5 % of device time", "设备时间的 12.5 %"),
        # What stands in a place is translated too, and the template may turn places around.
        ("gelu takes 3 kernels", "gelu 占 3 个内核"),
        ("3 of 8", "8 中的 3"),
        # The template that explains most; a short one explains no sentence.
        ("aten::mm takes 12.5 % of device time", "aten::mm 占设备时间的 12.5 %"),
        ("a matter of great taste", None),
        # Clause by clause; names in a row are enumerated.
        ("the host waits; 3 kernels, not recorded", "主机等待；3 个内核，未记录"),
        ("The host waits: not recorded. 8 kernels.", "主机等待：未记录。8 个内核。"),
        ("launched by mm, bmm and gelu", "由 mm、bmm 和 gelu 启动"),
        ("3 kernels (not recorded)", "3 个内核（未记录）"),
        ("3 kernels (exact)", "3 个内核 (exact)"),
        # Names and numbers are themselves; an unknown word leaves a text alone.
        ("1.2 ms", "1.2 ms"),
        ("void at::native::f<float, 4>(int)", None),
        ("Compared with NVIDIA GeForce RTX 4090", "对比 NVIDIA GeForce RTX 4090"),
        ("Compared with what nobody knows", None),
        ("3 kernels, which nobody knows", None),
    ],
)
def test_a_text_is_found_by_its_messages(case: tuple[str, str | None]) -> None:
    text, expected = case
    assert KNOWN.translate(text) == expected


@given(st.text(alphabet=" ,.;:()abz0{}\ue000[", max_size=60))
def test_any_text_comes_to_an_end(text: str) -> None:
    found = catalog(Language.ZH).translate(text)
    assert found is None or isinstance(found, str)


def test_a_long_list_of_a_strangers_names_is_left_alone() -> None:
    assert KNOWN.translate(", ".join(["not a word of ours"] * 100)) is None
    assert KNOWN.translate(", ".join(["not a word of ours"] * 10_000)) is None


def test_both_forms_of_a_plural_have_the_translation() -> None:
    file = 'msgid ""\nmsgstr ""\n\nmsgid "{} launch"\nmsgid_plural "{} launches"\nmsgstr[0] "{} 次启动"\n'
    unknown = 'msgid "new \\"word\\""\nmsgstr ""\n'
    assert list(catalog_entries(f"{file}\n{unknown}")) == [
        ("{} launch", "{} 次启动"),
        ("{} launches", "{} 次启动"),
    ]
