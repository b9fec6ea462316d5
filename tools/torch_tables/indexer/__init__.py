"""Reads source trees, headers and libraries of PyTorch into tables, which are packaged.

Everything else looks facts up in such tables; only the headers of an installed torch are read here on demand.
"""
