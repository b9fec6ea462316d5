"""What to change: findings with evidence, estimated gain and the change to try; silent when all is well."""

from opscope.advice.assessment import assess
from opscope.advice.engine import advise

__all__ = ["advise", "assess"]
