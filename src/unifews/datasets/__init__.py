"""Graphs to work on: generated ones here; loaders of real ones beside them."""
