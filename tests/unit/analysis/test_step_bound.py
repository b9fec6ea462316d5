from case_tables import cases
from opscope.analysis.step_model import StepExecution


@cases("step_ns", "host_ns", "device_ns", "bound")
def test_which_side_decides(step_ns, host_ns, device_ns, bound):
    one = StepExecution(0, 110, step_ns, (step_ns, step_ns), host_ns, device_ns, 0.0, None, 0, ())
    assert one.bound == bound
