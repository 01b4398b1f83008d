// Tiles of rows turned on their side, so that one weight multiplies neighbouring values. Included once per instruction set.
#pragma once
#include <memory>
#include <vector>

#include "block.h"

namespace unifews {
namespace {  // every instruction set has its own

using Room = std::unique_ptr<Block[]>;
inline Room room(int64_t floats) { return Room(new Block[size_t(floats / kLanes + 1)]); }
inline float* start(const Room& r) { return reinterpret_cast<float*>(r.get()); }

// to(i)[k] = from(k)[i] for eight rows of eight floats.
template <bool kRelu, class From, class To>
inline void turn(const From& from, const To& to) {
#if defined(__AVX2__)
  for (int h = 0; h < 8; h += 4) {
    __m256 row[4];
    for (int i = 0; i < 4; i++)
      row[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from(i) + h)), _mm_loadu_ps(from(i + 4) + h), 1);
    const __m256 a = _mm256_unpacklo_ps(row[0], row[1]), b = _mm256_unpackhi_ps(row[0], row[1]);
    const __m256 c = _mm256_unpacklo_ps(row[2], row[3]), d = _mm256_unpackhi_ps(row[2], row[3]);
    const __m256 done[4] = {_mm256_shuffle_ps(a, c, 0x44), _mm256_shuffle_ps(a, c, 0xee), _mm256_shuffle_ps(b, d, 0x44),
                            _mm256_shuffle_ps(b, d, 0xee)};
    for (int i = 0; i < 4; i++)  // of two, max_ps gives the second where one is not a number
      _mm256_storeu_ps(to(h + i), kRelu ? _mm256_max_ps(_mm256_setzero_ps(), done[i]) : done[i]);
  }
#else
  for (int i = 0; i < 8; i++)
    for (int k = 0; k < 8; k++) {
      const float v = from(k)[i];
      to(i)[k] = kRelu && v < 0 ? 0.0f : v;
    }
#endif
}

// Eight neighbouring inputs, and the slot of a tile that each goes to.
struct Group {
  int64_t column;
  uint8_t slot[8];
  bool straight;  // slots are neighbours too
};

// Groups that cover the `count` columns at `column`, whose slots are 0, 1, …; other columns go to the slot `spare`.
void cover(const int32_t* column, int64_t count, int64_t f_in, int64_t spare, std::vector<Group>& groups) {
  for (int64_t k = 0; k < count;) {
    Group g;
    g.column = std::max<int64_t>(0, std::min<int64_t>(column[k], f_in - 8));
    std::fill(g.slot, g.slot + 8, uint8_t(spare));
    const int64_t first = k;
    for (; k < count && column[k] < g.column + 8; k++) g.slot[column[k] - g.column] = uint8_t(k);
    g.straight = k - first == 8;
    groups.push_back(g);
  }
}

template <int kHeight>
void read_tile(const float* const* row, const Group* group, const Group* end, float* tile) {
  for (int r = 0; r < kHeight; r += 8)
    for (const Group* g = group; g < end; g++) {
      const auto from = [&](int k) { return row[r + k] + g->column; };
      if (g->straight) {
        float* first = tile + int64_t(g->slot[0]) * kHeight + r;
        turn<false>(from, [&](int i) { return first + i * kHeight; });
      } else {
        turn<false>(from, [&](int i) { return tile + int64_t(g->slot[i]) * kHeight + r; });
      }
    }
}

// Sums [width][kHeight] to the first `rows` rows of out, whose rows are `stride` apart.
template <int kHeight, bool kRelu>
void write_tile(const float* sums, int64_t width, int rows, float* out, int64_t stride) {
  for (int64_t line = 0; line < width; line += kLanes)  // both halves of a cache line, one after the other
    for (int r = 0; r < rows; r += 8)
      for (int64_t j = line; j < std::min(width, line + kLanes); j += 8) {
        const auto from = [&](int k) { return sums + (j + k) * kHeight + r; };
        float* first = out + r * stride + j;
        if (j + 8 <= width && r + 8 <= rows) {
          turn<kRelu>(from, [&](int i) { return first + i * stride; });
        } else {
          float spare[8][8];
          turn<kRelu>(from, [&](int i) { return spare[i]; });
          for (int i = 0; i < std::min(8, rows - r); i++)
            std::copy_n(spare[i], std::min<int64_t>(8, width - j), first + i * stride);
        }
      }
}

}  // namespace
}  // namespace unifews
