from pathlib import Path

import pytest

from case_tables import cases

torch = pytest.importorskip("torch")

from opscope.errors import InputError  # noqa: E402
from opscope.workloads.target import failure_place, load_module, resolve  # noqa: E402
from opscope.workloads.workload import WorkloadOptions  # noqa: E402

pytestmark = pytest.mark.torch

PROGRAM = Path(__file__).with_name("program.txt").read_text(encoding="utf-8")


@pytest.fixture
def program(tmp_path):
    (tmp_path / "sibling_of_program.py").write_text("")
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def build(target, batch_size=2, seq_len=4, **options):
    return resolve(str(target), WorkloadOptions(device="cpu", **options)).build(batch_size, seq_len)


def test_a_function_without_parameters_is_the_step(program):
    workload = build(f"{program}:step")
    assert workload.step() == [True]
    assert workload.step() == [True, True]
    assert workload.description["workload"] == "program.py:step"
    assert workload.parameter_count is None
    assert build(f"{program}:Group.inner").step() == "inner"


def test_a_factory_gets_the_parameters_it_names(program):
    made, layers = build(f"{program}:factory", dtype="bf16").step()
    assert (made.shape, made.dtype, layers) == ((2,), torch.bfloat16, 3)
    assert build(f"{program}:factory", layers=5).step()[1] == 5


def test_a_module_and_its_inputs_are_placed_and_run_in_inference_mode(program):
    workload = build(f"{program}:module", dtype="bf16")
    output = workload.step()
    assert (output.shape, output.dtype, output.is_inference()) == ((2, 2), torch.bfloat16, True)
    assert workload.parameter_count == 10
    assert build(f"{program}:module_by_keyword").step().shape == (2, 2)


def test_a_module_with_a_loss_is_trained_and_a_whole_workload_taken_as_it_is(program):
    workload = build(f"{program}:trainable", train=True)
    assert float(workload.step()) > float(workload.step())
    with pytest.raises(InputError, match="without a loss"):
        build(f"{program}:module", train=True).step()
    assert build(f"{program}:whole").parameter_count == 7


def test_training_is_never_only_claimed(program):
    assert build(f"{program}:trained_by_itself", train=True).step() is True
    for name in ("step", "factory"):
        with pytest.raises(InputError, match="train"):
            build(f"{program}:{name}", train=True)


@cases("name", "message")
def test_what_a_factory_cannot_return(program, name, message):
    with pytest.raises(InputError, match=message):
        build(f"{program}:{name}")


@cases("name", "message")
def test_what_is_no_target(program, name, message):
    with pytest.raises(InputError, match=message):
        resolve(f"{program.parent}/{name}", WorkloadOptions(device="cpu"))


@cases("text", "message")
def test_a_failing_import_is_told_with_its_line(tmp_path, text, message):
    file = tmp_path / "broken.py"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        resolve(f"{file}:f")
    assert caught.value.source == str(file)


def test_modules_of_the_working_folder_are_found(tmp_path, monkeypatch):
    (tmp_path / "my_package_of_steps").mkdir()
    (tmp_path / "my_package_of_steps" / "steps.py").write_text("def step(): return 'here'\n")
    (tmp_path / "my_broken_steps.py").write_text("1 / 0\n")
    (tmp_path / "my_incomplete_steps.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.chdir(tmp_path)
    assert build("my_package_of_steps.steps:step").step() == "here"
    with pytest.raises(InputError, match=r"my_broken_steps.py line 1 \(ZeroDivisionError"):
        build("my_broken_steps:step")
    with pytest.raises(InputError, match=r"no_such_module_anywhere"):
        build("my_incomplete_steps:step")
    with pytest.raises(InputError, match=r"no module 'my_package_of_steps\.none'"):
        build("my_package_of_steps.none:step")
    with pytest.raises(InputError, match="there is no module 'no_such_module_anywhere'"):
        build("no_such_module_anywhere:step")


def test_two_files_of_one_name_stay_apart(tmp_path, program):
    other = tmp_path / "other" / program.name
    other.parent.mkdir()
    other.write_text("def step(): return 'other'\n")
    names = {load_module(str(file), hint="").__name__ for file in (program, other)}
    assert len(names) == 2


def test_the_place_of_an_error_is_its_last_line_in_the_file():
    with pytest.raises(InputError, match="names no function") as caught:
        resolve("nonsense:")
    assert failure_place(caught.value, Path(__file__)) is not None
    assert failure_place(caught.value, Path("elsewhere.py")) is None
    assert failure_place(caught.value, None).startswith("target.py line")
