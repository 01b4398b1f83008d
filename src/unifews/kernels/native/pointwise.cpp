// Kernels that look at one value, or one column, at a time. All are bound by memory: a large result is written past the caches,
// which saves reading its old content first.
#include "pointwise.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "block.h"

namespace unifews {
namespace {

constexpr int64_t kShare = 1 << 15;      // values handed to a thread at a time
constexpr int64_t kStreamed = 1 << 21;   // values of a result above which it is written past the caches
constexpr int64_t kRange = 256;          // rows of a partial sum: short enough for float32, and for the cache to hold them twice

bool streams(int64_t count, const float* out) { return count >= kStreamed && reinterpret_cast<uintptr_t>(out) % 64 == 0; }

inline void put(float* out, const Block& x, bool streamed) {
  if (streamed) stream(out, x);
  else std::memcpy(out, &x, sizeof x);
}

// Calls of(first, size) for blocks of 16 values, the last of which may be shorter, on several threads.
template <class Of>
void for_blocks(int64_t count, int threads, const Of& of) {
  const int64_t shares = (count + kShare - 1) / kShare;
#pragma omp parallel for schedule(static) num_threads(threads) if (shares > 1 && threads > 1)
  for (int64_t share = 0; share < shares; share++) {
    const int64_t end = std::min(count, (share + 1) * kShare);
    int64_t i = share * kShare;
    for (; i + kLanes <= end; i += kLanes) of(i, kLanes);
    if (i < end) of(i, int(end - i));
  }
}

typedef uint32_t Words __attribute__((vector_size(kRegister * 4)));  // as many as a Register has floats

// A bijection of 32 bits in which every bit of x changes half of the result's (Wellons' lowbias32).
template <class Word>
inline Word mixed(Word x) {
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0xd35a2d97u;
  return x ^ (x >> 15);
}

void dropout(const Dropout& d) {
  const bool streamed = streams(d.count, d.out);
  const uint32_t a = uint32_t(d.seed), level = d.level;
  const float scale = d.scale;
  Words place;
  for (int k = 0; k < kRegister; k++) place[k] = uint32_t(k);
  for_blocks(d.count, d.threads, [=](int64_t i, int size) {
    // Two rounds, each with half of the seed: one alone would give all seeds the same sequence, begun at another place.
    const uint32_t low = uint32_t(i), b = uint32_t(d.seed >> 32) ^ mixed(uint32_t(i >> 32));
    if (size < kLanes) {
      for (int k = 0; k < size; k++) d.out[i + k] = mixed(mixed((low + k) ^ a) ^ b) >= level ? scale * d.x[i + k] : 0.0f;
      return;
    }
    Block x;
    std::memcpy(&x, d.x + i, sizeof x);
    for (int p = 0; p < kParts; p++) {
      const Words drawn = mixed<Words>(mixed<Words>((place + (low + uint32_t(p * kRegister))) ^ a) ^ b);
      x.part[p] = (Register)((Words)(scale * x.part[p]) & (Words)(drawn >= level));
    }
    put(d.out + i, x, streamed);
  });
}

// Bit k: x[k] > 0 or NaN.
inline uint16_t active(const float* x, int size) {
#if defined(__AVX512F__)
  if (size == kLanes) return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), _mm512_setzero_ps(), _CMP_NLE_UQ);
#elif defined(__AVX2__)
  if (size == kLanes) {
    const __m256 zero = _mm256_setzero_ps();
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x), zero, _CMP_NLE_UQ));
    const int high = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + 8), zero, _CMP_NLE_UQ));
    return uint16_t(low | high << 8);
  }
#endif
  unsigned bits = 0;
  for (int k = 0; k < size; k++) bits |= unsigned(!(x[k] <= 0)) << k;
  return uint16_t(bits);
}

inline void keep(const float* x, unsigned bits, int size, float* out, bool streamed) {
  if (size == kLanes) {
    alignas(64) float lane[kLanes];
#if defined(__AVX512F__)
    _mm512_store_ps(lane, _mm512_maskz_mov_ps(uint16_t(bits), _mm512_loadu_ps(x)));
#else
    for (int k = 0; k < kLanes; k++) lane[k] = bits >> k & 1 ? x[k] : 0.0f;
#endif
    put(out, block(lane), streamed);
  } else {
    for (int k = 0; k < size; k++) out[k] = bits >> k & 1 ? x[k] : 0.0f;
  }
}

void relu(const Relu& d) {
  const bool streamed = streams(d.count, d.out);
  for_blocks(d.count, d.threads, [=](int64_t i, int size) {
    const uint16_t bits = active(d.x + i, size);
    d.bits[i / kLanes] = bits;
    keep(d.x + i, bits, size, d.out + i, streamed);
  });
}

void masked(const Masked& d) {
  const bool streamed = streams(d.count, d.out);
  for_blocks(d.count, d.threads, [=](int64_t i, int size) { keep(d.x + i, d.bits[i / kLanes], size, d.out + i, streamed); });
}

// Calls of(range, first row, rows, scratch of 2 f floats) for ranges of kRange rows, on several threads.
template <class Of>
int64_t for_ranges(const Columns& d, const Of& of) {
  const int64_t ranges = (d.n + kRange - 1) / kRange;
#pragma omp parallel num_threads(d.threads) if (ranges > 1 && d.threads > 1)
  {
    std::vector<float> scratch(2 * d.f);
#pragma omp for schedule(static)
    for (int64_t range = 0; range < ranges; range++)
      of(range, range * kRange, std::min(kRange, d.n - range * kRange), scratch.data());
  }
  return ranges;
}

void column_moments(const Columns& d, double* mean, double* variance) {
  const int64_t f = d.f;
  std::vector<float> parts(2 * f * ((d.n + kRange - 1) / kRange));
  const int64_t ranges = for_ranges(d, [&](int64_t range, int64_t first, int64_t rows, float* scratch) {
    float* __restrict total = scratch;
    float* __restrict square = scratch + f;
    const float* x = d.x + first * f;
    std::fill(total, total + 2 * f, 0.0f);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < f; j++) total[j] += x[r * f + j];
    for (int64_t j = 0; j < f; j++) total[j] /= float(rows);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t j = 0; j < f; j++) {
        const float y = x[r * f + j] - total[j];
        square[j] += y * y;
      }
    std::copy(scratch, scratch + 2 * f, parts.data() + range * 2 * f);
  });
  std::fill(mean, mean + f, 0.0);
  std::fill(variance, variance + f, 0.0);
  double seen = 0;
  for (int64_t range = 0; range < ranges; range++) {  // Chan, Golub and LeVeque's rule for two groups of values
    const double rows = double(std::min(kRange, d.n - range * kRange));
    const float* part = parts.data() + range * 2 * f;
    for (int64_t j = 0; j < f; j++) {
      const double apart = part[j] - mean[j];
      mean[j] += apart * rows / (seen + rows);
      variance[j] += part[f + j] + apart * apart * seen * rows / (seen + rows);
    }
    seen += rows;
  }
  for (int64_t j = 0; j < f; j++) variance[j] /= std::max(seen, 1.0);
}

void column_dots(const Columns& d, const float* mean, double* total, double* dot) {
  const int64_t f = d.f;
  std::vector<float> parts(2 * f * ((d.n + kRange - 1) / kRange));
  const int64_t ranges = for_ranges(d, [&](int64_t range, int64_t first, int64_t rows, float* scratch) {
    float* __restrict sum = scratch;
    float* __restrict product = scratch + f;
    std::fill(sum, sum + 2 * f, 0.0f);
    for (int64_t at = first * f; at < (first + rows) * f; at += f)
      for (int64_t j = 0; j < f; j++) {
        const float g = d.grad[at + j];
        sum[j] += g;
        product[j] += g * (d.x[at + j] - mean[j]);
      }
    std::copy(scratch, scratch + 2 * f, parts.data() + range * 2 * f);
  });
  std::fill(total, total + f, 0.0);
  std::fill(dot, dot + f, 0.0);
  for (int64_t range = 0; range < ranges; range++)
    for (int64_t j = 0; j < f; j++) {
      total[j] += parts[range * 2 * f + j];
      dot[j] += parts[range * 2 * f + f + j];
    }
}

// out[u,j] = of(position, j), 16 columns at a time.
template <class Of>
void for_rows(const Columns& d, float* out, const Of& of) {
  const bool streamed = streams(d.n * d.f, out) && d.f % kLanes == 0;
  const int64_t whole = d.f / kLanes * kLanes;
#pragma omp parallel for schedule(static) num_threads(d.threads) if (d.n * d.f > kShare && d.threads > 1)
  for (int64_t u = 0; u < d.n; u++) {
    const int64_t at = u * d.f;
    for (int64_t j = 0; j < whole; j += kLanes) {
      alignas(64) float lane[kLanes];
      for (int k = 0; k < kLanes; k++) lane[k] = of(at + j + k, j + k);
      put(out + at + j, block(lane), streamed);
    }
    for (int64_t j = whole; j < d.f; j++) out[at + j] = of(at + j, j);
  }
}

void affine(const Columns& d, const float* a, const float* c, float* out) {
  for_rows(d, out, [=](int64_t at, int64_t j) { return a[j] * d.x[at] + c[j]; });
}

void affine_pair(const Columns& d, const float* a, const float* b, const float* c, float* out) {
  for_rows(d, out, [=](int64_t at, int64_t j) { return a[j] * d.grad[at] + b[j] * d.x[at] + c[j]; });
}

}  // namespace

const Pointwise& UNIFEWS_POINTWISE() {
  static const Pointwise table{dropout, relu, masked, column_moments, column_dots, affine, affine_pair};
  return table;
}

}  // namespace unifews
