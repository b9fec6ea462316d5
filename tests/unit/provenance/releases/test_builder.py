from __future__ import annotations

import pytest

from opscope.errors import InputError
from opscope.provenance.indexer import units as builder
from opscope.provenance.indexer.units import build_table
from opscope.provenance.releases.table import LooseKeys, ReleaseTable
from opscope.provenance.releases.table_file import Unit

OWNED = "void at::launch<at::{}(at::Iterator&)::{{lambda()#1}}, {}>(int)"


def test_a_kernel_of_several_units_has_them_all_and_one_of_none_is_left_out(make_table):
    table = ReleaseTable(make_table({"at::f()": ["aten/F.cu", "G.cu"], "at::g()": ["G.cu"], "at::h()": []}))
    assert table.units_of("at::f()") == ("G.cu", "aten/F.cu")
    assert table.units_of("at::g()") == ("G.cu",)
    assert table.units_of("at::h()") == ()
    assert table.kernel_count == 2


def test_units_of_one_name_are_told_apart_by_their_paths(make_table):
    table = ReleaseTable(
        make_table({"at::f()": ["aten/cuda/SoftMax.cu"], "at::g()": ["aten/sparse/SoftMax.cu"]})
    )
    assert table.units_of("at::f()") == ("aten/cuda/SoftMax.cu",)
    assert table.units_of("at::g()") == ("aten/sparse/SoftMax.cu",)


def test_the_owner_of_the_lambda_names_the_file_whatever_launches_it(make_table):
    table = ReleaseTable(
        make_table({OWNED.format("gelu", "int"): ["Gelu.cu"], OWNED.format("silu", "int"): ["Silu.cu"]})
    )
    assert table.loose_units_of(OWNED.format("gelu", "float")) == ("Gelu.cu",)
    assert table.loose_units_of(OWNED.format("gelu", "float").replace("launch", "launch_anew")) == (
        "Gelu.cu",
    )


def test_an_owner_the_release_does_not_have_is_not_replaced_by_its_launcher(make_table):
    table = ReleaseTable(make_table({OWNED.format("gelu", "int"): ["Gelu.cu"]}))
    assert table.loose_units_of(OWNED.format("extension", "int")) == ()


def test_an_owner_in_several_files_leaves_it_to_the_launcher(make_table):
    table = ReleaseTable(
        make_table(
            {
                OWNED.format("helper", "at::F<int>"): ["A.cu"],
                OWNED.format("helper", "at::G<int>"): ["B.cu"],
            }
        )
    )
    assert table.loose_units_of(OWNED.format("helper", "at::F<float>")) == ("A.cu",)
    assert table.loose_units_of(OWNED.format("helper", "at::H<float>")) == ()


def test_a_launcher_in_several_files_answers_nothing(make_table):
    table = ReleaseTable(make_table({"void at::k<int>()": ["A.cu"], "void at::k<long>()": ["B.cu"]}))
    assert table.loose_units_of("void at::k<float>()") == ()


def test_names_that_share_a_hash_are_found_when_the_table_is_made(monkeypatch):
    monkeypatch.setattr(builder, "text_hash", lambda name: 7)
    with pytest.raises(InputError, match=r"share the hash 0x7: 'at::f\(\)' and 'at::g\(\)'"):
        build_table({"at::f()": [Unit("F.cu")], "at::g()": [Unit("F.cu")]}, "2.11.0")


def test_loose_keys_that_share_a_hash_are_found_too(monkeypatch):
    monkeypatch.setattr(LooseKeys, "hashes", lambda keys: {"launch": 7})
    with pytest.raises(InputError, match="share the hash"):
        build_table({"at::f()": [Unit("F.cu")], "at::g()": [Unit("F.cu")]}, "2.11.0")


@pytest.mark.parametrize(("limit", "message"), [("SEVERAL_UNITS", "3 units"), ("LARGEST_VALUE", "3 sets")])
def test_more_than_the_format_can_count_is_refused(monkeypatch, limit, message):
    monkeypatch.setattr(builder, limit, 2)
    kernels = {f"at::{name}()": [Unit(f"{name}.cu")] for name in "abc"}
    with pytest.raises(InputError, match=message):
        build_table(kernels, "2.11.0")


def test_a_mangled_name_is_found_by_what_a_trace_shows_for_it(make_table):
    table = ReleaseTable(make_table({"at::native::kernel()": ["K.cu"], "_ZN3odd": ["Odd.cu"]}))
    assert table.units_of("_ZN2at6native6kernelEv") == ("K.cu",)
    assert table.loose_units_of("_ZN2at6native6kernelEv") == ("K.cu",)
    assert table.units_of("_ZN3odd") == ("Odd.cu",)


def test_an_empty_table_knows_nothing(make_table):
    table = ReleaseTable(make_table({}))
    assert table.units_of("at::f()") == table.loose_units_of("at::f()") == ()
