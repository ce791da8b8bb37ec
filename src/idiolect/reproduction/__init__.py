"""The papers' tables and figures: recipes, published numbers, numbers measured here, and why two runs differ."""
