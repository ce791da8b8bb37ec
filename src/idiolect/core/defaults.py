"""What a study takes where neither its settings nor its data decide."""

from __future__ import annotations

USUAL_DATASET = "digits"
USUAL_CLIENTS = 20
USUAL_PARTITION = "dirichlet:alpha=0.3"
