// What the kernels of weights.cpp take: plain arrays, as in kernels.h.
#pragma once
#include "kernels.h"

namespace unifews {

// out[u] = W x[u] + bias, or relu of it, where most of W [f_out][f_in] is zero and the rest is listed row by row.
struct SparseLinear {
  int64_t n, f_in, f_out;
  const float* x;         // [n][f_in]
  const int64_t* indptr;  // [f_out + 1]
  const int32_t* indices;
  const float* values;
  const float* bias;  // [f_out], or nullptr: 0
  float* out;         // [n][f_out]
  bool relu;
  int threads;
};

// out[k] = Σ_u g[u][i] · x[u][indices[k]] for indptr[i] ≤ k < indptr[i + 1]: the gradient of the listed weights of SparseLinear,
// a sampled product of dense matrices.
struct WeightGradient {
  int64_t n, f_in, f_out;
  const float* x;         // [n][f_in]
  const float* g;         // [n][f_out]
  const int64_t* indptr;  // [f_out + 1]
  const int32_t* indices;
  float* out;  // [indptr[f_out]]
  int threads;
};

struct Weights {
  void (*sparse_linear)(const SparseLinear&);
  void (*weight_gradient)(const WeightGradient&);
};

const Weights& weights_base();
const Weights& weights_avx2();
const Weights& weights_avx512();
const Weights& weights_in_use();  // module.cpp: of the instruction set that is picked

}  // namespace unifews
