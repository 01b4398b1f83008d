"""What things are, on NumPy alone: graph, diffusion, entry rule, trace, files."""
