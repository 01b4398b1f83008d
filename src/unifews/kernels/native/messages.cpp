// Products of a layer that trains: rows [n][width] as torch keeps them, width a multiple of 16, forward and backward.
//
//   forward    y[u] = gain[u] · Σ_e w_e · x[v]        row u receives along e = (v → u)
//   backward   the same product over the reversed edges, on the gradient of y
//
// A pruned product keeps entry (e, block b) iff |w_e| · size[v][b] ≥ cut[u]: v sends, u receives. Going forward a row is a
// receiver and reads its neighbours' sizes; going back it is a sender, reads its own sizes and its neighbours' cuts. So
// the decision is computed twice and never stored.
#include <cstring>
#include <vector>

#include "block.h"
#include "diffuse.h"
#include "kernels.h"

namespace unifews {
namespace {

// ------------------------------------------------------------------------------------------------------------ all edges

template <class Index, bool kWeighted, int kBlocks>
inline void gather_row(const Edges& e, int64_t u, const float* x, int64_t stride, float gain, int64_t last, float* out) {
  const Index* indices = static_cast<const Index*>(e.indices);
  constexpr int kAhead = 8;
  Block sum[kBlocks];
  for (int b = 0; b < kBlocks; b++) sum[b] = Block{};
  for (int64_t i = e.start[u]; i < e.end[u]; i++) {
    prefetch(x + int64_t(indices[std::min(i + kAhead, last)]) * stride, kBlocks);
    const float* row = x + int64_t(indices[i]) * stride;
    if (kWeighted) {
      const float w = e.weight[i];
      for (int b = 0; b < kBlocks; b++) sum[b].add(w, block(row + b * kLanes));
    } else {
      for (int b = 0; b < kBlocks; b++) sum[b] += block(row + b * kLanes);
    }
  }
  for (int b = 0; b < kBlocks; b++) stream(out + u * stride + b * kLanes, gain * sum[b]);
}

template <class Index, bool kWeighted>
void gather_index(const Edges& e, int blocks, const float* gain, const float* x, float* out, int threads) {
  const int64_t stride = int64_t(blocks) * kLanes;
  const int64_t last = e.n ? std::max<int64_t>(e.end[e.n - 1] - 1, 0) : 0;
  // A few rows at a time, tile after tile: their edges are read from the cache from the second tile on.
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
  for (int64_t first = 0; first < e.n; first += kRows)
    for (int b = 0; b < blocks; b += kMaxBlocks)
      for (int64_t u = first; u < std::min(e.n, first + kRows); u++) {
        const float g = gain ? gain[u] : 1.0f;
        switch (std::min(blocks - b, kMaxBlocks)) {
#define CASE(B) \
  case B: gather_row<Index, kWeighted, B>(e, u, x + b * kLanes, stride, g, last, out + b * kLanes); break;
          CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
        }
      }
}

void gather(const Edges& e, int blocks, const float* gain, const float* x, float* out, int threads) {
  auto run = e.wide ? (e.weight ? gather_index<int64_t, true> : gather_index<int64_t, false>)
                    : (e.weight ? gather_index<int32_t, true> : gather_index<int32_t, false>);
  run(e, blocks, gain, x, out, threads);
}

// out[v] = Σ_u w_e · x[u], along e backwards without the reversed lists: where the v are few, as the columns of a feature
// matrix are, a tile of out stays in the cache while x comes by once. A thread has columns of its own, so sums keep their order.
template <class Index>
void scatter_index(const Edges& e, int blocks, const float* x, int64_t rows, float* out, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
  const int64_t stride = int64_t(blocks) * kLanes;
  const int tile = std::max(1, std::min(kMaxBlocks, blocks / threads));
#pragma omp parallel num_threads(threads)
  {
    std::vector<Block> sums(size_t(rows) * tile);  // side by side: rows of out a power of two apart would share cache sets
#pragma omp for schedule(dynamic, 1)
    for (int b = 0; b < blocks; b += tile) {
      const int width = std::min(tile, blocks - b);
      std::fill(sums.begin(), sums.end(), Block{});
      for (int64_t u = 0; u < e.n; u++) {
        const float* from = x + u * stride + b * kLanes;
        Block row[kMaxBlocks];
        for (int k = 0; k < width; k++) row[k] = block(from + k * kLanes);
        for (int64_t i = e.start[u]; i < e.end[u]; i++) {
          Block* to = sums.data() + int64_t(indices[i]) * tile;
          const float w = e.weight ? e.weight[i] : 1.0f;
          for (int k = 0; k < width; k++) to[k].add(w, row[k]);
        }
      }
      for (int64_t v = 0; v < rows; v++)
        std::memcpy(out + v * stride + b * kLanes, sums.data() + v * tile, size_t(width) * sizeof(Block));
    }
  }
}

void scatter(const Edges& e, int blocks, const float* x, int64_t rows, float* out, int threads) {
  (e.wide ? scatter_index<int64_t> : scatter_index<int32_t>)(e, blocks, x, rows, out, threads);
}

// --------------------------------------------------------------------------------------------------- some of the columns

// out[u] = loop[u] · y[u], and in the columns of the table also what the neighbours send.
template <class Index, bool kWeighted>
void diffuse_index(const Diffuse& d) {
  const Edges& e = d.edges;
  const int64_t last = last_edge(e);
#pragma omp parallel num_threads(d.threads)
  {
    std::vector<Block> room(size_t(d.blocks) + 1);
    float* sum = reinterpret_cast<float*>(room.data());
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < e.n; first += kRows)
      for (int64_t u = first; u < std::min(e.n, first + kRows); u++)
        diffuse_row<Index, kWeighted>(d, u, last, sum, d.out + u * d.width);
  }
}

void diffuse(const Diffuse& d) {
  auto run = d.edges.wide ? (d.edges.weight ? diffuse_index<int64_t, true> : diffuse_index<int64_t, false>)
                          : (d.edges.weight ? diffuse_index<int32_t, true> : diffuse_index<int32_t, false>);
  run(d);
}

// table[u][k] = y[u][columns[k]], padded with zeros to whole blocks.
void pick_columns(int64_t n, int64_t width, const float* y, const int64_t* columns, int64_t count, int blocks, float* table,
                  int threads) {
  const int64_t stride = int64_t(blocks) * kLanes;
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t u = 0; u < n; u++) {
    float* row = table + u * stride;
    for (int64_t k = 0; k < count; k++) row[k] = y[u * width + (columns ? columns[k] : k)];
    for (int64_t k = count; k < stride; k++) row[k] = 0;
  }
}

// ------------------------------------------------------------------------------------------------------- entries that stay

struct Lines {  // a thread's list of the cache lines a few rows want
  std::vector<uint32_t> row;
  std::vector<uint8_t> which;
  std::vector<float> weight;
  void reserve(size_t room) {
    if (row.size() >= room) return;
    row.resize(2 * room);
    which.resize(2 * room);
    weight.resize(2 * room);
  }
};

// kBySender: the row is the sender (backward).
template <class Index, bool kWeighted, bool kBySender>
int64_t gather_kept_index(const KeptGather& g) {
  const Edges& e = g.edges;
  const Index* indices = static_cast<const Index*>(e.indices);
  const int64_t stride = int64_t(g.blocks) * kLanes;
  int64_t total = 0;
  constexpr int kAhead = 24;
#pragma omp parallel num_threads(g.threads) reduction(+ : total)
  {
    Lines list;
    alignas(64) float sum[kMaxBlocks * kLanes];
    int64_t ends[kRows];
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < e.n; first += kRows) {
      const int64_t rows = std::min(e.n - first, kRows);
      list.reserve(size_t(e.end[first + rows - 1] - e.start[first]) * kMaxBlocks + 64);
      uint32_t* row = list.row.data();
      uint8_t* which = list.which.data();
      float* weight = list.weight.data();
      for (int tile = 0; tile < g.blocks; tile += kMaxBlocks) {
        const int blocks = std::min(g.blocks - tile, kMaxBlocks);
        const unsigned real = (1u << blocks) - 1;
        // Deciding and adding in one loop would stall on every mispredicted branch: list first, without branches.
        int64_t k = 0;
        for (int64_t r = 0; r < rows; r++) {
          const int64_t u = first + r;
          const float* mine = g.size + u * g.blocks + tile;
          for (int64_t i = e.start[u]; i < e.end[u]; i++) {
            const int64_t v = indices[i];
            const float w = kWeighted ? e.weight[i] : 1.0f;
            const float* size = kBySender ? mine : g.size + v * g.blocks + tile;
            const unsigned flags = reaching<kMaxBlocks>(size, kWeighted ? std::fabs(w) : w, g.cut[kBySender ? v : u]) & real;
            std::memcpy(which + k, kBitLists.bits[flags], 8);
            for (int b = 0; b < 8; b++) row[k + b] = uint32_t(v);
            if (kWeighted)
              for (int b = 0; b < 8; b++) weight[k + b] = w;
            k += __builtin_popcount(flags);
          }
          ends[r] = k;
        }
        for (int j = 0; j < kAhead; j++) row[k + j] = k ? row[k - 1] : 0, which[k + j] = 0;
        total += k;
        const float* x = g.x + tile * kLanes;
        for (int64_t r = 0, j = 0; r < rows; r++) {
          for (int b = 0; b < blocks; b++) block(sum + b * kLanes) = Block{};
          for (; j < ends[r]; j++) {
            __builtin_prefetch(x + int64_t(row[j + kAhead]) * stride + which[j + kAhead] * kLanes);
            const Block& value = block(x + int64_t(row[j]) * stride + which[j] * kLanes);
            if (kWeighted)
              block(sum + which[j] * kLanes).add(weight[j], value);
            else
              block(sum + which[j] * kLanes) += value;
          }
          const float gain = g.gain ? g.gain[first + r] : 1.0f;
          for (int b = 0; b < blocks; b++)
            stream(g.out + (first + r) * stride + (tile + b) * kLanes, gain * block(sum + b * kLanes));
        }
      }
    }
  }
  return total;
}

template <class Index>
int64_t gather_kept_typed(const KeptGather& g) {
  if (g.edges.weight) return g.by_sender ? gather_kept_index<Index, true, true>(g) : gather_kept_index<Index, true, false>(g);
  return g.by_sender ? gather_kept_index<Index, false, true>(g) : gather_kept_index<Index, false, false>(g);
}

int64_t gather_kept(const KeptGather& g) {
  return g.edges.wide ? gather_kept_typed<int64_t>(g) : gather_kept_typed<int32_t>(g);
}

// ------------------------------------------------------------------------------------------------------- sizes and dots

void block_sizes(int64_t n, int blocks, const float* x, float* size, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t i = 0; i < n * blocks; i++) size[i] = std::sqrt(sum_of_squares(block(x + i * kLanes)));
}

// For each edge e = (v → u): ⟨x[v], y[u]⟩, the gradient of its weight.
template <class Index>
void edge_dots_index(const Edges& e, int blocks, const float* x, const float* y, float* out, int threads) {
  const Index* indices = static_cast<const Index*>(e.indices);
  const int64_t stride = int64_t(blocks) * kLanes;
#pragma omp parallel for schedule(dynamic, kRows) num_threads(threads)
  for (int64_t u = 0; u < e.n; u++)
    for (int64_t i = e.start[u]; i < e.end[u]; i++) {
      const float* a = x + int64_t(indices[i]) * stride;
      const float* b = y + u * stride;
      Block sum{};
      for (int k = 0; k < blocks; k++)
        for (int p = 0; p < kParts; p++) sum.part[p] += block(a + k * kLanes).part[p] * block(b + k * kLanes).part[p];
      const Quarter* q = reinterpret_cast<const Quarter*>(&sum);
      const Quarter s = (q[0] + q[1]) + (q[2] + q[3]);
      out[i] = (s[0] + s[2]) + (s[1] + s[3]);
    }
}

void edge_dots(const Edges& e, int blocks, const float* x, const float* y, float* out, int threads) {
  (e.wide ? edge_dots_index<int64_t> : edge_dots_index<int32_t>)(e, blocks, x, y, out, threads);
}

}  // namespace

const Messages& UNIFEWS_MESSAGES() {
  static const Messages table{gather, scatter, gather_kept, block_sizes, edge_dots, diffuse, pick_columns};
  return table;
}

}  // namespace unifews
