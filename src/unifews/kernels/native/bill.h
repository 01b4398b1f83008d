// What a hop may cost the result: the bound that `certify` asks for, added up on the way.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "block.h"
#include "kernels.h"

namespace unifews {
namespace {  // every instruction set has its own

// The price of what a hop removes, as the square of a bound on a weighted norm, added up over groups of rows that do not
// depend on the thread count. Of sources that a row looks at, it knows what it removes: their sizes add up (the triangle
// inequality), Σ_u toll[u]·(Σ_v A[u,v]·size[v])². Of the others it uses nothing. They need not be seen at all: by Cauchy and
// Schwarz they cost Σ cost[u]·A[u,v]·size[v]², which is that of all sources, known without edges, less that of the sources looked
// at. Or, where their largest blocks were asked for, these may stand for each block's size. The smaller one counts.
struct Bill {
  struct Part {
    double all[kMaxBlocks] = {}, looked[kMaxBlocks] = {}, removed[kMaxBlocks] = {}, whole[kMaxBlocks] = {};
    int64_t longest = 0;  // terms in one sum
  };
  std::vector<Part> parts;
  explicit Bill(int64_t rows, bool wanted) : parts(wanted ? size_t((rows + kRows - 1) / kRows) : 0) {}
  void settle(PrunedCount* count, bool asked) const {
    Part sum;
    for (const Part& part : parts) {
      for (int b = 0; b < kMaxBlocks; b++) {
        sum.all[b] += part.all[b];
        sum.looked[b] += part.looked[b];
        sum.removed[b] += part.removed[b];
        sum.whole[b] += part.whole[b];
      }
      sum.longest = std::max(sum.longest, part.longest);
    }
    // The difference of two sums is known up to their rounding, which is counted as removed.
    const double rounding = double(sum.longest + kRows + int64_t(parts.size())) * 0x1p-51;
    for (int b = 0; b < kMaxBlocks; b++) {
      const double unseen = std::max(sum.all[b] - sum.looked[b], 0.0) + rounding * sum.all[b];
      const double bound = std::sqrt(sum.removed[b]) * 1.00001 + std::sqrt(unseen);
      count->removed[b] = asked ? std::min(bound * bound, sum.whole[b] * 1.00001) : bound * bound;
    }
  }
};

// What one row removes of the sources that it looks at, as a sum of sizes per block, and their squared sizes in double.
template <int kBlocks>
struct Looked {
#if defined(__AVX2__)
  __m256 gone{};
  __m256d low{}, high{};
  void add(const float* size, unsigned flags, float weight) {
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i used = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(flags)), bit), bit);
    const __m256 s = _mm256_loadu_ps(size);
    gone += _mm256_set1_ps(weight) * _mm256_andnot_ps(_mm256_castsi256_ps(used), s);
    const __m256d w = _mm256_set1_pd(weight);
    const __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(s)), b = _mm256_cvtps_pd(_mm256_extractf128_ps(s, 1));
    low += w * a * a;
    high += w * b * b;
  }
  // Adds the row to the bill; `own` are its sizes as a source, `rest` bounds those of the sources passed over.
  void charge(Bill::Part& part, const float* own, float rest, double cost, double charge, double toll) const {
    const __m256 s = _mm256_loadu_ps(own);
    half(part, 0, _mm256_castps256_ps128(s), _mm256_castps256_ps128(gone), low, rest, cost, charge, toll);
    if (kBlocks > 4)
      half(part, 4, _mm256_extractf128_ps(s, 1), _mm256_extractf128_ps(gone, 1), high, rest, cost, charge, toll);
  }
  static void half(Bill::Part& part, int at, __m128 own, __m128 gone, __m256d squares, double rest, double cost,
                   double charge, double toll) {
    const __m256d size = _mm256_cvtps_pd(own), seen = _mm256_cvtps_pd(gone), whole = seen + rest;
    grow(part.all + at, charge * size * size);
    grow(part.looked + at, cost * squares);
    grow(part.removed + at, toll * seen * seen);
    grow(part.whole + at, toll * whole * whole);
  }
  static void grow(double* sum, __m256d by) { _mm256_storeu_pd(sum, _mm256_loadu_pd(sum) + by); }
#else
  float gone[kBlocks] = {};
  double squares[kBlocks] = {};
  void add(const float* size, unsigned flags, float weight) {
    for (int b = 0; b < kBlocks; b++) {
      gone[b] += flags >> b & 1 ? 0.0f : weight * size[b];
      squares[b] += double(weight) * size[b] * size[b];
    }
  }
  void charge(Bill::Part& part, const float* own, float rest, double cost, double charge, double toll) const {
    for (int b = 0; b < kBlocks; b++) {
      const double seen = gone[b], whole = seen + rest;
      part.all[b] += charge * own[b] * own[b];
      part.looked[b] += cost * squares[b];
      part.removed[b] += toll * seen * seen;
      part.whole[b] += toll * whole * whole;
    }
  }
#endif
};

}  // namespace
}  // namespace unifews
