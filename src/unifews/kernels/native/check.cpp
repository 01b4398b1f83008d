// One pass over compressed rows from outside, before any other kernel trusts them.
//
// Entries are read once, without a branch per entry; only runs of rows with a fault are read again, to find the place. Symmetry is a
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

inline bool sound(const RowCheck& c, int64_t u) {
  return 0 <= c.indptr[u] && c.indptr[u] <= c.indptr[u + 1] && c.indptr[u + 1] <= c.entries;
}

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

// Entries of one run of whole rows, some at a time, each beside its row: rows are short, and loops over single ones would
// spend most of their time in remainders.
template <class I, bool weighted, bool hashed>
class Run {
 public:
  explicit Run(const RowCheck& c)
      : c_(c), v_(static_cast<const I*>(c.indices)),
        columns_(sizeof(I) == 4 ? Unsigned(std::min(c.columns, int64_t(1) << 31)) : Unsigned(c.columns)) {}

  // Rows first .. last, whose bounds are sound: adds their hashes to `balance`, and returns whether there is a fault.
  bool operator()(int64_t first, int64_t last, uint64_t& balance) {
    const int64_t end = c_.indptr[last];
    bool wrong = false;
    I before = -1;  // row of the entry before
    for (int64_t e = c_.indptr[first]; e < end; e += kEntries) {
      const int64_t count = std::min(kEntries, end - e);
      first = fill(first, e, count);
      wrong |= faulty(e, count) || (own_[0] == before && v_[e] <= v_[e - 1]);
      if constexpr (hashed) balance += hash(e, count);
      before = own_[count - 1];
    }
    return wrong;
  }

 private:
  using Unsigned = std::make_unsigned_t<I>;
  static constexpr int64_t kEntries = 2048, kLanes = 64 / sizeof(I);

  // own_[i] = the row of entry e + i; `u` is the row of an entry before, and the row of the last one is returned.
  int64_t fill(int64_t u, int64_t e, int64_t count) {
    for (int64_t i = 0; i < count;) {
      while (c_.indptr[u + 1] <= e + i) u++;
      const int64_t stop = std::min(count, c_.indptr[u + 1] - e);
      for (; i < stop; i += kLanes) {  // what is too much is the next row's, or behind the entries
        for (int64_t k = 0; k < kLanes; k++) own_[i + k] = I(u);
      }
      i = stop;
    }
    return u;
  }

  bool faulty(int64_t e, int64_t count) const {
    const I* v = v_ + e;
    unsigned wrong = 0;
#pragma omp simd reduction(| : wrong)
    for (int64_t i = 0; i < count; i++) wrong |= unsigned(Unsigned(v[i]) >= columns_) | unsigned(v[i] == own_[i]);
#pragma omp simd reduction(| : wrong)
    for (int64_t i = 0; i < count - 1; i++) wrong |= unsigned(v[i + 1] <= v[i]) & unsigned(own_[i + 1] == own_[i]);
    if constexpr (weighted) {
      const float* w = c_.weight + e;
#pragma omp simd reduction(| : wrong)
      for (int64_t i = 0; i < count; i++) wrong |= unsigned(!(w[i] > 0)) | unsigned(!(w[i] <= FLT_MAX));
    }
    return wrong != 0;
  }

  uint64_t hash(int64_t e, int64_t count) const {
    const I* v = v_ + e;
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) {
      const uint64_t low = uint64_t(std::min(v[i], own_[i])), high = uint64_t(std::max(v[i], own_[i]));
      uint64_t h = pair_hash<I>(low, high, c_.key);
      if constexpr (weighted) h = mixed(h ^ (bits_of(c_.weight[e + i]) * 0x9e3779b97f4a7c15ull));
      const uint64_t sign = v[i] > own_[i] ? ~uint64_t(0) : 0;
      sum += (h ^ sign) - sign;
    }
    return sum;
  }

  const RowCheck& c_;
  const I* v_;
  const Unsigned columns_;
  alignas(64) I own_[kEntries + kLanes];
};

template <class I, bool weighted, bool hashed>
RowFaults checked(const RowCheck& c) {
  const I* v = static_cast<const I*>(c.indices);
  int64_t pointer = -1, range = -1, order = -1, loop = -1, weight = -1;
  uint64_t balance = 0;
  const int64_t groups = (c.last - c.first + kRows - 1) / kRows;
#pragma omp parallel num_threads(c.threads) if (groups > 1 && c.threads > 1)
  {
    RowFaults f{-1, -1, -1, -1, -1, 0};
    Run<I, weighted, hashed> run(c);
#pragma omp for schedule(dynamic, 4)
    for (int64_t g = 0; g < groups; g++) {
      const int64_t stop = std::min(c.last, c.first + (g + 1) * kRows);
      for (int64_t u = c.first + g * kRows; u < stop;) {
        int64_t last = u;  // rows from u on whose bounds are sound
        while (last < stop && sound(c, last)) last++;
        if (last == u) {
          f.pointer = earlier(f.pointer, u++);
          continue;  // its neighbours are read all the same: they stay inside the arrays
        }
        if (run(u, last, f.balance)) {
          for (; u < last; u++) locate(c, u, v, c.indptr[u], c.indptr[u + 1], f);
        }
        u = last;
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
