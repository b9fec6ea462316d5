"""Time on device and host: what each device did at every nanosecond of its span, and why it waited."""
