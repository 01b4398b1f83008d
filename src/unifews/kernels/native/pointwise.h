// What the kernels of pointwise.cpp take: plain arrays, as in kernels.h.
#pragma once
#include <cstdint>

namespace unifews {

// out[i] = scale · x[i], or 0 with the chance level / 2^32. Whether i stays depends on seed and i alone, so the way back
// takes the same decisions again instead of reading them from memory.
struct Dropout {
  int64_t count;
  const float* x;
  uint64_t seed;
  uint32_t level;
  float scale;
  float* out;
  int threads;
};

// out[i] = max(x[i], 0), NaN where x[i] is; bit i % 16 of bits[i / 16]: x[i] > 0 or NaN, where the gradient is 1.
struct Relu {
  int64_t count;
  const float* x;
  float* out;
  uint16_t* bits;
  int threads;
};

// out[i] = x[i] where the bit is set, else 0.
struct Masked {
  int64_t count;
  const float* x;
  const uint16_t* bits;
  float* out;
  int threads;
};

// Columns of row-major matrices [n, f]. Sums are made over fixed ranges of rows and added up in order, so that they do not
// depend on the number of threads.
struct Columns {
  int64_t n, f;
  const float* x;
  const float* grad;  // of column_dots and affine_pair
  int threads;
};

struct Pointwise {
  void (*dropout)(const Dropout&);
  void (*relu)(const Relu&);
  void (*masked)(const Masked&);
  // mean[j] = Σ_u x[u,j] / n, variance[j] = Σ_u (x[u,j] - mean[j])² / n
  void (*column_moments)(const Columns&, double* mean, double* variance);
  // total[j] = Σ_u grad[u,j], dot[j] = Σ_u grad[u,j] · (x[u,j] - mean[j])
  void (*column_dots)(const Columns&, const float* mean, double* total, double* dot);
  // out[u,j] = a[j] · x[u,j] + c[j]
  void (*affine)(const Columns&, const float* a, const float* c, float* out);
  // out[u,j] = a[j] · grad[u,j] + b[j] · x[u,j] + c[j]
  void (*affine_pair)(const Columns&, const float* a, const float* b, const float* c, float* out);
};

const Pointwise& pointwise_base();
const Pointwise& pointwise_avx2();
const Pointwise& pointwise_avx512();
const Pointwise& pointwise_in_use();  // module.cpp: of the instruction set that is picked

}  // namespace unifews
