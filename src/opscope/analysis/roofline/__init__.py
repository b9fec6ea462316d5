"""How far every call, operator and kernel is from the device's limits, and what binds it."""

from opscope.analysis.roofline.measure import measure_efficiency

__all__ = ["measure_efficiency"]
