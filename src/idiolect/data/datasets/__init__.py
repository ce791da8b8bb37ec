"""Data sets by name: which there are, and how they are read and kept."""
