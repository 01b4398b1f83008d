"""Files on disk: atomic writes, memory-mapped arrays, checksums, resumable work. Knows arrays and JSON, no graph."""
