"""Edits of sources, and that what cannot be edited is left alone."""

import pytest

from case_tables import cases
from opscope.trials.patches import after_imports, edited, unified_diff, where_given, with_keywords

FUSED = with_keywords(("AdamW", "SGD"), "foreach", fused="True")


@cases("before", "after")
def test_keywords_are_set_where_a_function_is_called(before, after):
    assert edited(before, [FUSED]) == after


def test_lines_follow_the_imports_of_torch():
    setting = after_imports("torch.backends.cudnn.benchmark = True")
    source = "import torch\nfrom torch import nn\nimport os\n\nx = 1\n"
    found = edited(source, [setting])
    assert found == (
        "import torch\nfrom torch import nn\ntorch.backends.cudnn.benchmark = True\nimport os\n\nx = 1\n"
    )
    assert unified_diff(source, found, "train.py").splitlines()[:3] == [
        "--- a/train.py",
        "+++ b/train.py",
        "@@ -1,5 +1,6 @@",
    ]


def test_a_keyword_is_replaced_where_it_is_given_and_several_changes_are_one_edit():
    sdpa = where_given("attn_implementation", "'sdpa'")
    source = "m = make(c, attn_implementation='eager')\nt = Tokenizer(c)\n"
    assert edited(source, [sdpa]) == "m = make(c, attn_implementation='sdpa')\nt = Tokenizer(c)\n"
    assert edited("m = make(c)\n", [sdpa]) is None
    source = "import torch\no = torch.optim.SGD(p)\n"
    both = edited(source, [after_imports("torch.x = 1"), FUSED])
    assert both == "import torch\ntorch.x = 1\no = torch.optim.SGD(p, fused=True)\n"


@pytest.mark.parametrize(
    "source", ["o = make(p)\n", "AdamW = 1\n", "o = AdamW(\n", "import torch as t\n", "a\0b"]
)
def test_what_finds_no_place_edits_nothing(source):
    assert edited(source, [FUSED]) is None
    assert edited(source, [after_imports("torch.x = 1")]) is None
