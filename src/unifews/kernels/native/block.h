// A block of 16 floats, one cache line, and what the kernels do with it. Included once per instruction set.
#pragma once
#include <algorithm>
#include <cmath>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels.h"

namespace unifews {
namespace {  // every instruction set has its own

// A block of 16 floats in the registers there are: one of 64 bytes, two of 32 or four of 16.
#if defined(__AVX512F__)
constexpr int kRegister = 16;
#elif defined(__AVX2__)
constexpr int kRegister = 8;
#else
constexpr int kRegister = 4;
#endif
constexpr int kParts = kLanes / kRegister;
typedef float Register __attribute__((vector_size(kRegister * 4)));
typedef float Quarter __attribute__((vector_size(16)));

struct alignas(64) Block {
  Register part[kParts];
  Block& operator+=(const Block& x) {
    for (int p = 0; p < kParts; p++) part[p] += x.part[p];
    return *this;
  }
  Block& add(float factor, const Block& x) {
    for (int p = 0; p < kParts; p++) part[p] += factor * x.part[p];
    return *this;
  }
  Block& operator*=(float factor) {
    for (int p = 0; p < kParts; p++) part[p] *= factor;
    return *this;
  }
};

inline Block operator*(float factor, Block x) { return x *= factor; }

constexpr int64_t kRows = 64;  // rows handed to a thread at a time

inline const Block& block(const float* p) { return *reinterpret_cast<const Block*>(p); }
inline Block& block(float* p) { return *reinterpret_cast<Block*>(p); }

inline float sum_of_squares(const Block& x) {
  Block y;
  for (int p = 0; p < kParts; p++) y.part[p] = x.part[p] * x.part[p];
  const Quarter* q = reinterpret_cast<const Quarter*>(&y);
  const Quarter s = (q[0] + q[1]) + (q[2] + q[3]);
  return (s[0] + s[2]) + (s[1] + s[3]);
}

inline float largest_of(const Block& x) {
  const float* lane = reinterpret_cast<const float*>(&x);
  float most = 0;
  for (int k = 0; k < kLanes; k++) most = std::max(most, std::fabs(lane[k]));
  return most;
}

inline float magnitude(const Block& x, bool largest) { return largest ? largest_of(x) : std::sqrt(sum_of_squares(x)); }

// Write a whole cache line that will not be read again soon without first reading it.
inline void stream(float* p, const Block& x) {
#if defined(__AVX512F__)
  _mm512_stream_ps(p, (__m512)x.part[0]);
#elif defined(__AVX2__)
  _mm256_stream_ps(p, (__m256)x.part[0]);
  _mm256_stream_ps(p + 8, (__m256)x.part[1]);
#else
  block(p) = x;
#endif
}

inline void prefetch(const float* p, int blocks) {
  for (int b = 0; b < blocks; b++) __builtin_prefetch(p + b * kLanes);
}

// Bit b: block b of the source row reaches the cut.
template <int kBlocks>
inline unsigned reaching(const float* size, float weight, float level) {
#if defined(__AVX2__)
  // No wider than need be: a load across two cache lines waits for both.
  if constexpr (kBlocks > 4) {
    const __m256 m = _mm256_mul_ps(_mm256_loadu_ps(size), _mm256_set1_ps(weight));
    return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(m, _mm256_set1_ps(level), _CMP_GE_OQ))) & ((1u << kBlocks) - 1);
  } else if constexpr (kBlocks > 2) {
    const __m128 m = _mm_mul_ps(_mm_loadu_ps(size), _mm_set1_ps(weight));
    return unsigned(_mm_movemask_ps(_mm_cmpge_ps(m, _mm_set1_ps(level)))) & ((1u << kBlocks) - 1);
  }
#endif
  unsigned flags = 0;
  for (int b = 0; b < kBlocks; b++) flags |= unsigned(size[b] * weight >= level) << b;
  return flags;
}

// The set bits of every byte, in order: lets eight entries be listed with one store and no branch.
struct BitLists {
  uint8_t bits[256][8];
  BitLists() {
    for (int flags = 0; flags < 256; flags++)
      for (int b = 0, k = 0; b < 8; b++) {
        bits[flags][b] = 0;
        if (flags >> b & 1) bits[flags][k++] = uint8_t(b);
      }
  }
};
const BitLists kBitLists;

}  // namespace
}  // namespace unifews
