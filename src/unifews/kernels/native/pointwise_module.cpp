// Python's view of pointwise.cpp, in the manner of module.cpp.
#include "arrays.h"
#include "pointwise.h"

using namespace unifews;
using Floats = Input<float>;

namespace {

Columns columns(const Floats& x, const float* grad, int threads) {
  return {int64_t(x.shape(0)), int64_t(x.shape(1)), x.data(), grad, threads};
}

}  // namespace

void bind_pointwise(nb::module_& m) {
  m.def(
      "dropout",
      [](Floats x, uint64_t seed, uint32_t level, float scale, Array<float> out, int threads) {
        const Dropout d{int64_t(x.size()), x.data(), seed, level, scale, out.data(), threads};
        nb::gil_scoped_release free;
        pointwise_in_use().dropout(d);
      },
      "x"_a, "seed"_a, "level"_a, "scale"_a, "out"_a, "threads"_a);

  m.def(
      "relu",
      [](Floats x, Array<float> out, Array<uint16_t> bits, int threads) {
        const Relu d{int64_t(x.size()), x.data(), out.data(), bits.data(), threads};
        nb::gil_scoped_release free;
        pointwise_in_use().relu(d);
      },
      "x"_a, "out"_a, "bits"_a, "threads"_a);

  m.def(
      "masked",
      [](Floats x, Input<uint16_t> bits, Array<float> out, int threads) {
        const Masked d{int64_t(x.size()), x.data(), bits.data(), out.data(), threads};
        nb::gil_scoped_release free;
        pointwise_in_use().masked(d);
      },
      "x"_a, "bits"_a, "out"_a, "threads"_a);

  m.def(
      "column_moments",
      [](Floats x, Array<double> mean, Array<double> variance, int threads) {
        const Columns d = columns(x, nullptr, threads);
        nb::gil_scoped_release free;
        pointwise_in_use().column_moments(d, mean.data(), variance.data());
      },
      "x"_a, "mean"_a, "variance"_a, "threads"_a);

  m.def(
      "column_dots",
      [](Floats grad, Floats x, Floats mean, Array<double> total, Array<double> dot, int threads) {
        const Columns d = columns(x, grad.data(), threads);
        nb::gil_scoped_release free;
        pointwise_in_use().column_dots(d, mean.data(), total.data(), dot.data());
      },
      "grad"_a, "x"_a, "mean"_a, "total"_a, "dot"_a, "threads"_a);

  m.def(
      "affine",
      [](Floats x, Floats a, Floats c, Array<float> out, int threads) {
        const Columns d = columns(x, nullptr, threads);
        nb::gil_scoped_release free;
        pointwise_in_use().affine(d, a.data(), c.data(), out.data());
      },
      "x"_a, "a"_a, "c"_a, "out"_a, "threads"_a);

  m.def(
      "affine_pair",
      [](Floats grad, Floats x, Floats a, Floats b, Floats c, Array<float> out, int threads) {
        const Columns d = columns(x, grad.data(), threads);
        nb::gil_scoped_release free;
        pointwise_in_use().affine_pair(d, a.data(), b.data(), c.data(), out.data());
      },
      "grad"_a, "x"_a, "a"_a, "b"_a, "c"_a, "out"_a, "threads"_a);
}
