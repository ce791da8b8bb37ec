"""A file for each method, the registry that finds them, and what a method sends, keeps and needs (``profile``)."""

from idiolect.methods.registry import Entry, build, code, get, names, ours, settle, working

__all__ = ["Entry", "build", "code", "get", "names", "ours", "settle", "working"]
