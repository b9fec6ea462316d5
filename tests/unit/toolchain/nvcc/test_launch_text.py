"""Launches whose sizes the source writes as small numbers."""

from __future__ import annotations

import pytest

from opscope.toolchain.nvcc.findings import WrittenLaunch, small_launches


@pytest.mark.parametrize(
    ("source", "blocks", "threads", "text"),
    [
        ("add<<<1, 1>>>(n, x, y);", 1, 1, "add<<<1, 1>>>"),
        ("add<float, 4><<<1,256>>>(n);", 1, 256, "add<<<1, 256>>>"),
        ("add <<< grid(n, 2), 16, 0, stream >>> (n);", None, 16, "add<<<…, 16>>>"),
        ("add<<<dim3(1), dim3{8}>>>(n);", 1, 8, "add<<<1, 8>>>"),
        ("add<<<1u,\n  threads>>>(n);", 1, None, "add<<<1, …>>>"),
    ],
)
def test_small_launches_are_found(source, blocks, threads, text):
    (launch,) = small_launches(source)
    assert launch == WrittenLaunch("add", 1, blocks, threads)
    assert launch.text == text


@pytest.mark.parametrize(
    "source",
    [
        "add<<<blocks, threads>>>(n);",
        "add<<<(n + 255) / 256, 256>>>(n);",
        "add<<<dim3(1, n), 256>>>(n);",
        "// add<<<1, 1>>>(n);",
        "/* add<<<1, 1>>>\n(n); */",
        'puts("add<<<1, 1>>>");',
        "int x = 1 << 20;",
        "add<<<1>>>(n);",
        "",
    ],
)
def test_others_are_not(source):
    assert small_launches(source) == ()


def test_lines_are_those_of_the_file_and_the_same_launch_is_told_once():
    source = "/* one\n two */\n// three\nadd<<<1, 1>>>(n); add<<<1, 1>>>(n);\nscale<<<1, 1>>>(n);\n"
    assert [(one.kernel, one.line) for one in small_launches(source)] == [("add", 4), ("scale", 5)]
