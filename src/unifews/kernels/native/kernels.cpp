// The kernels, written once and compiled once per instruction set (UNIFEWS_TABLE names the build; see CMakeLists.txt).
// kernels.h says what the arrays mean.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "block.h"
#include "kernels.h"

namespace unifews {
namespace {

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

// ------------------------------------------------------------------------------------------------ one tile, all edges

// q'[u] = keep[u]·q[u] + gain[u]·Σ A[u,v]·q[v];  out[u] += coefficient·q'[u];  square[u] += ‖q'[u]‖²
// Bound by memory: per edge one row of the tile, per node one row in and one or three out. The row in the making stays in
// registers; rows a few edges ahead are already on their way.
template <class Index, bool kWeighted, int kBlocks>
void full_hop_tile(const Edges& e, const float* keep, const float* gain, const float* q, float* q_out,
                   float coefficient, float* out, float* square, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
  constexpr int kWidth = kBlocks * kLanes;
  constexpr int kAhead = 8;
  const int64_t last = e.n ? std::max<int64_t>(e.end[e.n - 1] - 1, 0) : 0;
#pragma omp parallel for schedule(dynamic, kRows) num_threads(threads)
  for (int64_t u = 0; u < e.n; u++) {
    Block sum[kBlocks];
    for (int b = 0; b < kBlocks; b++) sum[b] = Block{};
    const int64_t end = e.end[u];
    // Rows are short, so look ahead into the next one; `last` keeps that inside the array.
    const int64_t next = u + 1 < e.n ? e.start[u + 1] - end : 0;
    for (int64_t i = e.start[u]; i < end; i++) {
      const int64_t ahead = i + kAhead;
      prefetch(q + int64_t(indices[std::min(ahead < end ? ahead : ahead + next, last)]) * kWidth, kBlocks);
      const float* row = q + int64_t(indices[i]) * kWidth;
      if (kWeighted) {
        const float w = e.weight[i];
        for (int b = 0; b < kBlocks; b++) sum[b].add(w, block(row + b * kLanes));
      } else {
        for (int b = 0; b < kBlocks; b++) sum[b] += block(row + b * kLanes);
      }
    }
    const float g = gain ? gain[u] : 1.0f;
    float total = 0;
    for (int b = 0; b < kBlocks; b++) {
      Block value = g * sum[b];
      if (keep) value.add(keep[u], block(q + u * kWidth + b * kLanes));
      stream(q_out + u * kWidth + b * kLanes, value);
      if (out) block(out + u * kWidth + b * kLanes).add(coefficient, value);
      if (square) total += sum_of_squares(value);
    }
    if (square) square[u] += total;
  }
}

template <class Index, bool kWeighted>
void full_hop_index(const Edges& e, int blocks, const float* keep, const float* gain, const float* q, float* q_out,
                    float coefficient, float* out, float* square, int threads) {
  switch (blocks) {
#define CASE(B) \
  case B: return full_hop_tile<Index, kWeighted, B>(e, keep, gain, q, q_out, coefficient, out, square, threads);
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
  }
}

void full_hop(const Edges& e, int blocks, const float* keep, const float* gain, const float* q, float* q_out,
              float coefficient, float* out, float* square, int threads) {
  auto run = e.wide ? (e.weight ? full_hop_index<int64_t, true> : full_hop_index<int64_t, false>)
                    : (e.weight ? full_hop_index<int32_t, true> : full_hop_index<int32_t, false>);
  run(e, blocks, keep, gain, q, q_out, coefficient, out, square, threads);
}

template <class Index>
void column_hop_index(const Edges& e, const float* keep, const float* gain, const float* q, float* q_out, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
#pragma omp parallel for schedule(dynamic, 1024) num_threads(threads)
  for (int64_t u = 0; u < e.n; u++) {
    double sum = 0;
    for (int64_t i = e.start[u]; i < e.end[u]; i++) sum += (e.weight ? e.weight[i] : 1.0f) * q[indices[i]];
    q_out[u] = keep[u] * q[u] + gain[u] * float(sum);
  }
}

void column_hop(const Edges& e, const float* keep, const float* gain, const float* q, float* q_out, int threads) {
  (e.wide ? column_hop_index<int64_t> : column_hop_index<int32_t>)(e, keep, gain, q, q_out, threads);
}

// out[v] = Σ_u A[u,v]·x[u], a few columns by the transposed matrix, in double. A thread has columns of its own, so that sums
// keep their order.
template <class Index>
void column_push_index(const Edges& e, int columns, const float* x, double* out, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
#pragma omp parallel for schedule(static, 1) num_threads(threads)
  for (int c = 0; c < columns; c++) {
    for (int64_t u = 0; u < e.n; u++) out[u * columns + c] = 0;
    for (int64_t u = 0; u < e.n; u++) {
      const double own = x[u * columns + c];
      for (int64_t i = e.start[u]; i < e.end[u]; i++)
        out[int64_t(indices[i]) * columns + c] += e.weight ? e.weight[i] * own : own;
    }
  }
}

void column_push(const Edges& e, int columns, const float* x, double* out, int threads) {
  (e.wide ? column_push_index<int64_t> : column_push_index<int32_t>)(e, columns, x, out, threads);
}

// For a = Σ_v A[u,v]·source[v]·x[v] with sparse rows x: square[u] = ‖a‖², along[u] = ⟨a, direction⟩. The product is never kept.
template <class Index, class Column>
void spread_squares_index(const Edges& e, const Edges& x, int64_t width, const float* source, const float* direction,
                          double* square, double* along, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
  const Column* columns = static_cast<const Column*>(x.indices);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> sum(size_t(width), 0.0f);
    std::vector<Column> met;
#pragma omp for schedule(dynamic, kRows)
    for (int64_t u = 0; u < e.n; u++) {
      met.clear();
      for (int64_t i = e.start[u]; i < e.end[u]; i++) {
        const int64_t v = indices[i];
        const float w = e.weight ? e.weight[i] * source[v] : source[v];
        for (int64_t k = x.start[v]; k < x.end[v]; k++) {
          float& at = sum[size_t(columns[k])];
          if (at == 0) met.push_back(columns[k]);
          at += x.weight ? w * x.weight[k] : w;
        }
      }
      double total = 0, dot = 0;
      for (const Column j : met) {  // a column that was met again at zero comes by twice, the second time as zero
        const double value = sum[size_t(j)];
        total += value * value;
        if (direction) dot += value * direction[j];
        sum[size_t(j)] = 0;
      }
      square[u] = total;
      along[u] = dot;
    }
  }
}

void spread_squares(const Edges& e, const Edges& x, int64_t width, const float* source, const float* direction,
                    double* square, double* along, int threads) {
  auto run = e.wide ? (x.wide ? spread_squares_index<int64_t, int64_t> : spread_squares_index<int64_t, int32_t>)
                    : (x.wide ? spread_squares_index<int32_t, int64_t> : spread_squares_index<int32_t, int32_t>);
  run(e, x, width, source, direction, square, along, threads);
}

// -------------------------------------------------------------------------------------------------------- in and out

double ingest(const Ingest& g) {
  // Energies are summed over groups of rows that do not depend on the thread count.
  constexpr int64_t kGroup = 1024;
  std::vector<double> energy((g.rows + kGroup - 1) / kGroup, 0.0);
#pragma omp parallel for schedule(static) num_threads(g.threads)
  for (int64_t group = 0; group < int64_t(energy.size()); group++) {
    const int64_t last = std::min(g.rows, (group + 1) * kGroup);
    double sum = 0;
    for (int64_t i = group * kGroup; i < last; i++) {
      const int64_t u = g.row0 + i;
      const float* x = g.x + i * g.stride;
      float* row = g.q + u * g.blocks * kLanes;
      if (g.offset) {
        const float o = g.offset[u];
        for (int k = 0; k < g.width; k++) row[k] = x[k] - o * g.direction[k];
      } else {
        std::memcpy(row, x, g.width * sizeof(float));
      }
      for (int k = g.width; k < g.blocks * kLanes; k++) row[k] = 0;
      const float s = g.source[u];
      float highest = 0, total = 0;
      for (int b = 0; b < g.blocks; b++) {
        Block& value = block(row + b * kLanes);
        sum += sum_of_squares(value);
        value *= s;
        const float square = sum_of_squares(value);
        const float m = g.largest ? largest_of(value) : std::sqrt(square);
        if (g.size) g.size[u * g.blocks + b] = m;
        highest = std::max(highest, m);
        total += square;
      }
      if (g.top) g.top[u] = highest;
      if (g.square) g.square[u] += total;
    }
    energy[group] = sum;
  }
  double sum = 0;
  for (double part : energy) sum += part;
  return sum;
}

// keep^age, and Σ_{k ≤ age} coefficient[stamp + k]·keep^k: what a block left alone has become and has contributed.
struct Past {
  float factor;
  float contribution;
};

inline Past past(float keep, int stamp, int hop, const float* coefficient) {
  Past p{1.0f, coefficient ? coefficient[stamp] : 0.0f};
  for (int k = stamp + 1; k <= hop; k++) {
    p.factor *= keep;
    if (coefficient) p.contribution += coefficient[k] * p.factor;
  }
  return p;
}

void finish(const Finish& f) {
  const Lazy& state = f.state;
#pragma omp parallel for schedule(static) num_threads(f.threads)
  for (int64_t u = 0; u < f.n; u++) {
    const float back = 1 / f.source[u];
    int known = -1;  // blocks of a node were mostly left alone at the same hop
    Past p{};
    for (int b = 0; b * kLanes < f.width; b++) {
      const int64_t at = (u * f.blocks + b) * kLanes;
      Block value;
      if (state.stamp) {
        const int stamp = state.stamp[u * f.blocks + b];
        if (stamp != known) p = past(f.keep[u], known = stamp, f.hop, state.out ? state.coefficient : nullptr);
        value = (state.out ? p.contribution : p.factor) * block(state.buffer[stamp & 1] + at);
        if (state.out && stamp) value += block(state.out + at);
      } else {
        value = block((state.out ? state.out : state.buffer[f.hop & 1]) + at);
      }
      value *= back;
      float* to = f.result + u * f.stride + b * kLanes;
      const int lanes = std::min(kLanes, f.width - b * kLanes);
      if (f.offset) {
        const float o = f.offset[u];
        float* lane = reinterpret_cast<float*>(&value);
        for (int k = 0; k < lanes; k++) lane[k] += o * f.direction[b * kLanes + k];
      }
      std::memcpy(to, &value, lanes * sizeof(float));
    }
  }
}

// ------------------------------------------------------------------------------------------------------- pruned hops

// Whether a block of size m may send anything: an upper bound on its messages, rounded up, against δ. Whoever the exact
// test of an edge lets through must pass here too, or its value would be read before it is brought up to date.
inline bool may_send(float m, float reach, float delta) {
  return m > 0 && (m * reach * 1.00001f >= delta || delta < 1e-30f);  // products of subnormals round too coarsely
}

// out += factor·value; where nothing was contributed before, the line is written without being read.
inline void contribute(const Lazy& s, int64_t at, int stamp, float factor, const Block& value) {
  if (stamp)
    block(s.out + at).add(factor, value);
  else
    stream(s.out + at, factor * value);
}

// What settling the rows of one thread adds up to.
struct Tally {
  int64_t zero[kMaxBlocks] = {};
  float lagging = 0;
};

// The end of a row: `sum` arrived in the blocks of `touched`. Brings those up to date, carries on the ones that may
// still send, leaves the rest alone.
template <bool kLargest, int kBlocks>
inline void settle(const PrunedHop& h, int64_t u, unsigned touched, const float* sum, Tally& tally) {
  const Lazy& s = h.state;
  const float c = h.keep[u], g = h.gain[u], reach = h.reach[u];
  const float* before = h.size + u * kBlocks;
  float* after = h.size_out + u * kBlocks;
  uint16_t* stamps = s.stamp + u * kBlocks;
  // Most rows of a late hop receive nothing and can send nothing: they should cost a few instructions.
  float size[kBlocks], highest = 0;
  for (int b = 0; b < kBlocks; b++) size[b] = c * before[b];
  for (int b = 0; b < kBlocks; b++) highest = std::max(highest, size[b]);
  unsigned sending = 0;
  if (may_send(highest, reach, h.delta))
    for (int b = 0; b < kBlocks; b++) sending |= unsigned(may_send(size[b], reach, h.delta) && stamps[b] == h.hop) << b;
  const unsigned active = touched | sending;
  float lagging = highest;
  if (active) {
    highest = lagging = 0;
    for (int b = 0; b < kBlocks; b++) {
      if (active >> b & 1) {
        const int64_t at = (u * kBlocks + b) * kLanes;
        const int stamp = stamps[b];
        const Past p = past(c, stamp, h.hop, s.out ? s.coefficient : nullptr);
        const Block stored = block(s.buffer[stamp & 1] + at);
        if (s.out) contribute(s, at, stamp, p.contribution, stored);
        Block value = (c * p.factor) * stored;
        if (touched >> b & 1) {
          value.add(g, block(sum + b * kLanes));
          size[b] = magnitude(value, kLargest);
        }
        stream(s.buffer[(h.hop + 1) & 1] + at, value);
        stamps[b] = uint16_t(h.hop + 1);
      } else {
        lagging = std::max(lagging, size[b]);
      }
      highest = std::max(highest, size[b]);
    }
  }
  for (int b = 0; b < kBlocks; b++) after[b] = size[b];
  for (int b = 0; b < kBlocks; b++)
    if (size[b] == 0) tally.zero[b] += h.fanout[u];
  h.top_out[u] = highest;
  tally.lagging = std::max(tally.lagging, lagging * reach * 1.00001f);
}

// Before a hop: blocks left alone that this hop's δ lets send after all are brought up to date.
void rouse(const PrunedHop& h) {
  const Lazy& s = h.state;
#pragma omp parallel for schedule(static) num_threads(h.threads)
  for (int64_t u = 0; u < h.edges.n; u++) {
    for (int b = 0; b < h.blocks; b++) {
      const int64_t at = u * h.blocks + b;
      const float m = h.size[at];
      const int stamp = s.stamp[at];
      if (stamp == h.hop || !may_send(m, h.reach[u], h.delta)) continue;
      // Terms before this hop go to `out`; the value moves on to this hop's buffer.
      const Past p = past(h.keep[u], stamp, h.hop - 1, s.out ? s.coefficient : nullptr);
      const Block stored = block(s.buffer[stamp & 1] + at * kLanes);
      if (s.out) contribute(s, at * kLanes, stamp, p.contribution, stored);
      block(s.buffer[h.hop & 1] + at * kLanes) = (p.factor * h.keep[u]) * stored;
      s.stamp[at] = uint16_t(h.hop);
    }
  }
}

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

constexpr uint32_t kNobody = ~0u;  // takes the place of a source that turns out not to reach the cut

// A thread's lists for a few rows: the sources that may matter, then the cache lines that do.
struct Survivors {
  std::vector<uint32_t> source;   // candidates: node,
  std::vector<uint8_t> sure;      // blocks that reach the cut by their code alone,
  std::vector<uint8_t> doubtful;  // those that may
  std::vector<int64_t> position;  // and edge, where an edge has a weight or a memory
  std::vector<uint32_t> line;     // cache lines: node
  std::vector<uint8_t> which;     // and block
  std::vector<float> weight;
  void reserve(int64_t edges, int blocks, bool positions, bool weighted) {
    const size_t room = size_t(edges) + 64;
    if (source.size() < room) {
      source.resize(2 * room);
      sure.resize(2 * room);
      doubtful.resize(2 * room);
    }
    if (positions && position.size() < room) position.resize(2 * room);
    if (line.size() < room * blocks) {
      line.resize(2 * room * blocks);
      which.resize(2 * room * blocks);
      if (weighted) weight.resize(2 * room * blocks);
    }
  }
};

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

// A few rows where there is one block and a table decides most entries: list those that may reach the cut; look up the sizes of
// those in doubt, and only when it is known who stays fetch their lines.
template <class Index, class Decides>
void listed_rows(const PrunedHop& h, const Decides& table, int64_t first, int64_t rows, Survivors& list, Tally& tally,
                 int64_t& kept) {
  constexpr int kAhead = 24;
  const Edges& e = h.edges;
  const Index* indices = static_cast<const Index*>(e.indices);
  const float* q = h.state.buffer[h.hop & 1];
  uint32_t *source = list.source.data(), *doubt = list.line.data();
  int64_t end[kRows], doubt_end[kRows], k = 0, d = 0;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t u = first + r;
    table.list_apart(indices + e.start[u], e.end[u] - e.start[u], cut(h, u), source, k, doubt, d);
    end[r] = k;
    doubt_end[r] = d;
  }
  for (int64_t i = 0; i < d; i++) __builtin_prefetch(h.size + source[doubt[i]]);
  int64_t left = 0;
  for (int64_t r = 0, j = 0, i = 0; r < rows; r++) {
    const float level = cut(h, first + r);
    for (; i < doubt_end[r]; i++) {
      uint32_t& v = source[doubt[i]];
      v |= uint32_t(h.size[v] >= level) - 1;  // nobody, without a branch
    }
    left = close_ranks(source, j, end[r], left);
    j = end[r];
    end[r] = left;
  }
  for (int j = 0; j < kAhead; j++) source[left + j] = left ? source[left - 1] : 0;
  for (int j = 0; j < kAhead; j++) __builtin_prefetch(q + int64_t(source[j]) * kLanes);
  kept += left;
  for (int64_t r = 0, j = 0; r < rows; r++) {
    const bool touched = j < end[r];
    Block sum{};
    for (; j < end[r]; j++) {
      __builtin_prefetch(q + int64_t(source[j + kAhead]) * kLanes);
      sum += block(q + int64_t(source[j]) * kLanes);
    }
    settle<false, 1>(h, first + r, touched, reinterpret_cast<const float*>(&sum), tally);
  }
}

// Phases, because deciding and gathering in one loop stalls on every mispredicted branch. For a few rows at a time: list
// the sources whose largest block reaches the cut; list their cache lines that reach it (both branch-free); add the lines
// up with the next ones on their way; settle.
template <class Index, bool kWeighted, int kBlocks, bool kCertify>
void pruned_hop_tile(const PrunedHop& h, PrunedCount* count) {
  const Edges& e = h.edges;
  const Index* indices = static_cast<const Index*>(e.indices);
  const float* q = h.state.buffer[h.hop & 1];
  uint8_t* alive = static_cast<uint8_t*>(h.alive);
  const bool inherit = alive != nullptr;
  int64_t kept[kMaxBlocks] = {}, zero[kMaxBlocks] = {};
  float lagging = 0;
  // Weights and memories of edges, and bounds, need their own look at every edge.
  const bool coded = !kWeighted && !kCertify && !inherit && e.n * kBlocks > h.cached && e.n < 0xffffffff;
  const bool marked = coded && kBlocks == 1 && e.n > 8 * h.cached;
  const Codes<kBlocks> codes(h, coded && !marked);
  const Marks marks(h, marked);
  const Senders senders(h, !coded);
  const bool few = !coded && senders.count * 2 < e.n;
  const bool forgets = h.delta > 0;  // a zero reaches δ = 0, so it is passed over but not removed for good
  Bill bill(e.n, kCertify);
  constexpr int kSizesAhead = 24, kLinesAhead = 24;
#pragma omp parallel num_threads(h.threads) reduction(+ : kept[:kMaxBlocks], zero[:kMaxBlocks]) reduction(max : lagging)
  {
    Survivors list;
    Tally tally;
    float level[kRows], rest[kRows];
    int64_t candidates_end[kRows], lines_end[kRows];
    unsigned touched[kRows];
    alignas(64) float sum[kBlocks * kLanes] = {};
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < e.n; first += kRows) {
      const int64_t rows = std::min(e.n - first, kRows);
      list.reserve(e.end[first + rows - 1] - e.start[first], kBlocks, kWeighted || inherit, kWeighted);
      if constexpr (kBlocks == 1)
        if (coded) {
          if (marked)
            listed_rows<Index>(h, marks, first, rows, list, tally, kept[0]);
          else
            listed_rows<Index>(h, codes, first, rows, list, tally, kept[0]);
          continue;
        }
      uint32_t* source = list.source.data();
      uint8_t *sure = list.sure.data(), *doubtful = list.doubtful.data();
      int64_t* position = list.position.data();
      uint32_t* line = list.line.data();
      uint8_t* which = list.which.data();
      float* weight = list.weight.data();

      int64_t candidates = 0;
      for (int64_t r = 0; r < rows; r++) {
        const int64_t u = first + r;
        level[r] = cut(h, u);
        rest[r] = 0;
        if (!kWeighted && !inherit) {
          const int64_t before = candidates;
          if (coded) {
            if (codes.senders)
              candidates += codes.list(indices + e.start[u], e.end[u] - e.start[u], codes.of(level[r]), source + before);
            candidates_end[r] = candidates;
            continue;
          }
          if (!few || senders.count)
            candidates += list_sources<kCertify>(indices + e.start[u], e.end[u] - e.start[u], few ? &senders : nullptr, h.top,
                                                 level[r], source + before, rest + r);
          if (few) {  // bits only say who may send to somebody: ask again for this row
            const int64_t listed = candidates;
            candidates = before;
            for (int64_t j = before; j < listed; j++) {
              const uint32_t v = source[j];
              source[candidates] = v;
              candidates += h.top[v] >= level[r];
            }
          }
          candidates_end[r] = candidates;
          continue;
        }
        for (int64_t i = e.start[u]; i < e.end[u]; i++) {
          const int64_t v = indices[i];
          const float most = kWeighted ? e.weight[i] * h.top[v] : h.top[v];
          bool yes = most >= level[r];
          if (inherit) {
            alive[i] = yes || !forgets ? alive[i] : 0;
            yes = yes && alive[i];
          }
          if (kCertify && !yes) rest[r] += most;
          source[candidates] = uint32_t(v);
          if (kWeighted || inherit) position[candidates] = i;
          candidates += yes;
        }
        candidates_end[r] = candidates;
      }

      if (coded)
        for (int64_t r = 0, j = 0; r < rows; r++) {
          const uint32_t least = codes.of(level[r]);
          for (; j < candidates_end[r]; j++) {
            const int64_t v = source[j];
            sure[j] = uint8_t(codes.reaching(v, least + 1));
            doubtful[j] = uint8_t(codes.reaching(v, least) & ~sure[j]);
            __builtin_prefetch(h.size + (v & -int64_t(doubtful[j] != 0)) * kBlocks);
          }
        }

      int64_t k = 0;
      for (int j = 0; j < kSizesAhead; j++) source[candidates + j] = candidates ? source[candidates - 1] : 0;
      for (int64_t r = 0, j = 0; r < rows; r++) {
        unsigned any = 0;
        Looked<kBlocks> looked;
        for (; j < candidates_end[r]; j++) {
          const uint32_t v = source[j];
          const float w = kWeighted ? e.weight[position[j]] : 1.0f;
          unsigned flags;
          if (coded) {
            const int64_t in_doubt = -int64_t(doubtful[j] != 0);  // others look at node 0, which is at hand
            flags = sure[j] | (reaching<kBlocks>(h.size + (v & in_doubt) * kBlocks, w, level[r]) & doubtful[j]);
          } else {
            __builtin_prefetch(h.size + int64_t(source[j + kSizesAhead]) * kBlocks);
            flags = reaching<kBlocks>(h.size + int64_t(v) * kBlocks, w, level[r]);
          }
          if (inherit) {
            flags &= alive[position[j]];
            if (forgets) alive[position[j]] = uint8_t(flags);
          }
          any |= flags;
          if (kCertify) looked.add(h.size + int64_t(v) * kBlocks, flags, w);
          const uint8_t* bits = kBitLists.bits[flags];
          std::memcpy(which + k, bits, 8);
          for (int b = 0; b < 8; b++) line[k + b] = v;
          if (kWeighted)
            for (int b = 0; b < 8; b++) weight[k + b] = w;
          k += __builtin_popcount(flags);
        }
        lines_end[r] = k;
        touched[r] = any;
        if (kCertify) {
          const int64_t u = first + r;
          Bill::Part& part = bill.parts[size_t(first / kRows)];
          looked.charge(part, h.size + u * kBlocks, rest[r], h.cost[u], h.charge[u], h.toll[u]);
          part.longest = std::max({part.longest, e.end[u] - e.start[u], h.fanout[u]});
        }
      }

      for (int j = 0; j < kLinesAhead; j++) line[k + j] = k ? line[k - 1] : 0, which[k + j] = 0;
      for (int j = 0; j < kLinesAhead; j++) __builtin_prefetch(q + (int64_t(line[j]) * kBlocks + which[j]) * kLanes);
      for (int64_t r = 0, j = 0; r < rows; r++) {
        if (touched[r]) {
          for (int b = 0; b < kBlocks; b++) block(sum + b * kLanes) = Block{};
          Block only{};  // where there is one block, its sum stays in registers
          for (; j < lines_end[r]; j++) {
            __builtin_prefetch(q + (int64_t(line[j + kLinesAhead]) * kBlocks + which[j + kLinesAhead]) * kLanes);
            const Block& value = block(q + (int64_t(line[j]) * kBlocks + which[j]) * kLanes);
            Block& to = kBlocks == 1 ? only : block(sum + which[j] * kLanes);
            if (kWeighted)
              to.add(weight[j], value);
            else
              to += value;
            kept[kBlocks == 1 ? 0 : which[j]]++;
          }
          if (kBlocks == 1) block(sum) = only;
        }
        settle<false, kBlocks>(h, first + r, touched[r], sum, tally);
      }
    }
    for (int b = 0; b < kMaxBlocks; b++) zero[b] += tally.zero[b];
    lagging = std::max(lagging, tally.lagging);
  }
  std::copy(kept, kept + kMaxBlocks, count->kept);
  std::copy(zero, zero + kMaxBlocks, count->zero);
  count->lagging = lagging;
  if (kCertify) bill.settle(count, !few || kWeighted || inherit);
}

template <class Index, bool kWeighted>
void pruned_hop_blocks(const PrunedHop& h, PrunedCount* count) {
  switch (h.blocks) {
#define CASE(B) \
  case B: return (h.cost ? pruned_hop_tile<Index, kWeighted, B, true> : pruned_hop_tile<Index, kWeighted, B, false>)(h, count);
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
  }
}

void pruned_hop(const PrunedHop& h, PrunedCount* count) {
  if (h.rouse) rouse(h);
  auto run = h.edges.wide ? (h.edges.weight ? pruned_hop_blocks<int64_t, true> : pruned_hop_blocks<int64_t, false>)
                          : (h.edges.weight ? pruned_hop_blocks<int32_t, true> : pruned_hop_blocks<int32_t, false>);
  run(h, count);
}

// One decision per (edge, feature). Whole lines are read for the sake of single lanes, so this is the form to study, not
// the form to run; lines without any survivor are skipped.
template <class Index, int kBlocks, bool kCertify>
void feature_hop_tile(const PrunedHop& h, int width, PrunedCount* count) {
  const Edges& e = h.edges;
  const Index* indices = static_cast<const Index*>(e.indices);
  const float* q = h.state.buffer[h.hop & 1];
  uint16_t* alive = static_cast<uint16_t*>(h.alive);
  constexpr int blocks = kBlocks;
  int64_t kept[kMaxBlocks] = {}, zero[kMaxBlocks] = {};
  float lagging = 0;
  Bill bill(e.n, kCertify);
#pragma omp parallel num_threads(h.threads) reduction(+ : kept[:kMaxBlocks], zero[:kMaxBlocks]) reduction(max : lagging)
  {
    Tally tally;
#pragma omp for schedule(dynamic, kRows)
    for (int64_t u = 0; u < e.n; u++) {
      alignas(64) float sum[kMaxBlocks * kLanes] = {};
      double looked[kBlocks] = {}, gone[kBlocks * kLanes] = {};
      unsigned touched = 0;
      const float level = cut(h, u);
      for (int64_t i = e.start[u]; i < e.end[u]; i++) {
        const int64_t v = indices[i];
        const float w = e.weight ? e.weight[i] : 1.0f;
        for (int b = 0; b < blocks; b++) {
          uint16_t* mine = alive ? alive + i * blocks + b : nullptr;
          if (w * h.size[v * blocks + b] < level || (mine && !*mine)) {
            if (mine && h.delta > 0) *mine = 0;
            continue;
          }
          const float* from = q + (v * blocks + b) * kLanes;
          uint16_t lanes = 0;
          for (int k = 0; k < kLanes; k++) lanes |= uint16_t(std::fabs(w * from[k]) >= level) << k;
          if (mine) lanes &= *mine;
          if (mine && h.delta > 0) *mine = lanes;
          if (kCertify)
            for (int k = 0; k < kLanes; k++) {
              looked[b] += double(w) * from[k] * from[k];
              gone[b * kLanes + k] += lanes >> k & 1 ? 0.0 : std::fabs(double(w) * from[k]);
            }
          if (!lanes) continue;
          for (int k = 0; k < kLanes; k++) sum[b * kLanes + k] += lanes >> k & 1 ? w * from[k] : 0.0f;
          touched |= 1u << b;
          kept[b] += __builtin_popcount(lanes);
        }
      }
      if (kCertify) {  // before the row moves on to the next hop
        Bill::Part& part = bill.parts[size_t(u / kRows)];
        for (int b = 0; b < blocks; b++) {
          const int64_t at = u * blocks + b;
          const int stamp = h.state.stamp[at];
          const float* stored = h.state.buffer[stamp & 1] + at * kLanes;
          const double factor = past(h.keep[u], stamp, h.hop, nullptr).factor;
          double square = 0;
          for (int k = 0; k < kLanes; k++) square += double(stored[k]) * stored[k];
          part.all[b] += h.charge[u] * factor * factor * square;
          part.looked[b] += h.cost[u] * looked[b];
          double removed = 0;  // nothing is known of single features nobody looked at
          for (int k = 0; k < kLanes; k++) removed += gone[b * kLanes + k] * gone[b * kLanes + k];
          part.removed[b] += h.toll[u] * removed;
        }
        part.longest = std::max({part.longest, kLanes * (e.end[u] - e.start[u]), h.fanout[u]});
      }
      settle<true, kBlocks>(h, u, touched, sum, tally);
      // In this form an entry is a single feature, so zeros are counted lane by lane.
      for (int b = 0; b < blocks; b++) {
        const int64_t at = u * blocks + b;
        const int lanes = std::min(kLanes, width - b * kLanes);
        const float* stored = h.state.buffer[h.state.stamp[at] & 1] + at * kLanes;
        for (int k = 0; k < lanes; k++) zero[b] += h.size_out[at] == 0 || stored[k] == 0 ? h.fanout[u] : 0;
      }
    }
    lagging = std::max(lagging, tally.lagging);
  }
  std::copy(kept, kept + kMaxBlocks, count->kept);
  std::copy(zero, zero + kMaxBlocks, count->zero);
  count->lagging = lagging;
  if (kCertify) bill.settle(count, false);
}

template <class Index>
void feature_hop_index(const PrunedHop& h, int width, PrunedCount* count) {
  switch (h.blocks) {
#define CASE(B) \
  case B: return (h.cost ? feature_hop_tile<Index, B, true> : feature_hop_tile<Index, B, false>)(h, width, count);
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
  }
}

void feature_hop(const PrunedHop& h, int width, PrunedCount* count) {
  if (h.rouse) rouse(h);
  (h.edges.wide ? feature_hop_index<int64_t> : feature_hop_index<int32_t>)(h, width, count);
}

// One decision per edge, by the whole row: survivors move to the front of their row. In place (indices_out == indices)
// the edge sets are nested by construction.
template <class Index>
int64_t select_edges_index(const Edges& e, const float* norm, const float* target, float delta, int64_t* end_out,
                           void* indices_out, float* weight_out, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
  Index* out = static_cast<Index*>(indices_out);
  int64_t total = 0;
#pragma omp parallel for schedule(dynamic, 1024) num_threads(threads) reduction(+ : total)
  for (int64_t u = 0; u < e.n; u++) {
    const float level = std::max(delta / target[u], 1e-45f);
    int64_t k = e.start[u];
    const int64_t end = e.end[u];
    if (e.weight) {
      for (int64_t i = e.start[u]; i < end; i++) {
        const Index v = indices[i];
        const float w = e.weight[i];
        out[k] = v;
        weight_out[k] = w;
        k += w * norm[v] >= level;
      }
    } else {
      for (int64_t i = e.start[u]; i < end; i++) {
        const Index v = indices[i];
        out[k] = v;
        k += norm[v] >= level;
      }
    }
    end_out[u] = k;
    total += k - e.start[u];
  }
  return total;
}

int64_t select_edges(const Edges& e, const float* norm, const float* target, float delta, int64_t* end_out,
                     void* indices_out, float* weight_out, int threads) {
  return (e.wide ? select_edges_index<int64_t> : select_edges_index<int32_t>)(e, norm, target, delta, end_out,
                                                                              indices_out, weight_out, threads);
}

// For each source v: how many receivers, and the largest target[u]·A[u,v] among them.
template <class Index>
void fan_index(const Edges& e, const float* target, float* reach, int64_t* fanout, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
  // Each thread scatters into an array of its own; maxima and integer sums do not depend on how rows were shared out.
  struct Fan {
    float peak;
    uint32_t number;  // of rows that one thread has seen, which are fewer than 2^32 as nodes are
  };
  threads = std::min(threads, 8);
  std::vector<Scattered<Fan>> fans;
  for (int t = 0; t < threads; t++) fans.emplace_back(size_t(e.n));
  std::vector<uint8_t> used(threads, 0);
#pragma omp parallel num_threads(threads)
  {
#if defined(_OPENMP)
    const int me = omp_get_thread_num();
#else
    const int me = 0;
#endif
    Scattered<Fan>& own = fans[me];
    used[me] = 1;
    for (size_t v = 0; v < own.size(); v++) own[v] = Fan{0.0f, 0};
#pragma omp for schedule(dynamic, 4096)
    for (int64_t u = 0; u < e.n; u++)
      for (int64_t i = e.start[u]; i < e.end[u]; i++) {
        Fan& to = own[size_t(indices[i])];
        to.peak = std::max(to.peak, e.weight ? e.weight[i] * target[u] : target[u]);
        to.number++;
      }
#pragma omp for schedule(static)
    for (int64_t v = 0; v < e.n; v++) {
      reach[v] = 0;
      fanout[v] = 0;
      for (int t = 0; t < threads; t++) {
        if (!used[t]) continue;
        reach[v] = std::max(reach[v], fans[t][size_t(v)].peak);
        fanout[v] += fans[t][size_t(v)].number;
      }
    }
  }
}

void fan(const Edges& e, const float* target, float* reach, int64_t* fanout, int threads) {
  (e.wide ? fan_index<int64_t> : fan_index<int32_t>)(e, target, reach, fanout, threads);
}

}  // namespace

const Table& UNIFEWS_TABLE() {
  static const Table table{ingest, full_hop, column_hop, column_push, spread_squares, pruned_hop, feature_hop, select_edges, fan, finish};
  return table;
}

}  // namespace unifews
