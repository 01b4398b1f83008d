// Hops of linear recurrences over rows stored in few bytes; sums are float32. rows.h says what the arrays mean.
#include "rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "block.h"

namespace unifews {
namespace {

inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

inline uint32_t to_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline Block operator*(const Block& x, const Block& y) {
  Block z;
  for (int p = 0; p < kParts; p++) z.part[p] = x.part[p] * y.part[p];
  return z;
}

inline Block operator-(const Block& x, const Block& y) {
  Block z;
  for (int p = 0; p < kParts; p++) z.part[p] = x.part[p] - y.part[p];
  return z;
}

inline Block& add(Block& sum, const Block& x, const Block& y) {
  for (int p = 0; p < kParts; p++) sum.part[p] += x.part[p] * y.part[p];
  return sum;
}

inline const float* lanes(const Block& x) { return reinterpret_cast<const float*>(&x); }
inline float* lanes(Block& x) { return reinterpret_cast<float*>(&x); }

#if defined(__AVX512F__)
// The largest magnitude of block b in lane b: halves, quarters and so on of two vectors are compared in one instruction.
template <int kBlocks>
inline __m512 largest(const Block* x) {
  const auto magnitude = [x](int b) { return b < kBlocks ? _mm512_abs_ps((__m512)x[b].part[0]) : _mm512_setzero_ps(); };
  const auto halves = [&](int b) {
    const __m512 p = magnitude(b), q = magnitude(b + 1);
    return _mm512_max_ps(_mm512_shuffle_f32x4(p, q, 0x44), _mm512_shuffle_f32x4(p, q, 0xee));
  };
  const auto quarters = [&](int b) {
    if (b >= kBlocks) return _mm512_setzero_ps();
    const __m512 p = halves(b), q = halves(b + 2);
    return _mm512_max_ps(_mm512_shuffle_f32x4(p, q, 0x88), _mm512_shuffle_f32x4(p, q, 0xdd));
  };
  const __m512 p = quarters(0), q = quarters(4);  // block b is in the quarter b % 4
  __m512 most = _mm512_max_ps(_mm512_unpacklo_ps(p, q), _mm512_unpackhi_ps(p, q));
  most = _mm512_max_ps(most, _mm512_permute_ps(most, 0x4e));
  return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0), most);
}
#endif

// ------------------------------------------------------------------------------------------------------- row formats
// A format has kBytes of a block, and a Row that is made of a place and a factor: add(sum, b) adds factor times block b.
// store<kBlocks>() writes a row and says what is lost, stored - x; a format that loses nothing leaves that alone.

struct Float32 {
  static constexpr int kBytes = 64;
  static constexpr bool kExact = true;
  struct Row {
    const float* row;
    float factor;
    Row(const Rows& r, int64_t u, float factor) : row(reinterpret_cast<const float*>(r.rows + u * r.stride)), factor(factor) {}
    Block value(int b) const { return factor * block(row + b * kLanes); }
    void add(Block& sum, int b) const { sum.add(factor, block(row + b * kLanes)); }
  };
  template <int kBlocks>
  static void store(const Rows& r, int64_t u, const Block* x, Block*) {
    for (int b = 0; b < kBlocks; b++) stream(reinterpret_cast<float*>(r.rows + u * r.stride) + b * kLanes, x[b]);
  }
};

// The upper half of a float32, rounded to nearest, ties to even.
struct Bfloat16 {
  static constexpr int kBytes = 32;
  static constexpr bool kExact = false;
  struct Row {
    const uint8_t* row;
    float factor;
    Row(const Rows& r, int64_t u, float factor) : row(r.rows + u * r.stride), factor(factor) {}
    Block raw(int b) const {
      const uint8_t* at = row + b * kBytes;
      Block x;
#if defined(__AVX512F__)
      x.part[0] = (Register)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i*)at)), 16);
#elif defined(__AVX2__)
      for (int p = 0; p < 2; p++)
        x.part[p] = (Register)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_load_si128((const __m128i*)(at + 16 * p))), 16);
#else
      uint16_t half[kLanes];
      std::memcpy(half, at, sizeof half);
      for (int k = 0; k < kLanes; k++) lanes(x)[k] = from_bits(uint32_t(half[k]) << 16);
#endif
      return x;
    }
    Block value(int b) const { return factor * raw(b); }
    void add(Block& sum, int b) const { sum.add(factor, raw(b)); }
  };
  template <int kBlocks>
  static void store(const Rows& r, int64_t u, const Block* x, Block* lost) {
    for (int b = 0; b < kBlocks; b++) {
      uint16_t half[kLanes];
      for (int k = 0; k < kLanes; k++) {
        const uint32_t bits = to_bits(lanes(x[b])[k]);
        const uint32_t up = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
        half[k] = uint16_t(up);
        lanes(lost[b])[k] = from_bits(up << 16) - lanes(x[b])[k];
      }
      std::memcpy(r.rows + u * r.stride + b * kBytes, half, sizeof half);
    }
  }
};

// A block in whole steps from -kMost to kMost, ties to even. A step has three significant bits, is at least 1/kMost of the block's
// largest magnitude, and is stored as the byte e of its bits (kLeast + e) << kShift: from 2^-44 to 1.75·2^19.
template <int kMost>
struct Steps {
  static constexpr int kShift = 21;
  static constexpr uint32_t kLeast = (127 - 44) << 2;
  static constexpr float kPart = 1.0f / float(kMost);
  static float step_of(uint32_t e) { return from_bits((kLeast + e) << kShift); }
  static uint32_t step_for(float most) {
    const int32_t up = int32_t((to_bits(most * kPart) + (1u << kShift) - 1) >> kShift) - int32_t(kLeast);
    return uint32_t(std::min(std::max(up, 0), 255));
  }
#if defined(__AVX512F__)
  // Of the bytes of a row, in the first lanes.
  static __m512 steps_of(const uint8_t* at) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(kLeast)), kShift));
  }
  // Write the steps of all blocks at once, and call each(b, steps of block b as int32), which are lost[b] more than x[b].
  template <int kBlocks, class Each>
  static void divide(uint8_t* steps, const Block* x, Block* lost, Each each) {
    const __m512 most = _mm512_mul_ps(largest<kBlocks>(x), _mm512_set1_ps(kPart));
    __m512i e = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(most), _mm512_set1_epi32((1 << kShift) - 1)), kShift);
    e = _mm512_sub_epi32(_mm512_max_epi32(e, _mm512_set1_epi32(kLeast)), _mm512_set1_epi32(kLeast));
    const bool fits = !_mm512_cmpgt_epi32_mask(e, _mm512_set1_epi32(255));
    e = _mm512_min_epi32(e, _mm512_set1_epi32(255));
    const __m512 step = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(kLeast)), kShift));
    const __m512 inverse = _mm512_div_ps(_mm512_set1_ps(1.0f), step);
    const int64_t bytes = _mm_cvtsi128_si64(_mm512_cvtepi32_epi8(e));
    std::memcpy(steps, &bytes, kBlocks);
    for (int b = 0; b < kBlocks; b++) {
      const __m512i lane = _mm512_set1_epi32(b);
      const __m512 y = (__m512)x[b].part[0], limit = _mm512_set1_ps(float(kMost));
      __m512 ratio = _mm512_mul_ps(y, _mm512_permutexvar_ps(lane, inverse));
      if (!fits) ratio = _mm512_min_ps(_mm512_max_ps(ratio, _mm512_sub_ps(_mm512_setzero_ps(), limit)), limit);
      const __m512i q = _mm512_cvtps_epi32(ratio);
      lost[b].part[0] = (Register)_mm512_fmsub_ps(_mm512_cvtepi32_ps(q), _mm512_permutexvar_ps(lane, step), y);
      each(b, q);
    }
  }
#else
  // As above, with each(b, steps of block b as floats).
  template <int kBlocks, class Each>
  static void divide(uint8_t* steps, const Block* x, Block* lost, Each each) {
    for (int b = 0; b < kBlocks; b++) {
      const uint32_t e = step_for(largest_of(x[b]));
      const float step = step_of(e), inverse = 1.0f / step;
      Block q;
      for (int k = 0; k < kLanes; k++) {
        lanes(q)[k] = std::min(std::max(std::nearbyintf(lanes(x[b])[k] * inverse), -float(kMost)), float(kMost));
        lanes(lost[b])[k] = lanes(q)[k] * step - lanes(x[b])[k];
      }
      steps[b] = uint8_t(e);
      each(b, q);
    }
  }
#endif
};

struct Int8 : Steps<127> {
  static constexpr int kBytes = 16;
  static constexpr bool kExact = false;
  struct Row {
    const int8_t* row;
#if defined(__AVX512F__)
    __m512 step;
    Row(const Rows& r, int64_t u, float factor) : row(reinterpret_cast<const int8_t*>(r.rows + u * r.stride)) {
      step = steps_of(r.steps + u * r.step_stride);
      if (factor != 1.0f) step = _mm512_mul_ps(step, _mm512_set1_ps(factor));
    }
    __m512 scale(int b) const { return _mm512_permutexvar_ps(_mm512_set1_epi32(b), step); }
    __m512 raw(int b) const {
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i*)(row + b * kBytes))));
    }
    Block value(int b) const {
      Block x;
      x.part[0] = (Register)_mm512_mul_ps(scale(b), raw(b));
      return x;
    }
    void add(Block& sum, int b) const {
      sum.part[0] = (Register)_mm512_fmadd_ps(scale(b), raw(b), (__m512)sum.part[0]);
    }
#else
    const uint8_t* steps;
    float factor;
    Row(const Rows& r, int64_t u, float factor)
        : row(reinterpret_cast<const int8_t*>(r.rows + u * r.stride)), steps(r.steps + u * r.step_stride), factor(factor) {}
    float scale(int b) const { return factor * step_of(steps[b]); }
    Block raw(int b) const {
      Block x;
      const int8_t* at = row + b * kBytes;
#if defined(__AVX2__)
      for (int p = 0; p < 2; p++)
        x.part[p] = (Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(at + 8 * p))));
#else
      for (int k = 0; k < kLanes; k++) lanes(x)[k] = float(at[k]);
#endif
      return x;
    }
    Block value(int b) const { return scale(b) * raw(b); }
    void add(Block& sum, int b) const { sum.add(scale(b), raw(b)); }
#endif
  };
  template <int kBlocks>
  static void store(const Rows& r, int64_t u, const Block* x, Block* lost) {
    uint8_t* at = r.rows + u * r.stride;
#if defined(__AVX512F__)
    divide<kBlocks>(r.steps + u * r.step_stride, x, lost, [at](int b, __m512i q) {
      _mm_store_si128((__m128i*)(at + b * kBytes), _mm512_cvtepi32_epi8(q));
    });
#else
    divide<kBlocks>(r.steps + u * r.step_stride, x, lost, [at](int b, const Block& q) {
      for (int k = 0; k < kLanes; k++) reinterpret_cast<int8_t*>(at)[b * kBytes + k] = int8_t(lanes(q)[k]);
    });
#endif
  }
};

// Two blocks in 16 bytes: value k of the first in the lower half of byte k, of the second in the upper half.
struct Int4 : Steps<7> {
  static constexpr int kBytes = 8;
  static constexpr bool kExact = false;
  struct Row {
    const uint8_t* row;
#if defined(__AVX512F__)
    __m512 step;  // over 16: raw values are 16 times too large
    Row(const Rows& r, int64_t u, float factor) : row(r.rows + u * r.stride) {
      step = _mm512_mul_ps(steps_of(r.steps + u * r.step_stride), _mm512_set1_ps(factor / 16));
    }
    __m512 scale(int b) const { return _mm512_permutexvar_ps(_mm512_set1_epi32(b), step); }
    __m512 raw(int b) const {
      const __m128i pair = _mm_load_si128((const __m128i*)(row + b / 2 * 16));
      const __m128i half = _mm_and_si128(b % 2 ? pair : _mm_slli_epi16(pair, 4), _mm_set1_epi8(char(0xf0)));
      return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(half));
    }
    Block value(int b) const {
      Block x;
      x.part[0] = (Register)_mm512_mul_ps(scale(b), raw(b));
      return x;
    }
    void add(Block& sum, int b) const {
      sum.part[0] = (Register)_mm512_fmadd_ps(scale(b), raw(b), (__m512)sum.part[0]);
    }
#else
    const uint8_t* steps;
    float factor;
    Row(const Rows& r, int64_t u, float factor)
        : row(r.rows + u * r.stride), steps(r.steps + u * r.step_stride), factor(factor / 16) {}
    float scale(int b) const { return factor * step_of(steps[b]); }
    Block raw(int b) const {
      Block x;
      const uint8_t* at = row + b / 2 * 16;
#if defined(__AVX2__)
      const __m128i pair = _mm_load_si128((const __m128i*)at);
      const __m128i half = _mm_and_si128(b % 2 ? pair : _mm_slli_epi16(pair, 4), _mm_set1_epi8(char(0xf0)));
      x.part[0] = (Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half));
      x.part[1] = (Register)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(half, 8)));
#else
      for (int k = 0; k < kLanes; k++) lanes(x)[k] = float(int8_t(uint8_t((b % 2 ? at[k] : at[k] << 4) & 0xf0)));
#endif
      return x;
    }
    Block value(int b) const { return scale(b) * raw(b); }
    void add(Block& sum, int b) const { sum.add(scale(b), raw(b)); }
#endif
  };
  template <int kBlocks>
  static void store(const Rows& r, int64_t u, const Block* x, Block* lost) {
    uint8_t* at = r.rows + u * r.stride;
#if defined(__AVX512F__)
    __m128i before{};
    divide<kBlocks>(r.steps + u * r.step_stride, x, lost, [at, &before](int b, __m512i q) {
      const __m128i half = _mm_and_si128(_mm512_cvtepi32_epi8(q), _mm_set1_epi8(15));
      const __m128i pair = b % 2 ? _mm_or_si128(before, _mm_slli_epi16(half, 4)) : half;
      before = half;  // of an odd number of blocks, the last is alone
      if (b % 2 || b + 1 == kBlocks) _mm_store_si128((__m128i*)(at + b / 2 * 16), pair);
    });
#else
    divide<kBlocks>(r.steps + u * r.step_stride, x, lost, [at](int b, const Block& q) {
      for (int k = 0; k < kLanes; k++) {
        const uint8_t half = uint8_t(int8_t(lanes(q)[k])) & 15;
        at[b / 2 * 16 + k] = uint8_t(b % 2 ? at[b / 2 * 16 + k] | half << 4 : half);
      }
    });
#endif
  }
};

// --------------------------------------------------------------------------------------------- sums over fixed ranges

constexpr int64_t kRun = 64;       // rows whose sums are float32
constexpr int64_t kChunks = 2048;  // ranges of rows, at most

inline int64_t chunk_of(int64_t n) { return std::max<int64_t>(4 * kRun, ((n + kChunks - 1) / kChunks + kRun - 1) / kRun * kRun); }

// The sums of a chunk: runs of rows in float32, added up in double.
template <int kBlocks>
struct Measure {
  Block part[kSums][kBlocks];
  double* total;
  explicit Measure(double* total) : total(total) { clear(); }
  void clear() { std::memset(static_cast<void*>(part), 0, sizeof part); }
  template <bool kExact>
  void add(float weight, float own, const Block* y, const Block* before, const Block* lost) {
    for (int b = 0; b < kBlocks; b++) {
      const Block weighted = weight * y[b];
      if (before) unifews::add(part[0][b], weighted, before[b]);
      unifews::add(part[1][b], weighted, y[b]);
      if (!kExact) unifews::add(part[2][b], weight * lost[b], lost[b]);
    }
    if (own)
      for (int b = 0; b < kBlocks; b++) unifews::add(part[3][b], own * y[b], y[b]);
  }
  void flush() {
    const float* from = reinterpret_cast<const float*>(part);
    for (int k = 0; k < kSums * kBlocks * kLanes; k++) total[k] += from[k];
    clear();
  }
};

// One range after another, in order, whatever thread has done it.
void add_up(const std::vector<double>& chunks, int64_t size, double* sums, bool set) {
  if (set) std::fill(sums, sums + size, 0.0);
  for (size_t at = 0; at < chunks.size(); at += size)
    for (int64_t k = 0; k < size; k++) sums[k] += chunks[at + k];
}

// Calls row(u, measure) for rows first .. last and adds up what is measured.
template <int kBlocks, class Each>
void for_rows(int64_t first, int64_t last, int64_t n, int threads, double* sums, bool set, Each each) {
  const int64_t chunk = chunk_of(n), count = (last - first + chunk - 1) / chunk, size = kSums * kBlocks * kLanes;
  std::vector<double> chunks(size_t(count * size), 0.0);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t c = 0; c < count; c++) {
    Measure<kBlocks> measure(chunks.data() + c * size);
    const int64_t end = std::min(last, first + (c + 1) * chunk);
    for (int64_t u = first + c * chunk; u < end;) {
      for (const int64_t stop = std::min(end, u + kRun); u < stop; u++) each(u, measure);
      measure.flush();
    }
  }
  add_up(chunks, size, sums, set);
}

// ----------------------------------------------------------------------------------------------------------- kernels

template <class F, int kBlocks>
void encode_tile(const EncodeRows& g) {
  for_rows<kBlocks>(g.row0, g.row0 + g.count, g.n, g.threads, g.sums, false, [&g](int64_t u, Measure<kBlocks>& measure) {
    const float* x = g.x + (u - g.row0) * g.x_stride;
    const float weight = g.weight[u], source = g.source[u], own = g.own ? g.own[u] : 0.0f;
    Block y[kBlocks], lost[kBlocks];
    for (int b = 0; b < kBlocks; b++) {
      y[b] = Block{};
      if (!weight) continue;
      const int columns = std::min(kLanes, g.width - b * kLanes);
      if (columns == kLanes)
        std::memcpy(&y[b], x + b * kLanes, sizeof y[b]);
      else
        for (int k = 0; k < columns; k++) lanes(y[b])[k] = x[b * kLanes + k];
      y[b] = (source * y[b] - block(g.mean + b * kLanes)) * block(g.scale + b * kLanes);
    }
    F::template store<kBlocks>(g.out, u, y, lost);
    measure.template add<F::kExact>(weight, own, y, nullptr, lost);
  });
}

template <class F, int kBlocks>
inline void fetch(const Rows& rows, int64_t u) {
  for (int at = 0; at < kBlocks * F::kBytes; at += 64) __builtin_prefetch(rows.rows + u * rows.stride + at);
  if constexpr (F::kBytes <= 16) __builtin_prefetch(rows.steps + u * rows.step_stride);
}

constexpr int64_t kSoon = 4;  // rows ahead that their own iterates are fetched: too many arrays for the processor to follow

template <class F, class Index, bool kWeighted, int kBlocks>
void hop_tile(const RecurrenceHop& h) {
  const Edges& e = h.edges;
  const Index* indices = static_cast<const Index*>(e.indices);
  constexpr int kWidth = kBlocks * kLanes;
  constexpr int kAhead = 64;  // edges: the next ones of a row, and of the rows after it
  const Rows& source = h.iterates[h.count - 1];
  const int64_t last = e.n ? std::max<int64_t>(e.end[e.n - 1] - 1, 0) : 0;
  for_rows<kBlocks>(0, e.n, e.n, h.threads, h.sums, true, [&](int64_t u, Measure<kBlocks>& measure) {
    const int64_t soon = std::min(u + kSoon, e.n - 1);
    for (int l = 0; l < h.count; l++) fetch<F, kBlocks>(h.iterates[l], soon);
    Block sum[kBlocks];
    for (int b = 0; b < kBlocks; b++) sum[b] = Block{};
    const int64_t end = e.end[u];
    const int64_t next = u + 1 < e.n ? e.start[u + 1] - end : 0;  // rows are short: look ahead into the next ones
    for (int64_t i = e.start[u]; i < end; i++) {
      const int64_t ahead = i + kAhead;
      const int64_t v = int64_t(indices[std::min(ahead < end ? ahead : ahead + next, last)]);
      fetch<F, kBlocks>(source, v);
      const typename F::Row row(source, int64_t(indices[i]), kWeighted ? e.weight[i] : 1.0f);
      for (int b = 0; b < kBlocks; b++) row.add(sum[b], b);
    }
    const float weight = h.weight[u], own = h.own ? h.own[u] : 0.0f, gain = h.gain[u], keep = h.keep[u];
    Block y[kBlocks], before[kBlocks];
    {
      const typename F::Row row(source, u, 1.0f);
      const float* mix = h.mix + (h.count - 1) * kWidth;
      for (int b = 0; b < kBlocks; b++) {
        before[b] = row.value(b);
        Block s = gain * sum[b];
        s.add(keep, before[b]);
        y[b] = s * block(h.factor + b * kLanes);
        add(y[b], before[b], block(mix + b * kLanes));
      }
    }
    for (int l = 0; l + 1 < h.count; l++) {
      const typename F::Row row(h.iterates[l], u, 1.0f);
      const float* mix = h.mix + l * kWidth;
      for (int b = 0; b < kBlocks; b++) add(y[b], row.value(b), block(mix + b * kLanes));
    }
    Block lost[kBlocks];
    if (!weight)
      for (int b = 0; b < kBlocks; b++) y[b] = Block{};
    F::template store<kBlocks>(h.out, u, y, lost);
    measure.template add<F::kExact>(weight, own, y, before, lost);
  });
}

template <class F, int kBlocks>
void combine_tile(const CombineRows& g) {
  constexpr int kWidth = kBlocks * kLanes;
#pragma omp parallel for schedule(dynamic, kRows) num_threads(g.threads)
  for (int64_t u = 0; u < g.n; u++) {
    if (!g.weight[u]) continue;
    for (int l = 0; l < g.count; l++) fetch<F, kBlocks>(g.iterates[l], std::min(u + kSoon, g.n - 1));
    Block sum[kBlocks];
    for (int b = 0; b < kBlocks; b++) sum[b] = block(g.offset + b * kLanes);
    for (int l = 0; l < g.count; l++) {
      const typename F::Row row(g.iterates[l], u, 1.0f);
      for (int b = 0; b < kBlocks; b++) add(sum[b], row.value(b), block(g.mix + l * kWidth + b * kLanes));
    }
    float* out = g.result + u * g.stride;
    const bool whole = g.width == kWidth && g.stride % kLanes == 0 && reinterpret_cast<uintptr_t>(g.result) % 64 == 0;
    for (int b = 0; b < kBlocks; b++) {
      sum[b] *= g.factor[u];
      if (whole)
        stream(out + b * kLanes, sum[b]);
      else
        std::memcpy(out + b * kLanes, &sum[b], size_t(std::min(kLanes, g.width - b * kLanes)) * 4);
    }
  }
}

// ----------------------------------------------------------------------------------------------- picks of an instance

#define FOR_BLOCKS(blocks, CALL)                                              \
  switch (blocks) {                                                           \
    case 1: return CALL(1);                                                   \
    case 2: return CALL(2);                                                   \
    case 3: return CALL(3);                                                   \
    case 4: return CALL(4);                                                   \
    case 5: return CALL(5);                                                   \
    case 6: return CALL(6);                                                   \
    case 7: return CALL(7);                                                   \
    case 8: return CALL(8);                                                   \
  }

template <class F>
void encode_in(const EncodeRows& g) {
#define CALL(B) encode_tile<F, B>(g)
  FOR_BLOCKS(g.blocks, CALL)
#undef CALL
}

template <class F, class Index, bool kWeighted>
void hop_over(const RecurrenceHop& h) {
#define CALL(B) hop_tile<F, Index, kWeighted, B>(h)
  FOR_BLOCKS(h.blocks, CALL)
#undef CALL
}

template <class F>
void hop_in(const RecurrenceHop& h) {
  auto run = h.edges.wide ? (h.edges.weight ? hop_over<F, int64_t, true> : hop_over<F, int64_t, false>)
                          : (h.edges.weight ? hop_over<F, int32_t, true> : hop_over<F, int32_t, false>);
  run(h);
}

template <class F>
void combine_in(const CombineRows& g) {
#define CALL(B) combine_tile<F, B>(g)
  FOR_BLOCKS(g.blocks, CALL)
#undef CALL
}

template <class Task, void (*... kInstance)(const Task&)>
void by_format(Format format, const Task& task) {
  constexpr void (*instances[])(const Task&) = {kInstance...};  // in the order of Format
  instances[int(format)](task);
}

void column_sums(const ColumnSums& g) {
  const int64_t chunk = chunk_of(g.count), count = (g.count + chunk - 1) / chunk, width = g.width;
  std::vector<double> chunks(size_t(2 * count * width), 0.0);
#pragma omp parallel num_threads(g.threads)
  {
    std::vector<float> part(size_t(2 * width));
#pragma omp for schedule(dynamic, 1)
    for (int64_t c = 0; c < count; c++) {
      double* total = chunks.data() + c * 2 * width;
      const int64_t end = std::min(g.count, (c + 1) * chunk);
      for (int64_t u = c * chunk; u < end;) {
        std::fill(part.begin(), part.end(), 0.0f);
        for (const int64_t stop = std::min(end, u + kRun); u < stop; u++) {
          const float* __restrict x = g.x + u * g.stride;
          float* __restrict sum = part.data();
          float* __restrict square = part.data() + width;
          const float a = g.factor[u], b = g.square[u];
          for (int64_t k = 0; k < width; k++) {
            sum[k] += a * x[k];
            square[k] += b * x[k] * x[k];
          }
        }
        for (int64_t k = 0; k < 2 * width; k++) total[k] += part[size_t(k)];
      }
    }
  }
  add_up(chunks, 2 * width, g.sums, false);
}

float largest_magnitude(const float* x, int64_t count, int threads) {
  int32_t most = 0;  // magnitudes are ordered as their bits are, and NaN comes last
#pragma omp parallel for schedule(static) num_threads(threads) reduction(max : most)
  for (int64_t at = 0; at < count; at += 4096) {
    int32_t here = 0;
    const int64_t end = std::min(count, at + 4096);
    for (int64_t i = at; i < end; i++) here = std::max(here, int32_t(to_bits(x[i]) & 0x7fffffffu));
    most = std::max(most, here);
  }
  return from_bits(uint32_t(most));
}

void tridiagonal(const TridiagonalSeries& g) {
  const int width = g.blocks * kLanes;
#pragma omp parallel for schedule(static) num_threads(g.threads) if (g.blocks > 16)
  for (int at = 0; at < width; at += kLanes) {
    std::vector<Block> now(size_t(g.size), Block{}), before(size_t(g.size), Block{}), sum(size_t(g.size), Block{});
    for (int k = 0; k < kLanes; k++) lanes(now[0])[k] = 1;
    sum[0] = float(g.series[0]) * now[0];
    for (int term = 1; term < g.terms; term++) {
      const float scale = (term == 1 ? 1.0f : 2.0f) / g.radius, c = float(g.series[term]);
      const int reach = std::min(g.size, term + 1);  // C_k(J) e_1 has k + 1 entries
      for (int i = 0; i < reach; i++) {
        Block y = block(g.diagonal + int64_t(i) * width + at) * now[i];
        y.add(-g.centre, now[i]);
        if (i > 0) add(y, block(g.off_diagonal + int64_t(i - 1) * width + at), now[i - 1]);
        if (i + 1 < reach) add(y, block(g.off_diagonal + int64_t(i) * width + at), now[i + 1]);
        before[i] = scale * y - before[i];
      }
      std::swap(now, before);
      for (int i = 0; i < reach; i++) sum[i].add(c, now[i]);
    }
    for (int i = 0; i < g.size; i++) block(g.out + int64_t(i) * width + at) = sum[i];
  }
}

}  // namespace

const RowKernels& UNIFEWS_ROWS() {
  static const RowKernels table{
      by_format<EncodeRows, encode_in<Float32>, encode_in<Bfloat16>, encode_in<Int8>, encode_in<Int4>>,
      by_format<RecurrenceHop, hop_in<Float32>, hop_in<Bfloat16>, hop_in<Int8>, hop_in<Int4>>,
      by_format<CombineRows, combine_in<Float32>, combine_in<Bfloat16>, combine_in<Int8>, combine_in<Int4>>,
      column_sums,
      largest_magnitude,
      tridiagonal,
  };
  return table;
}

}  // namespace unifews
