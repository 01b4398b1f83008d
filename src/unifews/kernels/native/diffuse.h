// One row of a diffusion, shared by messages.cpp (rows to memory) and weights.cpp (rows to a tile in the cache).
#pragma once
#include <cstring>

#include "block.h"
#include "kernels.h"

namespace unifews {
namespace {  // every instruction set has its own

// Sum of a row's messages, up to 8 blocks of the table at a time, into `sum`.
template <class Index, bool kWeighted, int kBlocks>
inline void sum_row(const Edges& e, int64_t u, const float* x, int64_t stride, int64_t last, float* sum) {
  const Index* indices = static_cast<const Index*>(e.indices);
  constexpr int kAhead = 8;
  Block total[kBlocks];
  for (int b = 0; b < kBlocks; b++) total[b] = Block{};
  for (int64_t i = e.start[u]; i < e.end[u]; i++) {
    prefetch(x + int64_t(indices[std::min(i + kAhead, last)]) * stride, kBlocks);
    const float* row = x + int64_t(indices[i]) * stride;
    for (int b = 0; b < kBlocks; b++)
      if (kWeighted)
        total[b].add(e.weight[i], block(row + b * kLanes));
      else
        total[b] += block(row + b * kLanes);
  }
  for (int b = 0; b < kBlocks; b++) block(sum + b * kLanes) = total[b];
}

// The position of the last edge: what is fetched ahead stays within the list.
inline int64_t last_edge(const Edges& e) { return e.n ? std::max<int64_t>(e.end[e.n - 1] - 1, 0) : 0; }

// out = loop[u] · y[u], and in the columns of the table also what the neighbours send; in the others rest[u] · y[u] where that is given. `sum` is room for d.blocks blocks.
template <class Index, bool kWeighted>
inline void diffuse_row(const Diffuse& d, int64_t u, int64_t last, float* sum, float* out) {
  const int64_t stride = int64_t(d.blocks) * kLanes;
  for (int b = 0; b < d.blocks; b += kMaxBlocks) {
    switch (std::min(d.blocks - b, kMaxBlocks)) {
#define CASE(B) \
  case B: sum_row<Index, kWeighted, B>(d.edges, u, d.table + b * kLanes, stride, last, sum + b * kLanes); break;
      CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
#undef CASE
    }
  }
  const float* y = d.y + u * d.width;
  const float own = d.loop ? d.loop[u] : 0.0f;
  if (!d.columns) {
    for (int64_t j = 0; j < d.width; j++) out[j] = own * y[j] + sum[j];
    return;
  }
  if (d.rest) {
    const float rest = d.rest[u];
    for (int64_t j = 0; j < d.width; j++) out[j] = rest * y[j];
    for (int64_t k = 0; k < d.count; k++) out[d.columns[k]] = own * y[d.columns[k]] + sum[k];
    return;
  }
  if (d.loop)
    for (int64_t j = 0; j < d.width; j++) out[j] = own * y[j];
  else
    std::memset(out, 0, size_t(d.width) * sizeof(float));
  for (int64_t k = 0; k < d.count; k++) out[d.columns[k]] += sum[k];
}

}  // namespace
}  // namespace unifews
