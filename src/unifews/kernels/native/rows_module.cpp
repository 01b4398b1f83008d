// Python's view of rows.cpp, in the manner of module.cpp.
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "rows.h"

using namespace unifews;

namespace {

using Bytes = Array<uint8_t>;
using Floats = Input<float>;

// What Python calls stored rows: rows uint8 [n, stride] and steps uint8 [n, 8]; without steps they are behind a row's blocks.
Rows place(int format, const Bytes& rows, const Bytes& steps, int blocks) {
  if (format < 0 || format > int(Format::kInt4)) throw std::invalid_argument("no such row format");
  const int64_t stride = int64_t(rows.shape(1)), behind = 16 * (Format(format) == Format::kInt4 ? (blocks + 1) / 2 : blocks);
  if (steps.size()) return {rows.data(), stride, steps.data(), int64_t(steps.shape(1))};
  return {rows.data(), stride, rows.data() + behind, stride};
}

template <class Task>
void fill(Task& task, int format, const std::vector<Bytes>& rows, const std::vector<Bytes>& steps) {
  if (rows.size() > kMaxIterates || rows.size() != steps.size() || rows.empty())
    throw std::invalid_argument("between 1 and 64 iterates, each with steps");
  task.count = int(rows.size());
  for (size_t k = 0; k < rows.size(); k++) task.iterates[k] = place(format, rows[k], steps[k], task.blocks);
}

}  // namespace

void bind_rows(nb::module_& m) {
  m.def(
      "encode_rows",
      [](int format, Floats x, int64_t row0, int column0, int width, int blocks, Floats source, Floats weight,
         Maybe<Floats> own, Floats mean, Floats scale, Bytes rows, Bytes steps, Array<double> sums, int threads) {
        const EncodeRows g{int64_t(weight.shape(0)), row0, int64_t(x.shape(0)), int64_t(x.shape(1)), blocks, width,
                           x.data() + column0, source.data(), weight.data(), data(own), mean.data(), scale.data(),
                           place(format, rows, steps, blocks), sums.data(), threads};
        nb::gil_scoped_release free;
        rows_in_use().encode(Format(format), g);
      },
      "format"_a, "x"_a, "row0"_a, "column0"_a, "width"_a, "blocks"_a, "source"_a, "weight"_a, "own"_a.none(), "mean"_a,
      "scale"_a, "rows"_a, "steps"_a, "sums"_a, "threads"_a);

  m.def(
      "recurrence_hop",
      [](int format, Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Floats> edge_weight, int blocks,
         Floats keep, Floats gain, Floats weight, Maybe<Floats> own, std::vector<Bytes> rows, std::vector<Bytes> steps,
         Floats factor, Floats mix, Bytes out, Bytes out_steps, Array<double> sums, int threads) {
        RecurrenceHop h{};
        h.edges = {int64_t(start.shape(0)), start.data(), end.data(), indices.data(), data(edge_weight), is_wide(indices.dtype())};
        h.blocks = blocks;
        h.keep = keep.data(), h.gain = gain.data(), h.weight = weight.data(), h.own = data(own);
        fill(h, format, rows, steps);
        h.factor = factor.data(), h.mix = mix.data(), h.out = place(format, out, out_steps, blocks);
        h.sums = sums.data(), h.threads = threads;
        nb::gil_scoped_release free;
        rows_in_use().hop(Format(format), h);
      },
      "format"_a, "start"_a, "end"_a, "indices"_a, "edge_weight"_a.none(), "blocks"_a, "keep"_a, "gain"_a, "weight"_a,
      "own"_a.none(), "rows"_a, "steps"_a, "factor"_a, "mix"_a, "out"_a, "out_steps"_a, "sums"_a, "threads"_a);

  m.def(
      "combine_rows",
      [](int format, int blocks, int width, Floats factor, Floats weight, std::vector<Bytes> rows, std::vector<Bytes> steps,
         Floats mix, Floats offset, Array<float> result, int64_t column0, int threads) {
        CombineRows g{};
        g.n = int64_t(weight.shape(0)), g.stride = int64_t(result.shape(1));
        g.blocks = blocks, g.width = width;
        g.factor = factor.data(), g.weight = weight.data();
        fill(g, format, rows, steps);
        g.mix = mix.data(), g.offset = offset.data(), g.result = result.data() + column0, g.threads = threads;
        nb::gil_scoped_release free;
        rows_in_use().combine(Format(format), g);
      },
      "format"_a, "blocks"_a, "width"_a, "factor"_a, "weight"_a, "rows"_a, "steps"_a, "mix"_a, "offset"_a, "result"_a,
      "column0"_a, "threads"_a);

  m.def(
      "column_sums",
      [](Floats x, Floats factor, Floats square, Array<double> sums, int threads) {
        const ColumnSums g{int64_t(x.shape(0)), int64_t(x.shape(1)), int(x.shape(1)), x.data(), factor.data(), square.data(),
                           sums.data(), threads};
        nb::gil_scoped_release free;
        rows_in_use().column_sums(g);
      },
      "x"_a, "factor"_a, "square"_a, "sums"_a, "threads"_a);

  m.def(
      "largest_magnitude",
      [](Floats x, int threads) {
        const float* data = x.data();
        const int64_t count = int64_t(x.size());
        nb::gil_scoped_release free;
        return rows_in_use().largest_magnitude(data, count, threads);
      },
      "x"_a, "threads"_a);

  m.def(
      "tridiagonal_series",
      [](Floats diagonal, Floats off_diagonal, Input<double> series, float centre, float radius, Array<float> out, int threads) {
        const TridiagonalSeries g{int(diagonal.shape(0)), int(diagonal.shape(1)) / kLanes, int(series.shape(0)),
                                  diagonal.data(), off_diagonal.data(), series.data(), centre, radius, out.data(), threads};
        nb::gil_scoped_release free;
        rows_in_use().tridiagonal(g);
      },
      "diagonal"_a, "off_diagonal"_a, "series"_a, "centre"_a, "radius"_a, "out"_a, "threads"_a);
}
