// What the kernels of attention.cpp take: plain arrays, as in kernels.h. Edges have int32 indices and no weight.
//
// Rows are [n][blocks][16] and start on cache lines; lane k of every block belongs to head lane[k]. Values by edge are
// [m][heads], those of a node's own loop [n][heads]. At most 16 heads.
#pragma once
#include "kernels.h"

namespace unifews {

struct Attention {
  Edges edges;
  const int64_t* at;    // row of edge i in the arrays by edge, or nullptr: i
  int heads;
  const int32_t* lane;  // [16]
  int blocks;
  int threads;
};

struct Scores {
  Attention attention;
  const float* x;  // of senders
  const float* y;  // of receivers
  const float* att;
  float slope;
  float* score;
  float* own;           // nullptr: no loops
  uint16_t* signs;      // [m][blocks], bit k: x + y > 0 in lane k; or nullptr
  uint16_t* own_signs;  // [n][blocks]
};

struct Slopes {
  Attention attention;
  const float* grad;
  const float* own_grad;  // nullptr: no loops
  const uint16_t* signs;
  const uint16_t* own_signs;
  const float* x;  // of the rows
  const float* att;
  float slope;
  float* out;
  float* partial;  // [chunks of 64 rows][blocks][16]
};

struct Softmax {
  Edges edges;
  int heads;
  const float* score;
  const float* own;
  const float* loop;  // [n] how many loops a node has, or nullptr: none
  float* alpha;
  float* own_alpha;
  int threads;
};

struct SoftmaxBack {
  Edges edges;
  int heads;
  const float* alpha;
  const float* own_alpha;  // nullptr: no loops
  const float* grad;
  const float* own_grad;
  float* out;
  float* own_out;
  int threads;
};

// out[u][j] = own[u][head[j]] · base[u][from[j]], and out[u][place[k]] += Σ_e alpha[e] · table[v][k]. Negative: nothing.
struct HeadDiffuse {
  Attention attention;  // of the table
  const float* alpha;
  const float* own;     // nullptr: no loops, nothing of the next three is read
  const int32_t* head;  // [width]
  const int32_t* from;  // [width]
  const float* base;    // [n][base_width]
  int64_t base_width;
  const float* table;
  const int32_t* place;  // [blocks·16]
  float* out;            // [n][width]
  int64_t width;
};

struct Attentions {
  void (*scores)(const Scores&);
  void (*slopes)(const Slopes&);
  void (*softmax)(const Softmax&);
  void (*softmax_back)(const SoftmaxBack&);
  void (*head_diffuse)(const HeadDiffuse&);
  void (*head_dots)(const Attention&, const float* x, const float* y, float* out);
  void (*own_dots)(int64_t n, int heads, const int32_t* lane, int64_t slots, int64_t width, const int32_t* from,
                   const float* x, const float* y, float* out, int threads);
  void (*column_squares)(const Attention&, const float* alpha, const float* x, float* partial);
  void (*take_columns)(int64_t n, int64_t from, int64_t to, const int32_t* index, const float* x, float* out, int threads);
};

const Attentions& attention_base();
const Attentions& attention_avx2();
const Attentions& attention_avx512();
const Attentions& attention_in_use();  // module.cpp: of the instruction set that is picked

}  // namespace unifews
