from __future__ import annotations

from opscope.report.html.languages import page_words


def test_an_element_is_a_message_whose_places_are_its_elements() -> None:
    page = (
        "<head><title>Kernels</title></head><body><h2 aria-label='Overview'>Kernels</h2>"
        "<p>Gradient of <code>Overview</code></p>"
        "<td>91.4 %; <strong>CPU-bound</strong>: most in gelu<br></td>"
        "<pre>Kernels launched</pre><p>nobody knows these words</p><p>12 ms</p>"
    )
    assert page_words(page, ["Copied"]) == {
        "Overview": "概览",
        "Kernels": "内核",
        "Gradient of \ue000": "\ue000 的梯度",
        "91.4 %; \ue000: most in gelu\ue001": "91.4 %；\ue000：最多的是 gelu\ue001",
        "CPU-bound": "受限于 CPU",
        "Light": "浅色",
        "Dark": "深色",
        "Copied": "已复制",
        "\ue000Copied": "\ue000已复制",
        "Copy": "复制",
    }
