"""Products of a layer as torch operators: compiled kernels on the CPU, torch elsewhere."""
