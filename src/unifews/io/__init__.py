"""Graphs, matrices and tables from files: edge lists, identifiers, and sorting of edge lists larger than memory."""
