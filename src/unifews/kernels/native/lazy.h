// Blocks that are brought up to date only when something touches them (`Lazy` in kernels.h), and the end of a row.
#pragma once
#include <algorithm>

#include "block.h"
#include "kernels.h"

namespace unifews {
namespace {  // every instruction set has its own

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

}  // namespace
}  // namespace unifews
