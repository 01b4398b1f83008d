// What the compiled kernels take and give: plain arrays, no ownership, no I/O.
//
// Layout. Features are cut into tiles of `blocks` (1..8) blocks of 16 floats. A tile is an array [n][blocks][16],
// 64-byte aligned, so one block is one cache line (one AVX-512 register, two AVX2 registers). A kernel works on one
// tile; several tiles are several calls.
//
// Scaled values. With T[u,v] = target[u] · A[u,v] · source[v], tiles hold q[v] = source[v] · P[v]. One hop
//     P'[u] = keep[u] · P[u] + Σ_v T[u,v] · P[v]       is then       q'[u] = keep[u] · q[u] + gain[u] · Σ_v A[u,v] · q[v]
// with gain = target · source: on an unweighted graph no edge value is read at all.
//
// Rows belong to one thread each, and their sums run in edge order: results do not depend on the thread count.
// Offsets and counts are 64-bit throughout.
#pragma once
#include <cstdint>

namespace unifews {

constexpr int kLanes = 16;      // floats in a block
constexpr int kMaxBlocks = 8;   // blocks in a tile: a byte of flags per edge

// Row u receives from indices[start[u] .. end[u]).
struct Edges {
  int64_t n;
  const int64_t* start;
  const int64_t* end;
  const void* indices;  // int32_t, or int64_t when `wide`; below 2^32 in pruned hops
  const float* weight;  // nullptr: every weight is 1
  bool wide;
};

// Node values that are brought up to date only when something touches them.
//
// A block nobody sends to changes by P' = keep·P alone, so it can be left where it is and its age remembered. Block b
// of node u holds its value as of hop stamp[u][b] in buffer[stamp & 1]; `out` has its terms of every hop before that.
// Invariant at the start of hop l: a block that can send anything has stamp == l.
struct Lazy {
  float* buffer[2];
  uint16_t* stamp;
  float* out;          // Σ coefficient·q so far (nothing yet where stamp is 0), or nullptr: only the last hop is wanted
  const float* coefficient;  // [hops + 1], read only with `out`
};

struct PrunedHop {
  Edges edges;
  int blocks;
  int hop;
  const float* keep;
  const float* gain;
  const float* target;
  const float* reach;     // largest target[w]·A[w,u] over the receivers w of u: who cannot reach δ can be left alone
  const int64_t* fanout;  // number of receivers of u
  float delta;
  bool rouse;             // some block left behind may reach δ: look for it first
  const float* size;      // [n][blocks] magnitude of each block at this hop
  const float* top;       // [n] the largest of them
  float* size_out;
  float* top_out;
  void* alive;            // nullptr, or the entries still allowed (inheritance): a byte per edge, or 16 bits per block
  Lazy state;
  int threads;
  const float* cost;      // nullptr, or [n]: what a unit of A·size² removed from row u costs, if all of the row may be gone, and
  const double* charge;   // [n]: the same if nothing of v arrives, Σ_u cost[u]·A[u,v], and
  const float* toll;      // [n]: what a unit of (Σ A·size)² removed from row u costs
  int64_t cached;         // sizes that a cache may hold: beyond, codes of them decide, and far beyond, marks
};

struct PrunedCount {
  int64_t kept[kMaxBlocks];  // entries used, per block (per feature, in feature form)
  int64_t zero[kMaxBlocks];  // entries that are exactly zero: skipped for free
  float lagging;             // no block left behind sends a message larger than this at the next hop
  double removed[kMaxBlocks];  // with `cost`: the price of the entries that were not used, see Bill
};

// Rows of a matrix on their way into a tile: row i, columns 0 .. width, becomes q = source·(x - offset·direction).
struct Ingest {
  int64_t row0, rows, stride;
  int width, blocks;
  const float* x;
  const float* source;
  const float* offset;     // [n] and
  const float* direction;  // [width]: a rank-one part left out, or both nullptr
  bool largest;            // a block's size is its largest magnitude, else its norm
  float* q;
  float* size;             // nullptr or [n][blocks]
  float* top;              // nullptr or [n]
  float* square;           // nullptr or [n]: ‖q[u]‖² is added
  int threads;
};

// result[u] = (value at `hop`, or the output including `hop`) / source[u] + offset[u]·direction
struct Finish {
  int64_t n;
  int blocks, width, hop;
  const float* keep;
  const float* source;
  const float* offset;     // nullptr, or a rank-one part put back
  const float* direction;
  Lazy state;
  float* result;
  int64_t stride;
  int threads;
};

struct Table {
  double (*ingest)(const Ingest&);  // ‖x - offset·direction‖²
  void (*full_hop)(const Edges&, int blocks, const float* keep, const float* gain, const float* q, float* q_out,
                   float previous, float coefficient, float* out, float* square, int threads);
  void (*column_hop)(const Edges&, const float* keep, const float* gain, const float* q, float* q_out, int threads);
  void (*column_push)(const Edges&, int columns, const float* x, double* out, int threads);
  void (*spread_squares)(const Edges&, const Edges& x, int64_t width, const float* source, const float* direction,
                         double* square, double* along, int threads);
  void (*pruned_hop)(const PrunedHop&, PrunedCount*);
  void (*feature_hop)(const PrunedHop&, int width, PrunedCount*);
  int64_t (*select_edges)(const Edges&, const float* norm, const float* target, float delta, int64_t* end_out,
                          void* indices_out, float* weight_out, int threads);
  void (*fan)(const Edges&, const float* target, float* reach, int64_t* fanout, int threads);
  void (*finish)(const Finish&);
};

const Table& table_base();
const Table& table_avx2();
const Table& table_avx512();

// messages.cpp: products of layers that train. Rows are [n][blocks][16], any number of blocks.
struct KeptGather {
  Edges edges;
  int blocks;
  const float* gain;  // [n] factor of a row's sum, or nullptr: 1
  const float* x;
  const float* size;  // [n][blocks] of senders, 8 floats of slack behind it
  const float* cut;   // [n] of receivers
  bool by_sender;     // rows are senders (backward), else receivers
  float* out;
  int threads;
};

struct Diffuse {
  Edges edges;
  int64_t width;
  int blocks;              // of the table
  int64_t count;           // columns that are sent
  const int64_t* columns;  // [count], or nullptr: all
  const float* table;      // [n][blocks][16] what is sent
  const float* y;          // [n][width]
  const float* loop;       // [n], or nullptr: 0
  const float* rest;       // [n] the factor of y[u] in columns that are not sent, or nullptr: loop
  float* out;              // [n][width]
  int threads;
};

struct Messages {
  void (*gather)(const Edges&, int blocks, const float* gain, const float* x, float* out, int threads);
  void (*scatter)(const Edges&, int blocks, const float* x, int64_t rows, float* out, int threads);
  int64_t (*gather_kept)(const KeptGather&);  // entries used
  void (*block_sizes)(int64_t n, int blocks, const float* x, float* size, int threads);
  void (*edge_dots)(const Edges&, int blocks, const float* x, const float* y, float* out, int threads);
  void (*diffuse)(const Diffuse&);
  void (*pick_columns)(int64_t n, int64_t width, const float* y, const int64_t* columns, int64_t count, int blocks,
                       float* table, int threads);
};

const Messages& messages_base();
const Messages& messages_avx2();
const Messages& messages_avx512();

}  // namespace unifews
