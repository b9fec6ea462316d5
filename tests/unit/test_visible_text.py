"""Names as they are seen, and commands without secrets."""

from case_tables import cases
from opscope.visible_text import visible, without_secrets


@cases("name", "seen")
def test_what_cannot_be_seen_is_written(name, seen):
    assert visible(name) == seen
    assert visible("lone \ud800") == "lone ⟨U+D800⟩"


def test_the_middle_of_a_long_name_is_counted():
    assert visible("a" * 50 + "b" * 50, 40) == "a" * 30 + " … 60 characters … " + "b" * 10


@cases("arguments", "shown")
def test_secrets_are_left_out_of_commands(arguments, shown):
    assert without_secrets(arguments) == shown
