"""The papers' tables and figures: recipes, published numbers, and the numbers measured here."""
