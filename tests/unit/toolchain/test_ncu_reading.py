"""A real report of five kernels on an H200, read in full; and every way a file can be wrong."""

import gzip
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from opscope.errors import DependencyError, InputError
from opscope.toolchain import ncu_report as reading
from opscope.toolchain.ncu_report import MAGIC, Dimension, Quantity, is_report, read_report

needs_reader = pytest.mark.skipif(find_spec("ncu_report") is None, reason="ncu-report is not installed")


@pytest.fixture(scope="module")
def packed(shared):
    return shared / "ncu" / "ops.ncu-rep.gz"


@pytest.fixture(scope="module")
def content(packed):
    return gzip.decompress(packed.read_bytes())


@pytest.fixture(scope="module")
def report(packed):
    return read_report(packed)


def kernel(report, function):
    return next(one for one in report.kernels if one.function == function)


@needs_reader
def test_stall_reasons_longest_first_and_summing_to_one(report):
    for one in report.kernels:
        shares = list(one.stall_fractions.values())
        assert shares == sorted(shares, reverse=True)
        assert sum(shares) == pytest.approx(1.0)
        # ncu's own sum, counted in another way.
        assert sum(one.stalls.values()) == pytest.approx(one.ratio(Quantity.WARP_LATENCY), rel=0.01)
    assert next(iter(kernel(report, "elementwise_kernel").stalls)) == "long_scoreboard"


@needs_reader
@pytest.mark.parametrize("share", [0.0001, 0.2, 0.5, 0.999])
def test_a_report_cut_off_is_an_error(content, tmp_path, share):
    file = tmp_path / "cut.ncu-rep"
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match=r"cut off|damaged"):
        read_report(file)


@needs_reader
def test_errors_name_the_packed_file(content, packed, tmp_path):
    cut = tmp_path / "cut.ncu-rep.gz"
    cut.write_bytes(packed.read_bytes()[:100_000])
    with pytest.raises(InputError, match="cannot be unpacked") as caught:
        read_report(cut)
    assert caught.value.source == str(cut)
    short = tmp_path / "short.ncu-rep.gz"
    short.write_bytes(gzip.compress(content[:100_000], compresslevel=1))
    with pytest.raises(InputError, match="cut off") as caught:
        read_report(short)
    assert caught.value.source == str(short)


@needs_reader
@pytest.mark.parametrize(
    "tail",
    [
        b"\x02\0\0\0\x08\x07",
        b"\x02\0\0\0\x08\x63" + bytes(32),
        b"\x02\0\0\0\x08\x07\x04\0\0\0\x10\x03\x28\x03" + bytes(3),
    ],
    ids=["no block", "another version", "results that are none"],
)
def test_a_report_the_reader_finds_nothing_in(tmp_path, tail):
    file = tmp_path / "a.ncu-rep"
    file.write_bytes(MAGIC + tail)
    with pytest.raises(InputError, match=r"finds no results.*profiled no kernel.*another version"):
        read_report(file)


@needs_reader
def test_no_file_and_no_report(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_report(tmp_path / "none.ncu-rep")
    with pytest.raises(InputError, match="cannot be read"):
        read_report(tmp_path)
    other = tmp_path / "a.ncu-rep"
    other.write_text("hello")
    with pytest.raises(InputError, match="not a report"):
        read_report(other)


def test_without_the_reader_the_install_line_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(DependencyError, match=r"pip install 'opscope\[ncu\]'"):
        read_report(tmp_path / "a.ncu-rep")


def metric(value, unit):
    return SimpleNamespace(has_value=lambda: value is not None, value=lambda: value, unit=lambda: unit)


def values(metrics):
    made = {name: metric(*one) for name, one in metrics.items()}
    action = SimpleNamespace(metric_names=lambda: tuple(made), metric_by_name=made.get)
    return reading._values(reading._Metrics(action))


def test_units_are_converted_and_an_unknown_one_leaves_the_metric_unread():
    assert values({"gpu__time_duration.sum": (1.5, "usecond")}) == {Quantity.DURATION: 1500}
    assert values({"gpu__time_duration.sum": (1.5, "fortnight")}) == {}
    assert values({"dram__bytes_read.sum": (2.0, "Mbyte")}) == {Quantity.DRAM_READ_BYTES: 2_000_000}
    assert values({"lts__t_sectors.sum": (10.0, "sector")}) == {Quantity.L2_BYTES: 320}
    assert values({"sm__throughput.avg.pct_of_peak_sustained_elapsed": (None, "%")}) == {}
    assert reading._converted((50.0, ""), Dimension.FRACTION) is None


def test_bytes_of_device_memory_from_their_parts_or_their_rate():
    parts = values({"dram__bytes_op_read.sum": (100.0, "byte"), "dram__bytes_op_write.sum": (20.0, "byte")})
    assert parts[Quantity.DRAM_BYTES] == 120
    rate = {"dram__bytes.sum.per_second": (2e12, "byte/s"), "gpu__time_duration.sum": (1000.0, "ns")}
    assert values(rate)[Quantity.DRAM_BYTES] == 2_000_000


def test_what_is_taken_for_a_report(tmp_path):
    other = tmp_path / "renamed"
    other.write_bytes(MAGIC + b"...")
    script = tmp_path / "script.sh"
    script.write_text("#!/bin/sh\n")
    assert is_report(other)
    assert is_report("missing.ncu-rep")
    assert is_report("missing.ncu-rep.gz")
    assert not is_report(script)
    assert not is_report("python")
