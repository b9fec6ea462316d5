"""What to change: findings with evidence, estimated gain and the change to try; silent when all is well."""

from opscope.advice.engine import advise, assess

__all__ = ["advise", "assess"]
