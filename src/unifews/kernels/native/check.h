// What the kernel of check.cpp takes and returns.
#pragma once
#include <cstdint>

namespace unifews {

// Rows first .. last of a compressed matrix that somebody else has built: row u holds entries indptr[u] .. indptr[u+1].
struct RowCheck {
  int64_t first, last;    // rows to look at
  int64_t columns;        // entries are numbers 0 .. columns - 1
  int64_t entries;        // length of `indices` and `weight`
  const int64_t* indptr;  // [rows + 1]
  const void* indices;    // int32, or int64 if wide
  bool wide;
  const float* weight;    // nullptr or [entries]
  bool hashed;            // whether `balance` is wanted
  uint64_t key;           // of the hash
  int threads;
};

// The first place of each fault, -1 = none. Places are entries, `pointer` is a row.
struct RowFaults {
  int64_t pointer;   // indptr[row] > indptr[row + 1], or one of them lies outside 0 .. entries; nothing else is looked at then
  int64_t range;     // a number outside 0 .. columns - 1
  int64_t order;     // a number not larger than the one before it in its row
  int64_t loop;      // a number equal to its row
  int64_t weight;    // a weight that is not positive and finite
  uint64_t balance;  // Σ h(v, u, w) over entries v < u less Σ h(u, v, w) over entries v > u, modulo 2^64; 0 if symmetric
};

struct Checks {
  RowFaults (*rows)(const RowCheck&);
};

const Checks& checks_base();
const Checks& checks_avx2();
const Checks& checks_avx512();

}  // namespace unifews
