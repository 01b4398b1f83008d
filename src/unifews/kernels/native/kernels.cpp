// The kernels, written once and compiled once per instruction set (UNIFEWS_TABLE names the build; see CMakeLists.txt).
// kernels.h says what the arrays mean.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "bill.h"
#include "block.h"
#include "decide.h"
#include "kernels.h"
#include "lazy.h"

namespace unifews {
namespace {

// ------------------------------------------------------------------------------------------------ one tile, all edges

// q'[u] = keep[u]·q[u] + gain[u]·Σ A[u,v]·q[v] - previous·(q_out[u] as it was);  out[u] += coefficient·q'[u];
// square[u] += ‖q'[u]‖²
// Bound by memory: per edge one row of the tile, per node one row in and one or three out. The row in the making stays in
// registers; rows a few edges ahead are already on their way.
template <class Index, bool kWeighted, int kBlocks>
void full_hop_tile(const Edges& e, const float* keep, const float* gain, const float* q, float* q_out,
                   float previous, float coefficient, float* out, float* square, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
  constexpr int kWidth = kBlocks * kLanes;
  constexpr int kAhead = 24;
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
      if (previous != 0) value.add(-previous, block(q_out + u * kWidth + b * kLanes));
      stream(q_out + u * kWidth + b * kLanes, value);
      if (out) block(out + u * kWidth + b * kLanes).add(coefficient, value);
      if (square) total += sum_of_squares(value);
    }
    if (square) square[u] += total;
  }
}

template <class Index, bool kWeighted>
void full_hop_index(const Edges& e, int blocks, const float* keep, const float* gain, const float* q, float* q_out,
                    float previous, float coefficient, float* out, float* square, int threads) {
  switch (blocks) {
#define CASE(B) \
  case B: return full_hop_tile<Index, kWeighted, B>(e, keep, gain, q, q_out, previous, coefficient, out, square, threads);
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
  }
}

void full_hop(const Edges& e, int blocks, const float* keep, const float* gain, const float* q, float* q_out,
              float previous, float coefficient, float* out, float* square, int threads) {
  auto run = e.wide ? (e.weight ? full_hop_index<int64_t, true> : full_hop_index<int64_t, false>)
                    : (e.weight ? full_hop_index<int32_t, true> : full_hop_index<int32_t, false>);
  run(e, blocks, keep, gain, q, q_out, previous, coefficient, out, square, threads);
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
