// Python's view of weights.cpp, in the manner of module.cpp.
#include "arrays.h"
#include "weights.h"

using namespace unifews;

void bind_weights(nb::module_& m) {
  m.def(
      "sparse_linear",
      [](Input<float> x, Input<int64_t> indptr, Input<int32_t> indices, Input<float> values, Maybe<Input<float>> bias,
         Array<float> out, bool relu, int threads) {
        const SparseLinear p{int64_t(x.shape(0)), int64_t(x.shape(1)), int64_t(indptr.shape(0)) - 1, x.data(), nullptr,
                             indptr.data(), indices.data(), values.data(), data(bias), out.data(), relu, threads};
        nb::gil_scoped_release free;
        weights_in_use().sparse_linear(p);
      },
      "x"_a, "indptr"_a, "indices"_a, "values"_a, "bias"_a.none(), "out"_a, "relu"_a, "threads"_a);

  m.def(
      "sparse_linear_gathered",
      [](Input<int64_t> start, Input<int64_t> end, Indices edge_indices, Maybe<Input<float>> weight, int blocks,
         Maybe<Input<int64_t>> columns, Input<float> table, Input<float> y, Maybe<Input<float>> loop, Input<int64_t> indptr,
         Input<int32_t> indices, Input<float> values, Maybe<Input<float>> bias, Array<float> out, bool relu, int threads) {
        const int64_t n = int64_t(start.shape(0)), width = int64_t(y.shape(1));
        const Edges e{n, start.data(), end.data(), edge_indices.data(), data(weight), is_wide(edge_indices.dtype())};
        const Diffuse d{e, width, blocks, columns ? int64_t(columns->shape(0)) : width, data(columns), table.data(), y.data(),
                        data(loop), nullptr, threads};
        const SparseLinear p{n, width, int64_t(indptr.shape(0)) - 1, nullptr, &d, indptr.data(), indices.data(),
                             values.data(), data(bias), out.data(), relu, threads};
        nb::gil_scoped_release free;
        weights_in_use().sparse_linear(p);
      },
      "start"_a, "end"_a, "edge_indices"_a, "weight"_a.none(), "blocks"_a, "columns"_a.none(), "table"_a, "y"_a,
      "loop"_a.none(), "indptr"_a, "indices"_a, "values"_a, "bias"_a.none(), "out"_a, "relu"_a, "threads"_a);
}
