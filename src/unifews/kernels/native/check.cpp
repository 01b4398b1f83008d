// One pass over compressed rows from outside, before any other kernel trusts them.
//
// A row is read once, without a branch per entry; only a row with a fault is read again, to find the place. Symmetry is a
// question about sums: every entry (u, v, w) below the diagonal adds h(v, u, w) and every one above it takes h(u, v, w)
// away, so the entries of a symmetric matrix cancel, and those of another one leave 0 with a chance of about 2^-64.
#include "check.h"

#include <algorithm>
#include <cfloat>
#include <type_traits>

namespace unifews {
namespace {

constexpr int64_t kRows = 1024;  // rows handed to a thread at a time

// A bijection of 64 bits (MurmurHash3's finaliser).
inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

template <class I>
inline uint64_t pair_hash(uint64_t low, uint64_t high, uint64_t key) {
  if constexpr (std::is_same_v<I, int32_t>) return mixed(((low << 32) | high) + key);
  return mixed(mixed(low + key) + high);
}

inline uint64_t bits_of(float w) {
  uint32_t bits;
  __builtin_memcpy(&bits, &w, sizeof bits);
  return bits;
}

inline bool sound(float w) { return w > 0 && w <= FLT_MAX; }

inline int64_t earlier(int64_t a, int64_t b) { return a < 0 ? b : b < 0 ? a : std::min(a, b); }

// Where the faults of one row are.
template <class I>
void locate(const RowCheck& c, int64_t u, const I* v, int64_t start, int64_t end, RowFaults& f) {
  for (int64_t e = start; e < end; e++) {
    if (v[e] < 0 || int64_t(v[e]) >= c.columns) f.range = earlier(f.range, e);
    if (e > start && v[e] <= v[e - 1]) f.order = earlier(f.order, e);
    if (int64_t(v[e]) == u) f.loop = earlier(f.loop, e);
    if (c.weight && !sound(c.weight[e])) f.weight = earlier(f.weight, e);
  }
}

template <class I, bool weighted, bool hashed>
uint64_t row(const RowCheck& c, int64_t u, const I* v, int64_t start, int64_t end, RowFaults& f) {
  using Unsigned = std::make_unsigned_t<I>;
  const Unsigned columns = sizeof(I) == 4 ? Unsigned(std::min(c.columns, int64_t(1) << 31)) : Unsigned(c.columns);
  const I self = I(u);
  unsigned wrong = Unsigned(v[start]) >= columns;
  uint64_t sum = 0;
#pragma omp simd reduction(| : wrong)
  for (int64_t e = start + 1; e < end; e++) wrong |= unsigned(Unsigned(v[e]) >= columns) | unsigned(v[e] <= v[e - 1]);
#pragma omp simd reduction(| : wrong) reduction(+ : sum)
  for (int64_t e = start; e < end; e++) {
    wrong |= unsigned(v[e] == self);
    uint64_t bits = 0;
    if constexpr (weighted) {
      const float w = c.weight[e];
      wrong |= unsigned(!(w > 0)) | unsigned(!(w <= FLT_MAX));
      bits = bits_of(w);
    }
    if constexpr (hashed) {
      const uint64_t low = uint64_t(std::min(v[e], self)), high = uint64_t(std::max(v[e], self));
      uint64_t h = pair_hash<I>(low, high, c.key);
      if constexpr (weighted) h = mixed(h ^ (bits * 0x9e3779b97f4a7c15ull));
      const uint64_t sign = v[e] > self ? ~uint64_t(0) : 0;
      sum += (h ^ sign) - sign;
    }
  }
  if (wrong) locate(c, u, v, start, end, f);
  return sum;
}

template <class I, bool weighted, bool hashed>
RowFaults checked(const RowCheck& c) {
  const I* v = static_cast<const I*>(c.indices);
  int64_t pointer = -1, range = -1, order = -1, loop = -1, weight = -1;
  uint64_t balance = 0;
  const int64_t groups = (c.last - c.first + kRows - 1) / kRows;
#pragma omp parallel num_threads(c.threads) if (groups > 1 && c.threads > 1)
  {
    RowFaults f{-1, -1, -1, -1, -1, 0};
#pragma omp for schedule(dynamic, 4)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t stop = std::min(c.last, c.first + (g + 1) * kRows);
      for (int64_t u = c.first + g * kRows; u < stop; u++) {
        const int64_t start = c.indptr[u], end = c.indptr[u + 1];
        if (start < 0 || end < start || end > c.entries) {
          f.pointer = earlier(f.pointer, u);
          continue;  // its neighbours are read all the same: they stay inside the arrays
        }
        if (end > start) f.balance += row<I, weighted, hashed>(c, u, v, start, end, f);
      }
    }
#pragma omp critical
    {
      pointer = earlier(pointer, f.pointer);
      range = earlier(range, f.range);
      order = earlier(order, f.order);
      loop = earlier(loop, f.loop);
      weight = earlier(weight, f.weight);
      balance += f.balance;
    }
  }
  return {pointer, range, order, loop, weight, balance};
}

template <class I>
RowFaults rows_of(const RowCheck& c) {
  if (c.weight) return c.hashed ? checked<I, true, true>(c) : checked<I, true, false>(c);
  return c.hashed ? checked<I, false, true>(c) : checked<I, false, false>(c);
}

RowFaults rows(const RowCheck& c) { return c.wide ? rows_of<int64_t>(c) : rows_of<int32_t>(c); }

}  // namespace

const Checks& UNIFEWS_CHECKS() {
  static const Checks table{rows};
  return table;
}

}  // namespace unifews
