"""The papers' tables and figures: recipes, published numbers, and what came of running them."""
