// The gradient of the kept weights of a sparse matrix, dW[i][j] = Σ_u g[u][i] · x[u][j] at the listed (i, j) only.
//
// Tiles of rows of g and x are turned on their side inside the cache; a kept weight is then an inner product of two runs of
// neighbouring values. The run of g stays in registers for all weights of an output, and the inputs come in chunks whose tile
// stays in the first-level cache. Sums over fixed blocks of rows are added in the order of the blocks, so that results do not
// depend on the number of threads.
#pragma once
#include "tiles.h"
#include "weights.h"

namespace unifews {
namespace {  // every instruction set has its own

constexpr int kDeep = 8 * kRegister;               // rows of a tile: half of the registers of AVX2 hold a run of g
constexpr int64_t kDeepSlots = 7'168 / kDeep;      // inputs of a chunk: 28 kB
constexpr int64_t kDeepOutputs = 65'536 / kDeep;   // outputs turned at a time: 256 kB
constexpr int64_t kMostBlocks = 64, kBlockRows = 4'096;

// The weights in the order they are used: by block of outputs, by chunk of inputs, by output.
struct GradientPlan {
  struct Run {
    int32_t output, count;
  };
  int64_t chunks, blocks;
  std::vector<Group> groups;
  std::vector<int64_t> group_start;             // [chunks + 1]
  std::vector<Run> runs;
  std::vector<int64_t> run_start, weight_start;  // [blocks · chunks + 1]
  std::vector<uint8_t> slots;
  std::vector<int64_t> position;  // of each weight in the list that was given
};

GradientPlan make_gradient_plan(const WeightGradient& p) {
  GradientPlan plan;
  const int64_t nnz = p.indptr[p.f_out];
  std::vector<int32_t> place(size_t(p.f_in), 0), columns;  // place: of an input among those that some weight reads
  for (int64_t k = 0; k < nnz; k++) place[p.indices[k]] = 1;
  for (int64_t c = 0; c < p.f_in; c++)
    if (place[c]) place[c] = int32_t(columns.size()), columns.push_back(int32_t(c));
  const int64_t used = int64_t(columns.size());
  plan.chunks = (used + kDeepSlots - 1) / kDeepSlots;
  plan.blocks = (p.f_out + kDeepOutputs - 1) / kDeepOutputs;
  for (int64_t c = 0; c < plan.chunks; c++) {
    plan.group_start.push_back(int64_t(plan.groups.size()));
    const int64_t first = c * kDeepSlots;
    cover(columns.data() + first, std::min(kDeepSlots, used - first), p.f_in, kDeepSlots, plan.groups);
  }
  plan.group_start.push_back(int64_t(plan.groups.size()));

  plan.slots.reserve(size_t(nnz)), plan.position.reserve(size_t(nnz));
  std::vector<std::vector<int64_t>> of(size_t(plan.chunks));  // weights of one output by chunk
  std::vector<std::vector<GradientPlan::Run>> runs(size_t(plan.chunks));
  std::vector<std::vector<int64_t>> weights(size_t(plan.chunks));
  for (int64_t b = 0; b < plan.blocks; b++) {
    const int64_t first = b * kDeepOutputs, last = std::min(p.f_out, first + kDeepOutputs);
    for (int64_t i = first; i < last; i++) {
      for (int64_t k = p.indptr[i]; k < p.indptr[i + 1]; k++) of[place[p.indices[k]] / kDeepSlots].push_back(k);
      for (int64_t c = 0; c < plan.chunks; c++) {
        if (of[c].empty()) continue;
        runs[c].push_back({int32_t(i - first), int32_t(of[c].size())});
        weights[c].insert(weights[c].end(), of[c].begin(), of[c].end());
        of[c].clear();
      }
    }
    for (int64_t c = 0; c < plan.chunks; c++) {
      plan.run_start.push_back(int64_t(plan.runs.size()));
      plan.weight_start.push_back(int64_t(plan.position.size()));
      plan.runs.insert(plan.runs.end(), runs[c].begin(), runs[c].end());
      for (const int64_t k : weights[c]) {
        plan.slots.push_back(uint8_t(place[p.indices[k]] % kDeepSlots));
        plan.position.push_back(k);
      }
      runs[c].clear(), weights[c].clear();
    }
  }
  plan.run_start.push_back(int64_t(plan.runs.size()));
  plan.weight_start.push_back(nnz);
  return plan;
}

inline float lanes_sum(const Register& x) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)x), _mm512_extractf32x8_ps((__m512)x, 1));
#else
  const __m256 half = (__m256)x;
#endif
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
  return (x[0] + x[2]) + (x[1] + x[3]);
#endif
}

// sum[k] += ⟨g, tile[slot[k]]⟩.
inline void add_products(const float* g, const float* tile, const uint8_t* slot, int64_t count, float* sum) {
  Register own[8];
  for (int r = 0; r < 8; r++) own[r] = reinterpret_cast<const Register*>(g)[r];
  for (int64_t k = 0; k < count; k++) {
    const Register* x = reinterpret_cast<const Register*>(tile + int64_t(slot[k]) * kDeep);
    Register a = own[0] * x[0], b = own[1] * x[1];
    for (int r = 2; r < 8; r += 2) a += own[r] * x[r], b += own[r + 1] * x[r + 1];
    sum[k] += lanes_sum(a + b);
  }
}

// Rows of a matrix for one tile: in place, copied where they are narrower than a vector, zeros past the last.
class DeepRows {
 public:
  DeepRows(const float* x, int64_t n, int64_t width) : x_(x), n_(n), width_(width) {
    zeros_ = room(width + kLanes);
    std::fill_n(start(zeros_), width + kLanes, 0.0f);
    if (width < 8) own_ = room(kDeep * 8), std::fill_n(start(own_), kDeep * 8, 0.0f);
  }
  void point(int64_t first, const float** row) {
    for (int r = 0; r < kDeep; r++) {
      row[r] = first + r < n_ ? x_ + (first + r) * width_ : start(zeros_);
      if (own_) row[r] = std::copy_n(row[r], width_, start(own_) + r * 8) - width_;
    }
  }

 private:
  const float* x_;
  int64_t n_, width_;
  Room zeros_, own_;
};

void weight_gradient(const WeightGradient& p) {
  const int64_t nnz = p.indptr[p.f_out];
  if (!nnz) return;
  const GradientPlan plan = make_gradient_plan(p);
  int64_t size = std::max(kBlockRows, (p.n + kMostBlocks - 1) / kMostBlocks);
  size = (size + kDeep - 1) / kDeep * kDeep;
  const int64_t blocks = (p.n + size - 1) / size;
  std::vector<float> sums(size_t(blocks * nnz), 0.0f);
#pragma omp parallel num_threads(p.threads)
  {
    const Room tile = room((kDeepSlots + 1) * kDeep), turned = room((std::min(kDeepOutputs, p.f_out) + 8) * kDeep);
    DeepRows xs(p.x, p.n, p.f_in), gs(p.g, p.n, p.f_out);
    const float *x[kDeep], *g[kDeep], *shifted[kDeep];
    const Group eight{0, {0, 1, 2, 3, 4, 5, 6, 7}, true};
#pragma omp for schedule(dynamic, 1)
    for (int64_t block = 0; block < blocks; block++) {
      float* sum = sums.data() + block * nnz;
      for (int64_t first = block * size; first < std::min(p.n, (block + 1) * size); first += kDeep) {
        xs.point(first, x), gs.point(first, g);
        for (int64_t b = 0, at = 0; b < plan.blocks; b++) {
          const int64_t begin = b * kDeepOutputs, end = std::min(p.f_out, begin + kDeepOutputs);
          for (int64_t i = begin; i < end; i += 8) {
            const int64_t column = std::max<int64_t>(0, std::min(i, p.f_out - 8));
            if (column < begin) {  // the last outputs of a block of fewer than eight: turned one group earlier, then shifted
              float spare[8 * kDeep];
              for (int r = 0; r < kDeep; r++) shifted[r] = g[r] + column;
              read_tile<kDeep>(shifted, &eight, &eight + 1, spare);
              std::copy_n(spare + (i - column) * kDeep, (end - i) * kDeep, start(turned) + (i - begin) * kDeep);
              continue;
            }
            for (int r = 0; r < kDeep; r++) shifted[r] = g[r] + column;
            read_tile<kDeep>(shifted, &eight, &eight + 1, start(turned) + (column - begin) * kDeep);
          }
          for (int64_t c = 0; c < plan.chunks; c++, at++) {
            const Group* groups = plan.groups.data();
            read_tile<kDeep>(x, groups + plan.group_start[c], groups + plan.group_start[c + 1], start(tile));
            int64_t k = plan.weight_start[at];
            for (int64_t r = plan.run_start[at]; r < plan.run_start[at + 1]; r++) {
              const GradientPlan::Run& run = plan.runs[r];
              add_products(start(turned) + int64_t(run.output) * kDeep, start(tile), plan.slots.data() + k, run.count, sum + k);
              k += run.count;
            }
          }
        }
      }
    }
#pragma omp for schedule(static)
    for (int64_t k = 0; k < nnz; k++) {
      double total = 0;
      for (int64_t block = 0; block < blocks; block++) total += sums[size_t(block * nnz + k)];
      p.out[plan.position[k]] = float(total);
    }
  }
}

}  // namespace
}  // namespace unifews
