"""What a recorded call must do at least: floating-point operations and bytes, from its recorded arguments."""
