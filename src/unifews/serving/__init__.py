"""From a trained model to predictions: compress, save and load, export.

    compress ─▶ inputs, model_copy ─▶ tracer ─▶ program ─▶ fold ─▶ FrozenModel ─▶ runtime            predictions
                                                               └─▶ model_folder, portable ─▶ export  files

compress       `compress`: trace a model, fold its steps, compare the result with it
inputs         which argument of a forward is x, edge_index or edge_weight
model_copy     a private copy of a torch module
tracer         a torch module → steps; layers without a step run with their own code
fx_graph       the torch.fx graph of a forward, without patching torch
functions      functions of torch → steps
conv_steps     message-passing layers → steps
program        steps, their signatures, consistency checks, the builder
fold           BatchNorm and ReLU folded into adjacent steps
model          `FrozenModel`: call, bind, predict
runtime        a program on a graph, for all nodes or for some
subgraph       which rows and edges the result of some nodes depends on
graph_steps    steps that sum over neighbours, and their edges
rows           steps that compute each row on its own, and the order that keeps rows in the cache
products       packed weights and sums over neighbours by the kernels
files          `save` and `load`
model_folder   config.json and model.safetensors; frozen models
packed_arrays  one array, packed where that is smaller
checkpoint     models in training, and their optimizers
rebuild        known models from the arguments they were built with
portable       a program in plain torch
export         `export`: torch.export, ONNX
"""
