// Python's view of weights.cpp, in the manner of module.cpp.
#include "arrays.h"
#include "weights.h"

using namespace unifews;

void bind_weights(nb::module_& m) {
  m.def(
      "sparse_linear",
      [](Input<float> x, Input<int64_t> indptr, Input<int32_t> indices, Input<float> values, Maybe<Input<float>> bias,
         Array<float> out, bool relu, int threads) {
        const SparseLinear p{int64_t(x.shape(0)), int64_t(x.shape(1)), int64_t(indptr.shape(0)) - 1, x.data(),
                             indptr.data(), indices.data(), values.data(), data(bias), out.data(), relu, threads};
        nb::gil_scoped_release free;
        weights_in_use().sparse_linear(p);
      },
      "x"_a, "indptr"_a, "indices"_a, "values"_a, "bias"_a.none(), "out"_a, "relu"_a, "threads"_a);

  m.def(
      "weight_gradient",
      [](Input<float> x, Input<float> g, Input<int64_t> indptr, Input<int32_t> indices, Array<float> out, int threads) {
        const WeightGradient p{int64_t(x.shape(0)), int64_t(x.shape(1)), int64_t(g.shape(1)), x.data(), g.data(),
                               indptr.data(), indices.data(), out.data(), threads};
        nb::gil_scoped_release free;
        weights_in_use().weight_gradient(p);
      },
      "x"_a, "g"_a, "indptr"_a, "indices"_a, "out"_a, "threads"_a);
}
