// Sparse feature matrices, some columns at a time; plain code, which no instruction set makes faster.
#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays.h"

namespace {

// out[u, k] = x[u, first + k] for rows of ascending columns, those of `out` one after the other.
template <class I>
void dense_columns(int64_t n, const I* indptr, const I* indices, const float* values, int64_t first, int64_t width, float* out,
                   int threads) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t u = 0; u < n; u++) {
    float* row = out + u * width;
    std::memset(row, 0, size_t(width) * sizeof(float));
    const I* end = indices + indptr[u + 1];
    for (const I* at = std::lower_bound(indices + indptr[u], end, I(first)); at < end && int64_t(*at) < first + width; at++)
      row[int64_t(*at) - first] = values[at - indices];
  }
}

// sums[0, k] += Σ_u factor[u]·x[u, k] and sums[1, k] += Σ_u square[u]·x[u, k]², in fixed ranges of rows.
template <class I>
void sparse_column_sums(int64_t n, int64_t f, const I* indptr, const I* indices, const float* values, const float* factor,
                        const float* square, double* sums, int threads) {
  constexpr int64_t kRanges = 8;
  std::vector<double> parts(size_t(kRanges * 2 * f), 0.0);
#pragma omp parallel for schedule(static, 1) num_threads(threads) if (threads > 1)
  for (int64_t range = 0; range < kRanges; range++) {
    double *sum = parts.data() + range * 2 * f, *sum_of_squares = sum + f;
    for (int64_t u = n * range / kRanges; u < n * (range + 1) / kRanges; u++) {
      const double a = factor[u], b = square[u];
      for (I e = indptr[u]; e < indptr[u + 1]; e++) {
        const double value = values[e];
        sum[indices[e]] += a * value;
        sum_of_squares[indices[e]] += b * (value * value);
      }
    }
  }
  for (int64_t range = 0; range < kRanges; range++)
    for (int64_t k = 0; k < 2 * f; k++) sums[k] += parts[size_t(range * 2 * f + k)];
}

}  // namespace

void bind_features(nb::module_& m) {
  m.def(
      "dense_columns",
      [](Indices indptr, Indices indices, Input<float> values, int64_t first, Array<float> out, int threads) {
        const int64_t n = int64_t(out.shape(0)), width = int64_t(out.shape(1));
        if (is_wide(indptr.dtype()) != is_wide(indices.dtype())) throw std::invalid_argument("indptr and indices are of one type");
        nb::gil_scoped_release free;
        if (is_wide(indices.dtype()))
          dense_columns(n, static_cast<const int64_t*>(indptr.data()), static_cast<const int64_t*>(indices.data()), values.data(),
                        first, width, out.data(), threads);
        else
          dense_columns(n, static_cast<const int32_t*>(indptr.data()), static_cast<const int32_t*>(indices.data()), values.data(),
                        first, width, out.data(), threads);
      },
      "indptr"_a, "indices"_a, "values"_a, "first"_a, "out"_a, "threads"_a);

  m.def(
      "sparse_column_sums",
      [](Indices indptr, Indices indices, Input<float> values, Input<float> factor, Input<float> square, Array<double> sums,
         int threads) {
        const int64_t n = int64_t(factor.shape(0)), f = int64_t(sums.shape(1));
        if (is_wide(indptr.dtype()) != is_wide(indices.dtype())) throw std::invalid_argument("indptr and indices are of one type");
        nb::gil_scoped_release free;
        if (is_wide(indices.dtype()))
          sparse_column_sums(n, f, static_cast<const int64_t*>(indptr.data()), static_cast<const int64_t*>(indices.data()),
                             values.data(), factor.data(), square.data(), sums.data(), threads);
        else
          sparse_column_sums(n, f, static_cast<const int32_t*>(indptr.data()), static_cast<const int32_t*>(indices.data()),
                             values.data(), factor.data(), square.data(), sums.data(), threads);
      },
      "indptr"_a, "indices"_a, "values"_a, "factor"_a, "square"_a, "sums"_a, "threads"_a);
}
