"""Models as folders of `config.json` and `model.safetensors` (docs/FORMAT.md), with nothing in them that is run or believed.

arrays.py     one array, packed where that is smaller, and back
folder.py     the two files, written in one step and read with their checksum
rebuild.py    a model of this library from the arguments it was built with
training.py   a model that still trains: weights, masks, schedule
optimizer.py  the state of its optimizer
api.py        the public door, for frozen models too (whose steps frozen/files.py puts in words)
"""
