"""Reads source trees, headers and libraries of PyTorch into tables: what `opscope index` adds.

Everything else looks facts up in such tables; only the headers of an installed torch are read here on demand.
"""
