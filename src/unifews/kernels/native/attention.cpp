// Products of layers that attend: every edge has one factor per head, and a head owns some of the columns.
//
//   scores     s[e,h] = Σ_{c of h} att[c] · LeakyReLU(x[v,c] + y[u,c])        e = (v → u)
//   softmax    α[e,h] = exp(s[e,h]) / Σ over the edges into u and its own loop
//   diffuse    out[u,c] = α[u, head of c] · x[u,c] + Σ_e α[e, head of c] · x[v,c]
//   dots       ⟨x[v], y[u]⟩ over the columns of each head: the gradient of α
//
// Columns are laid out so that lane k of every block belongs to head lane[k]: the factors of an edge are spread over a block
// once, and dots add up block by block without a sum across lanes until the end of the edge.
//
// LeakyReLU bends where x + y changes sign, so its gradient needs one bit per (edge, column). `scores` keeps them, a 32nd of the
// messages, and going back no row of a neighbour is read again.
#include <cstring>
#include <vector>

#include "attention.h"
#include "block.h"

namespace unifews {
namespace {

typedef int32_t Whole __attribute__((vector_size(kRegister * 4)));
constexpr int kTile = 4;  // blocks summed in registers where every term costs a few more of them

// The factors of an edge, one per head, spread over the lanes of a block. kHeads > 0: lane k belongs to head k % kHeads.
template <int kHeads>
inline Block spread(const float* factor, const int32_t* lane) {
  Block x;
  float* to = reinterpret_cast<float*>(&x);
  for (int k = 0; k < kLanes; k++) to[k] = factor[kHeads ? k % (kHeads ? kHeads : 1) : lane[k]];
  return x;
}

// The lanes of a block added up by head.
template <int kHeads>
inline void fold(const Block& x, const int32_t* lane, int heads, float* out) {
  alignas(64) float sum[kLanes];
  std::memcpy(sum, &x, sizeof sum);
  if (kHeads) {
    for (int width = kLanes / 2; width >= kHeads; width /= 2)
      for (int k = 0; k < width; k++) sum[k] += sum[k + width];
    for (int h = 0; h < kHeads; h++) out[h] = sum[h];
  } else {
    for (int h = 0; h < heads; h++) out[h] = 0;
    for (int k = 0; k < kLanes; k++) out[lane[k]] += sum[k];
  }
}

inline uint16_t positive(const Block& x) {
#if defined(__AVX512F__)
  return uint16_t(_mm512_cmp_ps_mask((__m512)x.part[0], _mm512_setzero_ps(), _CMP_GT_OQ));
#elif defined(__AVX2__)
  const __m256 zero = _mm256_setzero_ps();
  const int low = _mm256_movemask_ps(_mm256_cmp_ps((__m256)x.part[0], zero, _CMP_GT_OQ));
  return uint16_t(low | _mm256_movemask_ps(_mm256_cmp_ps((__m256)x.part[1], zero, _CMP_GT_OQ)) << 8);
#else
  const float* lane = reinterpret_cast<const float*>(&x);
  unsigned bits = 0;
  for (int k = 0; k < kLanes; k++) bits |= unsigned(lane[k] > 0) << k;
  return uint16_t(bits);
#endif
}

// sum += x in the lanes whose bit is set.
inline void add_where(Block& sum, uint16_t bits, const Block& x) {
#if defined(__AVX512F__)
  sum.part[0] = (Register)_mm512_mask_add_ps((__m512)sum.part[0], bits, (__m512)sum.part[0], (__m512)x.part[0]);
#else
  Whole bit[kParts];
  for (int k = 0; k < kLanes; k++) bit[k / kRegister][k % kRegister] = 1 << k;
  for (int p = 0; p < kParts; p++) {
    const Whole set = ((Whole{} + int32_t(bits)) & bit[p]) != 0;
    sum.part[p] += (Register)((Whole)x.part[p] & set);
  }
#endif
}

// eˣ to the last digit or two, for x ≤ 0; what would vanish is the smallest number there is.
inline Register exponential(Register x) {
  constexpr float kMagic = 12582912.0f;  // adding it rounds to a whole number
  x = x < -87.3f ? Register{} - 87.3f : x;
  const Register shifted = x * 1.44269504f + kMagic;
  const Register k = shifted - kMagic;
  const Register r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
  Register p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const Whole power = (((Whole)shifted - (Whole)(Register{} + kMagic)) + 127) << 23;
  return p * (Register)power;
}

void exponentials(float* x, int64_t count) {
  Register r;
  int64_t i = 0;
  for (; i + kRegister <= count; i += kRegister) {
    std::memcpy(&r, x + i, sizeof r);
    r = exponential(r);
    std::memcpy(x + i, &r, sizeof r);
  }
  if (i < count) {
    r = Register{};
    std::memcpy(&r, x + i, (count - i) * 4);
    r = exponential(r);
    std::memcpy(x + i, &r, (count - i) * 4);
  }
}

// --------------------------------------------------------------------------------------------------------------- scores

template <int kHeads>
inline void score(const Attention& a, const float* x, const float* y, const float* att, float slope, float* out, uint16_t* signs) {
  Block sum{};
  for (int b = 0; b < a.blocks; b++) {
    const Block &p = block(x + b * kLanes), &q = block(y + b * kLanes), &w = block(att + b * kLanes);
    Block z;
    for (int k = 0; k < kParts; k++) {
      z.part[k] = p.part[k] + q.part[k];
      sum.part[k] += w.part[k] * (z.part[k] > 0 ? z.part[k] : slope * z.part[k]);
    }
    if (signs) signs[b] = positive(z);
  }
  fold<kHeads>(sum, a.lane, a.heads, out);
}

template <int kHeads>
void scores_typed(const Scores& s) {
  const Attention& a = s.attention;
  const int64_t stride = int64_t(a.blocks) * kLanes;
  const int32_t* indices = static_cast<const int32_t*>(a.edges.indices);
  const int64_t last = a.edges.n ? std::max<int64_t>(a.edges.end[a.edges.n - 1] - 1, 0) : 0;
  constexpr int kAhead = 4;
#pragma omp parallel for schedule(dynamic, kRows) num_threads(a.threads)
  for (int64_t u = 0; u < a.edges.n; u++) {
    const float* y = s.y + u * stride;
    for (int64_t i = a.edges.start[u]; i < a.edges.end[u]; i++) {
      prefetch(s.x + indices[std::min(i + kAhead, last)] * stride, a.blocks);
      score<kHeads>(a, s.x + indices[i] * stride, y, s.att, s.slope, s.score + i * a.heads, s.signs ? s.signs + i * a.blocks : nullptr);
    }
    if (s.own)
      score<kHeads>(a, s.x + u * stride, y, s.att, s.slope, s.own + u * a.heads, s.own_signs ? s.own_signs + u * a.blocks : nullptr);
  }
}

// out[row] = att ⊙ Σ w[e] ⊙ (1 where the bit is set, slope elsewhere) over the edges of the row, its own loop included;
// partial[chunk of 64 rows] = Σ x[row] ⊙ that sum: what goes back to x or y, and to att.
template <int kHeads, int kBlocks>
inline void slopes_row(const Slopes& s, int64_t u, int first, float* partial) {
  const Attention& a = s.attention;
  const int64_t stride = int64_t(a.blocks) * kLanes;
  Block set[kBlocks], all{};
  for (int b = 0; b < kBlocks; b++) set[b] = Block{};
  auto take = [&](const float* factor, const uint16_t* signs) {
    const Block w = spread<kHeads>(factor, a.lane);
    all += w;
    for (int b = 0; b < kBlocks; b++) add_where(set[b], signs[first + b], w);
  };
  for (int64_t i = a.edges.start[u]; i < a.edges.end[u]; i++) {
    const int64_t e = a.at ? a.at[i] : i;
    take(s.grad + e * a.heads, s.signs + e * a.blocks);
  }
  if (s.own_grad) take(s.own_grad + u * a.heads, s.own_signs + u * a.blocks);
  for (int b = 0; b < kBlocks; b++) {
    const int64_t c = int64_t(first + b) * kLanes;
    const Block &x = block(s.x + u * stride + c), &att = block(s.att + c);
    Block &part = block(partial + c), out;
    for (int k = 0; k < kParts; k++) {
      const Register sum = (1.0f - s.slope) * set[b].part[k] + s.slope * all.part[k];
      part.part[k] += x.part[k] * sum;
      out.part[k] = att.part[k] * sum;
    }
    stream(s.out + u * stride + c, out);
  }
}

template <int kHeads>
void slopes_typed(const Slopes& s) {
  const Attention& a = s.attention;
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads)
  for (int64_t first = 0; first < a.edges.n; first += kRows) {
    float* partial = s.partial + first / kRows * a.blocks * kLanes;
    for (int b = 0; b < a.blocks; b++) block(partial + b * kLanes) = Block{};
    for (int64_t u = first; u < std::min(a.edges.n, first + kRows); u++)
      for (int b = 0; b < a.blocks; b += kTile) switch (std::min(a.blocks - b, kTile)) {
#define CASE(B) \
  case B: slopes_row<kHeads, B>(s, u, b, partial); break;
          CASE(1) CASE(2) CASE(3) CASE(4)
#undef CASE
        }
  }
}

// -------------------------------------------------------------------------------------------------------------- softmax

// `loop` [n] is how many loops a node has; all of them have the score `own`.
template <int kHeads>
void softmax_typed(const Softmax& s) {
  const int heads = kHeads ? kHeads : s.heads;
#pragma omp parallel for schedule(dynamic, kRows) num_threads(s.threads)
  for (int64_t u = 0; u < s.edges.n; u++) {
    const int64_t first = s.edges.start[u] * heads, count = (s.edges.end[u] - s.edges.start[u]) * heads;
    const float* score = s.score + first;
    float* alpha = s.alpha + first;
    const bool loops = s.loop && s.loop[u] > 0;
    float most[kLanes], sum[kLanes];
    for (int h = 0; h < heads; h++) most[h] = loops ? s.own[u * heads + h] : -INFINITY, sum[h] = 0;
    for (int64_t i = 0; i < count; i += heads)
      for (int h = 0; h < heads; h++) most[h] = score[i + h] > most[h] ? score[i + h] : most[h];
    for (int64_t i = 0; i < count; i += heads)
      for (int h = 0; h < heads; h++) alpha[i + h] = score[i + h] - most[h];
    exponentials(alpha, count);
    for (int64_t i = 0; i < count; i += heads)
      for (int h = 0; h < heads; h++) sum[h] += alpha[i + h];
    if (s.loop) {
      float* mine = s.own_alpha + u * heads;
      for (int h = 0; h < heads; h++) mine[h] = loops ? s.own[u * heads + h] - most[h] : 0;
      exponentials(mine, heads);
      for (int h = 0; h < heads; h++) sum[h] += mine[h] *= s.loop[u];
    }
    for (int h = 0; h < heads; h++) sum[h] = 1.0f / (sum[h] + 1e-16f);  // the same 1e-16 as in PyG
    for (int64_t i = 0; i < count; i += heads)
      for (int h = 0; h < heads; h++) alpha[i + h] *= sum[h];
    if (s.loop)
      for (int h = 0; h < heads; h++) s.own_alpha[u * heads + h] *= sum[h];
  }
}

// out = α · (grad - Σ α·grad over the row).
template <int kHeads>
void softmax_back_typed(const SoftmaxBack& s) {
  const int heads = kHeads ? kHeads : s.heads;
#pragma omp parallel for schedule(dynamic, kRows) num_threads(s.threads)
  for (int64_t u = 0; u < s.edges.n; u++) {
    const int64_t first = s.edges.start[u] * heads, last = s.edges.end[u] * heads;
    float sum[kLanes];
    for (int h = 0; h < heads; h++) sum[h] = s.own_alpha ? s.own_alpha[u * heads + h] * s.own_grad[u * heads + h] : 0;
    for (int64_t i = first; i < last; i += heads)
      for (int h = 0; h < heads; h++) sum[h] += s.alpha[i + h] * s.grad[i + h];
    for (int64_t i = first; i < last; i += heads)
      for (int h = 0; h < heads; h++) s.out[i + h] = s.alpha[i + h] * (s.grad[i + h] - sum[h]);
    if (s.own_alpha)
      for (int64_t i = u * heads, h = 0; h < heads; h++) s.own_out[i + h] = s.own_alpha[i + h] * (s.own_grad[i + h] - sum[h]);
  }
}

// ------------------------------------------------------------------------------------------------------------- products

// sum = Σ α[e]·table[v] over the edges of u, a few blocks of it.
template <int kHeads, int kBlocks>
inline void sum_row(const Attention& a, int64_t u, const float* alpha, const float* table, int64_t last, float* sum) {
  const int32_t* indices = static_cast<const int32_t*>(a.edges.indices);
  const int64_t stride = int64_t(a.blocks) * kLanes;
  constexpr int kAhead = 8;
  Block total[kBlocks];
  for (int b = 0; b < kBlocks; b++) total[b] = Block{};
  for (int64_t i = a.edges.start[u]; i < a.edges.end[u]; i++) {
    const int64_t ahead = std::min(i + kAhead, last);
    prefetch(table + indices[ahead] * stride, kBlocks);
    if (a.at) __builtin_prefetch(alpha + a.at[ahead] * a.heads);
    const Block w = spread<kHeads>(alpha + (a.at ? a.at[i] : i) * a.heads, a.lane);
    const float* row = table + indices[i] * stride;
    for (int b = 0; b < kBlocks; b++)
      for (int p = 0; p < kParts; p++) total[b].part[p] += w.part[p] * block(row + b * kLanes).part[p];
  }
  for (int b = 0; b < kBlocks; b++) block(sum + b * kLanes) = total[b];
}

// out[u] = what a node keeps of its own, and where the table has a place in it also what the others send.
template <int kHeads>
void diffuse_typed(const HeadDiffuse& d) {
  const Attention& a = d.attention;
  const int64_t last = a.edges.n ? std::max<int64_t>(a.edges.end[a.edges.n - 1] - 1, 0) : 0, slots = int64_t(a.blocks) * kLanes;
#pragma omp parallel num_threads(a.threads)
  {
    std::vector<Block> room(size_t(a.blocks));
    float* sum = reinterpret_cast<float*>(room.data());
#pragma omp for schedule(dynamic, 1)
    for (int64_t first = 0; first < a.edges.n; first += kRows)
      for (int64_t u = first; u < std::min(a.edges.n, first + kRows); u++) {
        for (int b = 0; b < a.blocks; b += kTile) switch (std::min(a.blocks - b, kTile)) {
#define CASE(B) \
  case B: sum_row<kHeads, B>(a, u, d.alpha, d.table + b * kLanes, last, sum + b * kLanes); break;
            CASE(1) CASE(2) CASE(3) CASE(4)
#undef CASE
          }
        float* out = d.out + u * d.width;
        if (d.own) {
          const float *mine = d.own + u * a.heads, *base = d.base + u * d.base_width;
          for (int64_t j = 0; j < d.width; j++) out[j] = d.from[j] < 0 ? 0.0f : mine[d.head[j]] * base[d.from[j]];
        } else {
          std::memset(out, 0, size_t(d.width) * sizeof(float));
        }
        for (int64_t k = 0; k < slots; k++)
          if (d.place[k] >= 0) out[d.place[k]] += sum[k];
      }
  }
}

template <int kHeads>
void head_dots_typed(const Attention& a, const float* x, const float* y, float* out) {
  const int32_t* indices = static_cast<const int32_t*>(a.edges.indices);
  const int64_t stride = int64_t(a.blocks) * kLanes;
  const int64_t last = a.edges.n ? std::max<int64_t>(a.edges.end[a.edges.n - 1] - 1, 0) : 0;
  constexpr int kAhead = 4;
#pragma omp parallel for schedule(dynamic, kRows) num_threads(a.threads)
  for (int64_t u = 0; u < a.edges.n; u++)
    for (int64_t i = a.edges.start[u]; i < a.edges.end[u]; i++) {
      prefetch(x + indices[std::min(i + kAhead, last)] * stride, a.blocks);
      const float *p = x + indices[i] * stride, *q = y + u * stride;
      Block sum{};
      for (int b = 0; b < a.blocks; b++)
        for (int k = 0; k < kParts; k++) sum.part[k] += block(p + b * kLanes).part[k] * block(q + b * kLanes).part[k];
      fold<kHeads>(sum, a.lane, a.heads, out + (a.at ? a.at[i] : i) * a.heads);
    }
}

// out[u,h] = Σ x[u][k] · y[u][from[k]] over the slots k of head h.
void own_dots(int64_t n, int heads, const int32_t* lane, int64_t slots, int64_t width, const int32_t* from, const float* x,
              const float* y, float* out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t u = 0; u < n; u++) {
    float sum[kLanes] = {};
    for (int64_t k = 0; k < slots; k++) sum[k % kLanes] += from[k] < 0 ? 0.0f : x[u * slots + k] * y[u * width + from[k]];
    for (int h = 0; h < heads; h++) out[u * heads + h] = 0;
    for (int k = 0; k < kLanes; k++) out[u * heads + lane[k]] += sum[k];
  }
}

// partial[chunk of 64 rows] = Σ_u (Σ α² over the edges of u) ⊙ x[u]²: with rows that send, the squared size of each column's
// messages.
template <int kHeads>
void column_squares_typed(const Attention& a, const float* alpha, const float* x, float* partial) {
  const int64_t stride = int64_t(a.blocks) * kLanes;
#pragma omp parallel for schedule(dynamic, 1) num_threads(a.threads)
  for (int64_t first = 0; first < a.edges.n; first += kRows) {
    float* part = partial + first / kRows * stride;
    for (int b = 0; b < a.blocks; b++) block(part + b * kLanes) = Block{};
    for (int64_t u = first; u < std::min(a.edges.n, first + kRows); u++) {
      float sum[kLanes] = {};
      for (int64_t i = a.edges.start[u]; i < a.edges.end[u]; i++) {
        const float* factor = alpha + (a.at ? a.at[i] : i) * a.heads;
        for (int h = 0; h < a.heads; h++) sum[h] += factor[h] * factor[h];
      }
      const Block w = spread<kHeads>(sum, a.lane);
      for (int b = 0; b < a.blocks; b++) {
        const Block& row = block(x + u * stride + b * kLanes);
        for (int p = 0; p < kParts; p++) block(part + b * kLanes).part[p] += w.part[p] * row.part[p] * row.part[p];
      }
    }
  }
}

// Columns in another order: out[u][c] = x[u][index[c]], 0 where index is negative.
void take_columns(int64_t n, int64_t from, int64_t to, const int32_t* index, const float* x, float* out, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
  for (int64_t u = 0; u < n; u++)
    for (int64_t c = 0; c < to; c++) out[u * to + c] = index[c] < 0 ? 0.0f : x[u * from + index[c]];
}

// ------------------------------------------------------------------------------------------- by the number of heads

// Whether lane k belongs to head k % heads.
bool in_turn(const int32_t* lane, int heads) {
  for (int k = 0; k < kLanes; k++)
    if (lane[k] != k % heads) return false;
  return true;
}

#define BY_LANES(F, A, ...)                                        \
  const bool turn = in_turn((A).lane, (A).heads);                  \
  if (turn && (A).heads == 1) return F<1>(__VA_ARGS__);            \
  if (turn && (A).heads == 4) return F<4>(__VA_ARGS__);            \
  if (turn && (A).heads == 8) return F<8>(__VA_ARGS__);            \
  return F<0>(__VA_ARGS__);
#define BY_HEADS(F, S)              \
  if ((S).heads == 1) return F<1>(S); \
  if ((S).heads == 4) return F<4>(S); \
  if ((S).heads == 8) return F<8>(S); \
  return F<0>(S);

void scores(const Scores& s) { BY_LANES(scores_typed, s.attention, s) }
void slopes(const Slopes& s) { BY_LANES(slopes_typed, s.attention, s) }
void softmax(const Softmax& s) { BY_HEADS(softmax_typed, s) }
void softmax_back(const SoftmaxBack& s) { BY_HEADS(softmax_back_typed, s) }
void head_diffuse(const HeadDiffuse& d) { BY_LANES(diffuse_typed, d.attention, d) }
void head_dots(const Attention& a, const float* x, const float* y, float* out) { BY_LANES(head_dots_typed, a, a, x, y, out) }
void column_squares(const Attention& a, const float* alpha, const float* x, float* partial) {
  BY_LANES(column_squares_typed, a, a, alpha, x, partial)
}

}  // namespace

const Attentions& UNIFEWS_ATTENTION() {
  static const Attentions table{scores, slopes, softmax, softmax_back, head_diffuse, head_dots, own_dots, column_squares,
                                take_columns};
  return table;
}

}  // namespace unifews
