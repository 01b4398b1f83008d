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

struct Pointwise {
  void (*dropout)(const Dropout&);
};

const Pointwise& pointwise_base();
const Pointwise& pointwise_avx2();
const Pointwise& pointwise_avx512();

}  // namespace unifews
