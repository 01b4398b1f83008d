// Rows of values in a format of fewer bytes, and hops of linear recurrences over them: what the kernels of rows.cpp take.
#pragma once
#include "kernels.h"

namespace unifews {

enum class Format : int { kFloat32, kBfloat16, kInt8, kInt4 };

// Rows of blocks of 16 values. Value j of row u is at rows + u·stride; in int8 and int4 it counts steps, whose
// size is coded by the block's byte at steps + u·step_stride, where eight bytes can be read.
struct Rows {
  uint8_t* rows;
  int64_t stride;
  uint8_t* steps;
  int64_t step_stride;
};

constexpr int kMaxIterates = 64;

// Sums over rows, one number per column, of a new iterate y' before it is stored: weight·y'·y (y: the iterate that was
// gathered), weight·y'², weight·(stored - y')², own·y'². Added up in fixed ranges of rows: bits do not depend on threads.
constexpr int kSums = 4;

// y[u] = scale ∘ (source[u]·x[u] - mean), stored; zero where weight[u] = 0. Sums as above, with y·y' zero.
struct EncodeRows {
  int64_t n, row0, count, x_stride;  // rows row0 .. row0 + count of n are given in x
  int blocks, width;
  const float* x;
  const float* source;  // [n]
  const float* weight;  // [n]
  const float* own;     // [n] or nullptr
  const float* mean;    // [blocks·16], zero in the padding, as
  const float* scale;
  Rows out;
  double* sums;  // [kSums][blocks·16]: added to
  int threads;
};

// y'[u] = factor ∘ (keep[u]·y[u] + gain[u]·Σ_v A[u,v]·y[v]) + Σ_l mix[l] ∘ s_l[u], y = s_k the last of k + 1 iterates.
struct RecurrenceHop {
  Edges edges;
  int blocks;
  const float* keep;    // [n]
  const float* gain;    // [n]
  const float* weight;  // [n]; rows of weight 0 stay zero
  const float* own;     // [n] or nullptr
  int count;            // k + 1
  Rows iterates[kMaxIterates];
  const float* factor;  // [blocks·16]
  const float* mix;     // [k + 1][blocks·16]
  Rows out;
  double* sums;  // [kSums][blocks·16]: set
  int threads;
};

// result[u] = factor[u]·(Σ_l mix[l] ∘ s_l[u] + offset); rows of weight 0 are left alone.
struct CombineRows {
  int64_t n, stride;
  int blocks, width, count;
  const float* factor;  // [n]
  const float* weight;  // [n]
  Rows iterates[kMaxIterates];
  const float* mix;     // [count][blocks·16]
  const float* offset;  // [blocks·16]
  float* result;
  int threads;
};

// Per column: Σ_u factor[u]·x[u] and Σ_u square[u]·x[u]².
struct ColumnSums {
  int64_t count, stride;
  int width;
  const float* x;
  const float* factor;
  const float* square;
  double* sums;  // [2][width]: added to
  int threads;
};

// f(J) e_1 of tridiagonal matrices J, one per column, by a Chebyshev series of f: Σ_k series[k]·C_k((J - centre)/radius) e_1.
struct TridiagonalSeries {
  int size, blocks, terms;
  const float* diagonal;      // [size][blocks·16]
  const float* off_diagonal;  // [size - 1][blocks·16]
  const double* series;       // [terms]
  float centre, radius;
  float* out;  // [size][blocks·16]
  int threads;
};

struct RowKernels {
  void (*encode)(Format, const EncodeRows&);
  void (*hop)(Format, const RecurrenceHop&);
  void (*combine)(Format, const CombineRows&);
  void (*column_sums)(const ColumnSums&);
  float (*largest_magnitude)(const float* x, int64_t count, int threads);  // NaN if there is one
  void (*tridiagonal)(const TridiagonalSeries&);
};

const RowKernels& rows_base();
const RowKernels& rows_avx2();
const RowKernels& rows_avx512();
const RowKernels& rows_in_use();  // module.cpp: of the instruction set that is picked

}  // namespace unifews
