// Kernels that look at one value at a time.
#include "pointwise.h"

#include <algorithm>

namespace unifews {
namespace {

constexpr int64_t kShare = 1 << 15;  // values handed to a thread at a time

// A bijection of 32 bits in which every bit of x changes half of the result's (Wellons' lowbias32).
inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0xd35a2d97u;
  return x ^ (x >> 15);
}

void dropout(const Dropout& d) {
  const int64_t shares = (d.count + kShare - 1) / kShare;
#pragma omp parallel for schedule(static) num_threads(d.threads) if (shares > 1 && d.threads > 1)
  for (int64_t share = 0; share < shares; share++) {
    const int64_t first = share * kShare;
    const uint32_t size = uint32_t(std::min(kShare, d.count - first));
    // Two rounds, each with half of the seed: one alone would give all seeds the same sequence, begun at another place.
    const uint32_t low = uint32_t(first), a = uint32_t(d.seed), b = uint32_t(d.seed >> 32) ^ mixed(uint32_t(first >> 32));
    const uint32_t level = d.level;
    const float scale = d.scale;
    const float* __restrict x = d.x + first;
    float* __restrict out = d.out + first;
    for (uint32_t i = 0; i < size; i++) out[i] = mixed(mixed((low + i) ^ a) ^ b) >= level ? scale * x[i] : 0.0f;
  }
}

}  // namespace

const Pointwise& UNIFEWS_POINTWISE() {
  static const Pointwise table{dropout};
  return table;
}

}  // namespace unifews
