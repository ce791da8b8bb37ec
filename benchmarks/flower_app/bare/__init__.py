"""An app of Flower that carries bytes and does nothing with them: see ``benchmarks/federation.py``."""
