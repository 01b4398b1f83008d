"""A trained model, frozen: a short program over packed weights and kept edges, with nothing of training left in it.

weights.py        one matrix, packed
program.py        steps, what they may say, and whether they fit together
private.py        a copy of a torch module that nothing else can see
inputs.py         which argument of a forward is x, edge_index or edge_weight
tracing.py        the operations of a forward, without patches to torch
symbolic.py       a torch module → steps, by tracing its forward
layers.py         one message-passing layer → steps
fold.py           BatchNorm and ReLU into their neighbours
wiring.py         the edges of a graph as each step uses them
messages.py       the steps that look at neighbours
sums.py           what those multiply, by the kernels themselves
rows.py           the steps that look at one row at a time
neighbourhood.py  which rows each step has to make for some nodes
schemes.py        what a decoupled model propagates by, in words
stream.py         all rows, a few thousand at a time
run.py            a program on a graph
model.py          what the user holds
files.py          saved, and loaded with every number checked (with nn/saved)
compress.py       the public entry point
"""
