// A product with a weight matrix most of whose entries are gone: Y[n, f_out] = X[n, f_in] · Wᵀ + b.
//
// A tile of 64 rows is turned on its side inside the cache, so that one kept weight multiplies 64 neighbouring values:
// eight multiplications of whole AVX2 registers for one weight read. Sums stay in registers. What decides the speed:
//
//   - Inputs come in chunks whose tile stays in the first-level cache while every output passes over it. Sums are kept
//     between chunks; so chunks grow as weights get rarer, and a pass over the sums always has some weights to pay for it.
//   - Within a chunk outputs go by the number of their weights, so that the length of the inner loop is predictable.
//   - Inputs no weight reads are never turned.
//
// Each sum starts from the bias and runs over its weights in the order of their inputs, whatever the tile, chunk or thread:
// results do not depend on the thread count, nor (weights being listed in that order) on which rows are computed together.
#include "weights.h"

#include <vector>

#include "tiles.h"
#include "weight_gradient.h"

namespace unifews {
namespace {

constexpr int kTall = kRegister == 4 ? 32 : 64;  // rows of a tile: its sums fill at most half of the registers
constexpr int kShort = 16;
constexpr int64_t kFewRows = 256;    // up to here a plan costs more than it saves
constexpr int64_t kMostSlots = 248;   // inputs of a chunk: a byte counts them, one more is the slot for what nobody reads
constexpr int64_t kLeastSlots = 96;   // 24 kB of a tile of 64 rows
constexpr double kWeightsPerPass = 12;
constexpr int64_t kMostOutputs = 768;  // whose sums stay in the second-level cache

// ------------------------------------------------------------------------------------------------------------ products

template <int kHeight, class Slot>
inline void add_weights(const float* tile, const Slot* slot, const float* value, int64_t count, Register* sum) {
  for (int64_t k = 0; k < count; k++) {
    const Register* x = reinterpret_cast<const Register*>(tile + int64_t(slot[k]) * kHeight);
    const float w = value[k];
    for (int r = 0; r < kHeight / kRegister; r++) sum[r] += w * x[r];
  }
}

// The weights of one output in one chunk.
struct Run {
  int32_t output;
  int32_t count;
};

// Lines of x that the next chunk reads, to be fetched while this one is computed.
struct Ahead {
  const float* x;
  int64_t stride, lines;  // `lines` of every row
};

template <int kHeight, bool kFirst>
void pass(const Run* run, const Run* end, const uint8_t* slot, const float* value, const float* bias, const float* tile,
          float* sums, const Ahead& ahead) {
  constexpr int kParts = kHeight / kRegister;
  const int64_t lines = ahead.lines * kHeight, share = run < end ? (lines + (end - run) - 1) / (end - run) : 0;
  for (int64_t next = 0; run < end; run++) {
    for (const int64_t stop = std::min(lines, next + share); next < stop; next++)
      __builtin_prefetch(ahead.x + next % kHeight * ahead.stride + next / kHeight * kLanes, 0, 2);
    Register* kept = reinterpret_cast<Register*>(sums + int64_t(run->output) * kHeight);
    Register sum[kParts];
    for (int r = 0; r < kParts; r++) sum[r] = kFirst ? Register{} + (bias ? bias[run->output] : 0.0f) : kept[r];
    add_weights<kHeight>(tile, slot, value, run->count, sum);
    slot += run->count, value += run->count;
    for (int r = 0; r < kParts; r++) kept[r] = sum[r];
  }
}

// ---------------------------------------------------------------------------------------------------------------- plan

// The weights in the order they are used: by block of outputs, by chunk of inputs, by output. Groups are those of a chunk.
struct Plan {
  int64_t width, blocks, chunks;
  std::vector<Group> groups;
  std::vector<int64_t> group_start;  // [chunks + 1]
  std::vector<Run> runs;
  std::vector<int64_t> run_start, weight_start;  // [blocks · chunks + 1]
  std::vector<uint8_t> slots;
  std::vector<float> values;
};

Plan make_plan(const SparseLinear& p) {
  Plan plan;
  const int64_t nnz = p.indptr[p.f_out];
  std::vector<uint8_t> read(size_t(p.f_in), 0);
  for (int64_t k = 0; k < nnz; k++) read[p.indices[k]] = 1;
  std::vector<int32_t> columns;
  for (int64_t c = 0; c < p.f_in; c++)
    if (read[c]) columns.push_back(int32_t(c));
  const int64_t used = int64_t(columns.size());

  plan.blocks = (p.f_out + kMostOutputs - 1) / kMostOutputs;
  plan.width = ((p.f_out + plan.blocks - 1) / plan.blocks + kLanes - 1) / kLanes * kLanes;
  plan.blocks = (p.f_out + plan.width - 1) / plan.width;

  const double wanted = nnz ? kWeightsPerPass * double(used) * double(p.f_out) / double(nnz) : 0;
  const int64_t most = int64_t(std::min(double(kMostSlots), std::max(double(kLeastSlots), wanted)));
  plan.chunks = std::max<int64_t>(1, (used + most - 1) / most);
  const int64_t slots = std::min(kMostSlots, ((used + plan.chunks - 1) / plan.chunks + 7) / 8 * 8);
  plan.chunks = used ? (used + slots - 1) / slots : 1;

  std::vector<int32_t> chunk_of(size_t(p.f_in), 0);
  std::vector<uint8_t> slot_of(size_t(p.f_in), 0);
  for (int64_t c = 0; c < plan.chunks; c++) {
    const int64_t first = c * slots, count = std::min(slots, used - first);
    plan.group_start.push_back(int64_t(plan.groups.size()));
    if (count > 0) cover(columns.data() + first, count, p.f_in, slots, plan.groups);
    for (int64_t k = 0; k < count; k++) chunk_of[columns[first + k]] = int32_t(c), slot_of[columns[first + k]] = uint8_t(k);
  }
  plan.group_start.push_back(int64_t(plan.groups.size()));

  std::vector<int32_t> count(size_t(plan.chunks * p.f_out), 0);
  for (int64_t j = 0; j < p.f_out; j++)
    for (int64_t k = p.indptr[j]; k < p.indptr[j + 1]; k++) count[chunk_of[p.indices[k]] * p.f_out + j]++;

  std::vector<int64_t> next(count.size()), bucket;
  int64_t weights = 0;
  for (int64_t b = 0; b < plan.blocks; b++) {
    const int64_t first = b * plan.width, last = std::min(p.f_out, first + plan.width);
    for (int64_t c = 0; c < plan.chunks; c++) {
      plan.run_start.push_back(int64_t(plan.runs.size()));
      plan.weight_start.push_back(weights);
      const int32_t* n = count.data() + c * p.f_out;
      bucket.assign(size_t(*std::max_element(n + first, n + last)) + 1, 0);
      for (int64_t j = first; j < last; j++) bucket[n[j]]++;
      if (c > 0) bucket[0] = 0;  // only the first pass writes sums nothing is added to
      int64_t at = int64_t(plan.runs.size());
      for (int64_t k = int64_t(bucket.size()) - 1; k >= 0; k--) std::swap(at, bucket[k]), at += bucket[k];
      plan.runs.resize(size_t(at));
      for (int64_t j = first; j < last; j++)
        if (n[j] || c == 0) plan.runs[bucket[n[j]]++] = {int32_t(j - first), n[j]};
      for (int64_t r = plan.run_start.back(); r < at; r++) {
        next[c * p.f_out + first + plan.runs[r].output] = weights;
        weights += plan.runs[r].count;
      }
    }
  }
  plan.run_start.push_back(int64_t(plan.runs.size()));
  plan.weight_start.push_back(weights);

  plan.slots.resize(size_t(nnz));
  plan.values.resize(size_t(nnz));
  for (int64_t j = 0; j < p.f_out; j++)
    for (int64_t k = p.indptr[j]; k < p.indptr[j + 1]; k++) {
      const int64_t at = next[chunk_of[p.indices[k]] * p.f_out + j]++;
      plan.slots[at] = slot_of[p.indices[k]];
      plan.values[at] = p.values[k];
    }
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------- rows

// Where the rows of a tile are: in x, or copied to a buffer of the thread when they are too narrow for a vector.
class Rows {
 public:
  explicit Rows(const SparseLinear& p) : p_(p), stride_((p.f_in + kLanes - 1) / kLanes * kLanes + kLanes) {
    if (p.f_in >= 8) return;
    own_ = room(stride_ * kTall);
    std::fill_n(start(own_), stride_ * kTall, 0.0f);
  }

  // `height` pointers, of which those past `rows` repeat the last.
  void point(int64_t first, int rows, int height, const float** row) {
    for (int r = 0; r < rows; r++) {
      row[r] = own_ ? start(own_) + r * stride_ : p_.x + (first + r) * p_.f_in;
      if (own_)
        std::copy_n(p_.x + (first + r) * p_.f_in, p_.f_in, start(own_) + r * stride_);
    }
    for (int r = rows; r < height; r++) row[r] = row[rows - 1];
  }

 private:
  const SparseLinear& p_;
  int64_t stride_;  // a line more than a power of two, so that rows do not compete for the same places in the cache
  Room own_;
};

template <int kHeight>
void finish_tile(const SparseLinear& p, const float* sums, int64_t first, int rows, int64_t column, int64_t width) {
  float* out = p.out + first * p.f_out + column;
  (p.relu ? write_tile<kHeight, true> : write_tile<kHeight, false>)(sums, width, rows, out, p.f_out);
}

// Of rows that are in x. A thread's next tile is most often the next one in x.
Ahead look_ahead(const SparseLinear& p, const Plan& plan, int64_t chunk, int64_t first, int height) {
  const Group *group = plan.groups.data() + plan.group_start[chunk], *end = plan.groups.data() + plan.group_start[chunk + 1];
  if (group == end || first + height > p.n) return {nullptr, 0, 0};
  return {p.x + first * p.f_in + group->column, p.f_in, (end[-1].column + 8 - group->column + kLanes - 1) / kLanes};
}

template <int kHeight>
void planned_tile(const SparseLinear& p, const Plan& plan, Rows& from, int64_t first, int rows, float* tile, float* sums) {
  const float* row[kHeight];
  from.point(first, rows, kHeight, row);
  for (int64_t b = 0, at = 0; b < plan.blocks; b++) {
    const int64_t column = b * plan.width;
    for (int64_t c = 0; c < plan.chunks; c++, at++) {
      const Group* groups = plan.groups.data();
      read_tile<kHeight>(row, groups + plan.group_start[c], groups + plan.group_start[c + 1], tile);
      const int64_t weight = plan.weight_start[at];
      const bool stays = c + 1 < plan.chunks || b + 1 < plan.blocks;
      const Ahead ahead = look_ahead(p, plan, c + 1 < plan.chunks ? c + 1 : 0, stays ? first : first + kHeight, kHeight);
      (c == 0 ? pass<kHeight, true> : pass<kHeight, false>)(
          plan.runs.data() + plan.run_start[at], plan.runs.data() + plan.run_start[at + 1], plan.slots.data() + weight,
          plan.values.data() + weight, p.bias ? p.bias + column : nullptr, tile, sums, ahead);
    }
    finish_tile<kHeight>(p, sums, first, rows, column, std::min(plan.width, p.f_out - column));
  }
}

void many_rows(const SparseLinear& p) {
  const Plan plan = make_plan(p);
#pragma omp parallel num_threads(p.threads)
  {
    const Room tile = room((kMostSlots + 1) * kTall), sums = room(plan.width * kTall);
    Rows rows(p);
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < p.n; first += kTall) {
      const int count = int(std::min<int64_t>(p.n - first, kTall));
      if (count > kShort)
        planned_tile<kTall>(p, plan, rows, first, count, start(tile), start(sums));
      else
        planned_tile<kShort>(p, plan, rows, first, count, start(tile), start(sums));
    }
  }
}

// All inputs of a few rows at once, weights where they are.
void few_rows(const SparseLinear& p) {
#pragma omp parallel num_threads(int(std::min<int64_t>(p.threads, (p.n + kShort - 1) / kShort)))
  {
    const int64_t padded = (p.f_in + 7) / 8 * 8;
    const Room tile = room(padded * kShort), sums = room((p.f_out + 7) / 8 * 8 * kShort);
    Rows from(p);
    const Group group{0, {0, 1, 2, 3, 4, 5, 6, 7}, true};
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < p.n; first += kShort) {
      const int rows = int(std::min<int64_t>(p.n - first, kShort));
      const float *row[kShort], *shifted[kShort];
      from.point(first, rows, kShort, row);
      for (int64_t c = 0; c < p.f_in; c += 8) {
        const int64_t column = std::max<int64_t>(0, std::min(c, p.f_in - 8));
        for (int r = 0; r < kShort; r++) shifted[r] = row[r] + column;
        read_tile<kShort>(shifted, &group, &group + 1, start(tile) + column * kShort);
      }
      for (int64_t j = 0; j < p.f_out; j++) {
        Register sum[kShort / kRegister];
        for (Register& s : sum) s = Register{} + (p.bias ? p.bias[j] : 0.0f);
        const int64_t at = p.indptr[j];
        add_weights<kShort>(start(tile), p.indices + at, p.values + at, p.indptr[j + 1] - at, sum);
        std::copy_n(sum, kShort / kRegister, reinterpret_cast<Register*>(start(sums) + j * kShort));
      }
      finish_tile<kShort>(p, start(sums), first, rows, 0, p.f_out);
    }
  }
}

void sparse_linear(const SparseLinear& p) {
  if (p.n) (p.n > kFewRows ? many_rows : few_rows)(p);
}

}  // namespace

const Weights& UNIFEWS_WEIGHTS() {
  static const Weights table{sparse_linear, weight_gradient};
  return table;
}

}  // namespace unifews
