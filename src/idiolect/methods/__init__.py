"""One file per published method, and the registry that finds them."""

from idiolect.methods.registry import Entry, build, code, get, names, ours, settle, working

__all__ = ["Entry", "build", "code", "get", "names", "ours", "settle", "working"]
