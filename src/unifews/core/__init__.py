"""Graph, diffusion, schemes, entry rule, trace and configuration, on NumPy alone."""
