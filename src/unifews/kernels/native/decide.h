// Which sources of a row may matter: asked of a bit, a code or a size per node, whichever stays in a cache.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "block.h"
#include "kernels.h"
#include "lazy.h"

namespace unifews {
namespace {  // every instruction set has its own

// An array that is looked up at random, on pages as large as the system has: a miss of the page tables costs as much as one of
// the cache. Nothing is in it at first.
template <class T>
class Scattered {
 public:
  explicit Scattered(size_t size) : size_(size) {
    if (!size) return;
    constexpr size_t kLarge = size_t(2) << 20;
    const size_t page = size * sizeof(T) < kLarge ? 64 : kLarge, bytes = (size * sizeof(T) + page - 1) / page * page;
    memory_.reset(static_cast<T*>(std::aligned_alloc(page, bytes)));
    if (!memory_) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (page == kLarge) madvise(memory_.get(), bytes, MADV_HUGEPAGE);  // advice: what is refused only costs time
#endif
  }
  size_t size() const { return size_; }
  const T* data() const { return memory_.get(); }
  T& operator[](size_t i) { return memory_.get()[i]; }
  const T& operator[](size_t i) const { return memory_.get()[i]; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  size_t size_;
  std::unique_ptr<T, Free> memory_;
};

// Messages reach δ when  A[u,v]·size[v] ≥ cut(u) = δ / target[u].  Exact zeros never do: they cost nothing to skip.
inline float cut(const PrunedHop& h, int64_t u) { return std::max(h.delta / h.target[u], 1e-45f); }

// One bit per node: may it send anything at this hop? A bit per node fits a cache that a float per node does not, so when
// few may, asking here first makes passing over the others cheap.
struct Senders {
  std::vector<uint32_t> bits;
  int64_t count = 0;
  Senders(const PrunedHop& h, bool wanted) : bits(wanted ? size_t((h.edges.n + 31) / 32) : 0) {
    int64_t total = 0;
#pragma omp parallel for schedule(static) num_threads(h.threads) reduction(+ : total)
    for (int64_t w = 0; w < int64_t(bits.size()); w++) {
      uint32_t word = 0;
      const int64_t first = w * 32, last = std::min(h.edges.n, first + 32);
      for (int64_t v = first; v < last; v++)
        word |= uint32_t(may_send(h.top[v], h.reach[v], h.delta)) << (v - first);
      bits[w] = word;
      total += __builtin_popcount(word);
    }
    count = total;
  }
  bool has(int64_t v) const { return bits[v >> 5] >> (v & 31) & 1; }
};

#if defined(__AVX2__)
// Stores the flagged ones of eight numbers, in order; how many. There must be room for eight.
inline int append(__m256i values, unsigned flags, uint32_t* to) {
  const __m128i order = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(kBitLists.bits[flags]));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(values, _mm256_cvtepu8_epi32(order)));
  return __builtin_popcount(flags);
}
#endif

// The size of every block as a code of four bits: half octaves from the lowest cut on, 0 for a block that can send nothing. Looking
// a size up in memory costs as much as fetching the block that it is about; codes are an eighth of the sizes and stay in a
// cache, so they pay where sizes do not. They only grow with sizes: a block whose code exceeds that of a cut reaches the cut, one
// whose code is less does not, and only those with the same code need their size looked up.
template <int kBlocks>
class Codes {
 public:
  static constexpr int kBits = kBlocks == 1 ? 4 : kBlocks == 2 ? 8 : kBlocks <= 4 ? 16 : 32;  // of a node
  static constexpr int kNodes = 32 / kBits, kShift = kNodes == 8 ? 3 : kNodes == 4 ? 2 : kNodes == 2 ? 1 : 0;  // in a word
  static constexpr uint32_t kMask = kBits == 32 ? ~0u : (1u << kBits % 32) - 1;
  int64_t senders = 0;

  explicit Codes(const PrunedHop& h, bool wanted) : words_(wanted ? size_t((h.edges.n + kNodes - 1) / kNodes) : 0) {
    if (!wanted) return;
    float most = 0;
#pragma omp parallel for schedule(static) num_threads(h.threads) reduction(max : most)
    for (int64_t u = 0; u < h.edges.n; u++) most = std::max(most, h.target[u]);
    lowest_ = half_octaves(std::max(h.delta / most, 1e-45f));
    int64_t total = 0;
#pragma omp parallel for schedule(static) num_threads(h.threads) reduction(+ : total)
    for (int64_t w = 0; w < int64_t(words_.size()); w++) {
      uint32_t word = 0;
      const int64_t first = w * kNodes, last = std::min(h.edges.n, first + kNodes);
      for (int64_t v = first; v < last; v++) {
        if (!may_send(h.top[v], h.reach[v], h.delta)) continue;
        total++;
        for (int b = 0; b < kBlocks; b++) {
          const float size = h.size[v * kBlocks + b];
          if (may_send(size, h.reach[v], h.delta)) word |= of(size) << (kBits * (v - first) + 4 * b);
        }
      }
      words_[size_t(w)] = word;
    }
    senders = total;
  }

  uint32_t of(float size) const { return uint32_t(std::clamp(half_octaves(size) - lowest_, 0, 14) + 1); }

  // Bit b: the code of block b is at least `least`, of 1 to 16.
  unsigned reaching(int64_t v, uint32_t least) const {
    const uint32_t codes = words_[size_t(v >> kShift)] >> kBits * (v & (kNodes - 1)) & kMask;
    const uint32_t add = (16 - least) * 0x01010101u;  // carries into the fifth bit of those that do
    const uint32_t even = (codes & 0x0f0f0f0fu) + add, odd = (codes >> 4 & 0x0f0f0f0fu) + add;
    const uint32_t pairs = (even >> 4 & 0x01010101u) | (odd >> 3 & 0x02020202u);
    return (pairs | pairs >> 6 | pairs >> 12 | pairs >> 18) & ((1u << kBlocks) - 1);
  }

  // With one block: lists the sources of a row that may reach the cut behind the first k of `to`, and the places of those whose
  // size must be looked up behind the first d of `doubt`.
  template <class Index>
  void list_apart(const Index* from, int64_t count, float cut, uint32_t* to, int64_t& k, uint32_t* doubt, int64_t& d) const {
    if (!senders) return;
    const uint32_t least = of(cut);
    int64_t i = 0;
#if defined(__AVX2__) && defined(__BMI2__)
    if constexpr (sizeof(Index) == 4) {
      const int* words = reinterpret_cast<const int*>(words_.data());
      const __m256i low = _mm256_set1_epi32(7), below = _mm256_set1_epi32(int(least) - 1), equal = _mm256_set1_epi32(int(least));
      for (; i + 8 <= count; i += 8) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
        const __m256i word = _mm256_i32gather_epi32(words, _mm256_srli_epi32(v, 3), 4);
        const __m256i shift = _mm256_slli_epi32(_mm256_and_si256(v, low), 2);
        const __m256i code = _mm256_and_si256(_mm256_srlv_epi32(word, shift), _mm256_set1_epi32(15));
        const unsigned flags = unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(code, below))));
        const unsigned same = unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(code, equal))));
        const __m256i place = _mm256_set1_epi32(int(k));
        k += append(v, flags, to + k);
        d += append(_mm256_add_epi32(place, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)), _pext_u32(same, flags), doubt + d);
      }
    }
#endif
    for (; i < count; i++) {
      const uint32_t code = words_[size_t(from[i] >> 3)] >> 4 * (from[i] & 7) & 15;
      to[k] = uint32_t(from[i]);
      doubt[d] = uint32_t(k);
      d += code == least;
      k += code >= least;
    }
  }

  // Lists the sources of a row that have a block with at least this code. Branch-free: eight at a time where the processor can gather.
  template <class Index>
  int64_t list(const Index* from, int64_t count, uint32_t least, uint32_t* to) const {
    int64_t i = 0, k = 0;
#if defined(__AVX2__)
    if constexpr (sizeof(Index) == 4) {
      const int* words = reinterpret_cast<const int*>(words_.data());
      const __m256i nibbles = _mm256_set1_epi8(15), below = _mm256_set1_epi8(char(least - 1));
      for (; i + 8 <= count; i += 8) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
        __m256i codes = _mm256_i32gather_epi32(words, _mm256_srli_epi32(v, kShift), 4);
        if (kNodes > 1) {
          const __m256i place = _mm256_and_si256(v, _mm256_set1_epi32(kNodes - 1));
          codes = _mm256_and_si256(_mm256_srlv_epi32(codes, _mm256_mullo_epi32(place, _mm256_set1_epi32(kBits))),
                                   _mm256_set1_epi32(int(kMask)));
        }
        const __m256i largest = _mm256_max_epu8(_mm256_and_si256(codes, nibbles),
                                                _mm256_and_si256(_mm256_srli_epi16(codes, 4), nibbles));
        const __m256i none = _mm256_cmpeq_epi32(_mm256_cmpgt_epi8(largest, below), _mm256_setzero_si256());
        const unsigned flags = ~unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(none))) & 255;
        k += append(v, flags, to + k);
      }
    }
#endif
    for (; i < count; i++) {
      to[k] = uint32_t(from[i]);
      k += reaching(from[i], least) != 0;
    }
    return k;
  }

 private:
  static int half_octaves(float size) {
    uint32_t bits;
    std::memcpy(&bits, &size, sizeof bits);
    return int(bits >> 22);
  }
  Scattered<uint32_t> words_;
  int lowest_ = 0;
};

// Where even codes do not stay in a cache: one bit per node, whether its block reaches a level. Rows whose cut is no lower pass
// over those without it; of the others, and of rows with a lower cut, the size is looked up. The level is the one that leaves
// fewest to look up, by a sample of the rows.
class Marks {
 public:
  explicit Marks(const PrunedHop& h, bool wanted) : words_(wanted ? size_t((h.edges.n + 31) / 32) : 0) {
    if (!wanted) return;
    level_ = h.edges.wide ? best<int64_t>(h) : best<int32_t>(h);
#pragma omp parallel for schedule(static) num_threads(h.threads)
    for (int64_t w = 0; w < int64_t(words_.size()); w++) {
      uint32_t word = 0;
      const int64_t first = w * 32, last = std::min(h.edges.n, first + 32);
      for (int64_t v = first; v < last; v++) word |= uint32_t(h.size[v] >= level_) << (v - first);
      words_[size_t(w)] = word;
    }
  }

  // As `Codes::list_apart`: here all that are listed are in doubt.
  template <class Index>
  void list_apart(const Index* from, int64_t count, float cut, uint32_t* to, int64_t& k, uint32_t* doubt, int64_t& d) const {
    const int64_t before = k;
    if (cut < level_) {
      for (int64_t i = 0; i < count; i++) to[k + i] = uint32_t(from[i]);
      k += count;
    } else {
      int64_t i = 0;
#if defined(__AVX2__)
      if constexpr (sizeof(Index) == 4) {
        const int* words = reinterpret_cast<const int*>(words_.data());
        for (; i + 8 <= count; i += 8) {
          const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
          const __m256i word = _mm256_i32gather_epi32(words, _mm256_srli_epi32(v, 5), 4);
          const __m256i shift = _mm256_andnot_si256(v, _mm256_set1_epi32(31));  // 31 - v % 32: moves the bit to the sign
          k += append(v, unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(word, shift)))), to + k);
        }
      }
#endif
      for (; i < count; i++) {
        to[k] = uint32_t(from[i]);
        k += words_[size_t(from[i] >> 5)] >> (from[i] & 31) & 1;
      }
    }
    for (int64_t j = before; j < k; j++) doubt[d + j - before] = uint32_t(j);
    d += k - before;
  }

 private:
  // Counted by quarter octaves of cuts and sizes, for some edges of some rows.
  template <class Index>
  static float best(const PrunedHop& h) {
    constexpr int64_t kSampled = 4096, kEdges = 64;
    constexpr int kLevels = 128;
    const Edges& e = h.edges;
    const Index* indices = static_cast<const Index*>(e.indices);
    const auto quarter = [](float size) {
      uint32_t bits;
      std::memcpy(&bits, &size, sizeof bits);
      return int(bits >> 21);
    };
    const int64_t step = std::max<int64_t>(1, e.n / kSampled);
    int lowest = 1 << 30;
    for (int64_t u = 0; u < e.n; u += step)
      if (e.end[u] > e.start[u]) lowest = std::min(lowest, quarter(cut(h, u)));
    if (lowest == 1 << 30) return 1e-45f;  // no edge at all
    // Edges whose cut, and whose cut and size, reach a level: looked up are those of lower cuts, and those where both do.
    std::vector<double> both(size_t(kLevels) + 1, 0.0), high(size_t(kLevels) + 1, 0.0);
    double all = 0;
    for (int64_t u = 0; u < e.n; u += step) {
      const int64_t degree = e.end[u] - e.start[u], stride = std::max<int64_t>(1, degree / kEdges);
      const int own = std::clamp(quarter(cut(h, u)) - lowest, 0, kLevels - 1);
      all += double(degree);
      high[size_t(own)] += double(degree);
      for (int64_t i = e.start[u]; i < e.end[u]; i += stride) {
        const float size = h.size[indices[i]];
        if (size > 0) both[size_t(std::clamp(quarter(size) - lowest, -1, own) + 1)] += double(stride);
      }
    }
    for (int l = kLevels - 1; l > 0; l--) {
      both[size_t(l)] += both[size_t(l) + 1];
      high[size_t(l) - 1] += high[size_t(l)];
    }
    int chosen = 0;
    double least = -1;
    for (int l = 0; l < kLevels; l++) {
      const double doubts = both[size_t(l) + 1] + (all - high[size_t(l)]);
      if (least < 0 || doubts < least) least = doubts, chosen = l;
    }
    const uint32_t bits = uint32_t(lowest + chosen) << 21;
    float level;
    std::memcpy(&level, &bits, sizeof level);
    return std::max(level, 1e-45f);
  }

  Scattered<uint32_t> words_;
  float level_ = 0;
};

// Lists the sources of a row that may matter: those in `senders` if given, else those whose largest block reaches `level`.
// Branch-free: eight at a time where the processor can gather. With `kRest`, and without `senders`, `rest` becomes the sum of
// the largest blocks of the others.
template <bool kRest, class Index>
inline int64_t list_sources(const Index* from, int64_t count, const Senders* senders, const float* top, float level,
                            uint32_t* to, float* rest) {
  int64_t i = 0, k = 0;
  float others = 0;
#if defined(__AVX2__)
  if constexpr (sizeof(Index) == 4) {
    __m256 passed_over{};
    for (; i + 8 <= count; i += 8) {
      const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
      unsigned flags;
      if (senders) {
        const int* bits = reinterpret_cast<const int*>(senders->bits.data());
        const __m256i word = _mm256_i32gather_epi32(bits, _mm256_srli_epi32(v, 5), 4);
        const __m256i shift = _mm256_andnot_si256(v, _mm256_set1_epi32(31));  // 31 - v % 32: moves the bit to the sign
        flags = unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(word, shift))));
        if (!flags) continue;
      } else {
        const __m256 size = _mm256_i32gather_ps(top, v, 4);
        const __m256 reaches = _mm256_cmp_ps(size, _mm256_set1_ps(level), _CMP_GE_OQ);
        flags = unsigned(_mm256_movemask_ps(reaches));
        if (kRest) passed_over += _mm256_andnot_ps(reaches, size);
      }
      k += append(v, flags, to + k);
    }
    if (kRest)
      for (int lane = 0; lane < 8; lane++) others += passed_over[lane];
  }
#endif
  for (; i < count; i++) {
    to[k] = uint32_t(from[i]);
    const bool yes = senders ? senders->has(from[i]) : top[from[i]] >= level;
    if (kRest && !senders && !yes) others += top[from[i]];
    k += yes;
  }
  if (kRest) *rest = others;
  return k;
}

constexpr uint32_t kNobody = ~0u;  // takes the place of a source that turns out not to reach the cut

// The ones that are somebody, in order, to the front; how many.
inline int64_t close_ranks(uint32_t* source, int64_t first, int64_t last, int64_t to) {
  int64_t j = first;
#if defined(__AVX2__)
  for (; j + 8 <= last; j += 8) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + j));
    const __m256i nobody = _mm256_cmpeq_epi32(v, _mm256_set1_epi32(-1));
    to += append(v, ~unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(nobody))) & 255, source + to);
  }
#endif
  for (; j < last; j++) {
    source[to] = source[j];
    to += source[j] != kNobody;
  }
  return to;
}

}  // namespace
}  // namespace unifews
