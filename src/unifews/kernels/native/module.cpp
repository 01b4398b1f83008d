// Python's view of the kernels: checks nothing but types (callers in Python own the checking), releases the GIL, and
// picks the widest instruction set the processor has.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "attention.h"
#include "check.h"
#include "kernels.h"
#include "pointwise.h"
#include "rows.h"
#include "weights.h"

using namespace unifews;

void bind_attention(nb::module_& m);  // attention_module.cpp
void bind_features(nb::module_& m);   // features_module.cpp
void bind_pointwise(nb::module_& m);  // pointwise_module.cpp
void bind_rows(nb::module_& m);       // rows_module.cpp
void bind_weights(nb::module_& m);    // weights_module.cpp

namespace {

using Index = nb::ndarray<nb::c_contig, nb::device::cpu>;

struct Level {
  const char* name;
  const Table& (*table)();
  const Messages& (*messages)();
  const Attentions& (*attention)();
  const Weights& (*weights)();
  const Pointwise& (*pointwise)();
  const Checks& (*checks)();
  const RowKernels& (*rows)();
};

std::vector<Level> levels() {
  std::vector<Level> found{{"base", table_base, messages_base, attention_base, weights_base, pointwise_base, checks_base,
                            rows_base}};
#if defined(UNIFEWS_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.push_back({"avx2", table_avx2, messages_avx2, attention_avx2, weights_avx2, pointwise_avx2, checks_avx2,
                     rows_avx2});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    found.push_back({"avx512", table_avx512, messages_avx512, attention_avx512, weights_avx512, pointwise_avx512,
                     checks_avx512, rows_avx512});
#endif
  return found;
}

Level current = levels().back();

void use(const std::string& name) {
  for (const Level& level : levels())
    if (name == level.name) {
      current = level;
      return;
    }
  throw std::invalid_argument("this processor or build has no '" + name + "' kernels");
}

Edges edges(const Input<int64_t>& start, const Input<int64_t>& end, const Indices& indices,
            const Maybe<Input<float>>& weight) {
  return {int64_t(start.shape(0)), start.data(), end.data(), indices.data(), data(weight),
          is_wide(indices.dtype())};
}

}  // namespace

const Attentions& unifews::attention_in_use() { return current.attention(); }
const Pointwise& unifews::pointwise_in_use() { return current.pointwise(); }
const RowKernels& unifews::rows_in_use() { return current.rows(); }
const Weights& unifews::weights_in_use() { return current.weights(); }

NB_MODULE(_native, m) {
  m.doc() = "Compiled kernels of unifews; unifews.kernels.reference_hops says what each computes.";
  m.def("levels", [] {
    std::vector<std::string> names;
    for (const Level& level : levels()) names.push_back(level.name);
    return names;
  });
  m.def("level", [] { return std::string(current.name); });
  m.def("use_level", &use, "name"_a);
  m.def("openmp", [] {
#if defined(_OPENMP)
    return true;
#else
    return false;
#endif
  });

  m.def(
      "end_threads",
      [] {
#if defined(_OPENMP)
        nb::gil_scoped_release free;
        return omp_pause_resource_all(omp_pause_hard) == 0;
#else
        return true;
#endif
      },
      "End the threads that wait for the next kernel; it starts new ones. False = they could not be ended.");

  m.def(
      "check_rows",
      [](Input<int64_t> indptr, Indices indices, Maybe<Input<float>> weight, int64_t first, int64_t last, int64_t columns,
         bool hashed, uint64_t key, int threads) {
        const RowCheck c{first, last, columns, int64_t(indices.shape(0)), indptr.data(), indices.data(),
                         is_wide(indices.dtype()), data(weight), hashed, key, threads};
        RowFaults f;
        {
          nb::gil_scoped_release free;
          f = current.checks().rows(c);
        }
        return nb::make_tuple(f.pointer, f.range, f.order, f.loop, f.weight, f.balance);
      },
      "indptr"_a, "indices"_a, "weight"_a.none(), "first"_a, "last"_a, "columns"_a, "hashed"_a, "key"_a, "threads"_a);

  m.def(
      "ingest",
      [](Input<float> x, int64_t row0, int column0, int width, int blocks, Input<float> source,
         Maybe<Input<float>> offset, Maybe<Input<float>> direction, bool largest, Array<float> q,
         Maybe<Array<float>> size, Maybe<Array<float>> top, Maybe<Array<float>> square, int threads) {
        const Ingest g{row0, int64_t(x.shape(0)), int64_t(x.shape(1)), width, blocks, x.data() + column0,
                       source.data(), data(offset), data(direction), largest, q.data(), data(size), data(top),
                       data(square), threads};
        nb::gil_scoped_release free;
        return current.table().ingest(g);
      },
      "x"_a, "row0"_a, "column0"_a, "width"_a, "blocks"_a, "source"_a, "offset"_a.none(), "direction"_a.none(),
      "largest"_a, "q"_a, "size"_a.none(), "top"_a.none(), "square"_a.none(), "threads"_a);

  m.def(
      "full_hop",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, int blocks,
         Maybe<Input<float>> keep, Maybe<Input<float>> gain, Input<float> q, Array<float> q_out, float coefficient,
         Maybe<Array<float>> out, Maybe<Array<float>> square, int threads, float previous) {
        const Edges e = edges(start, end, indices, weight);
        nb::gil_scoped_release free;
        current.table().full_hop(e, blocks, data(keep), data(gain), q.data(),
                                 q_out.data(), previous, coefficient, data(out),
                                 data(square), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "blocks"_a, "keep"_a.none(), "gain"_a.none(), "q"_a, "q_out"_a,
      "coefficient"_a, "out"_a.none(), "square"_a.none(), "threads"_a, "previous"_a = 0.0f);

  m.def(
      "column_hop",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, Input<float> keep,
         Input<float> gain, Input<float> q, Array<float> q_out, int threads) {
        const Edges e = edges(start, end, indices, weight);
        nb::gil_scoped_release free;
        current.table().column_hop(e, keep.data(), gain.data(), q.data(), q_out.data(), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "keep"_a, "gain"_a, "q"_a, "q_out"_a, "threads"_a);

  m.def(
      "column_push",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, Input<float> x,
         Array<double> out, int threads) {
        const Edges e = edges(start, end, indices, weight);
        nb::gil_scoped_release free;
        current.table().column_push(e, int(x.shape(1)), x.data(), out.data(), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "x"_a, "out"_a, "threads"_a);

  m.def(
      "spread_squares",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, Input<int64_t> x_indptr,
         Indices x_indices, Maybe<Input<float>> x_data, int64_t width, Input<float> source, Maybe<Input<float>> direction,
         Array<double> square, Array<double> along, int threads) {
        const Edges e = edges(start, end, indices, weight);
        const Edges x{int64_t(x_indptr.shape(0)) - 1, x_indptr.data(), x_indptr.data() + 1, x_indices.data(), data(x_data),
                      is_wide(x_indices.dtype())};
        nb::gil_scoped_release free;
        current.table().spread_squares(e, x, width, source.data(), data(direction), square.data(), along.data(), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "x_indptr"_a, "x_indices"_a, "x_data"_a.none(), "width"_a,
      "source"_a, "direction"_a.none(), "square"_a, "along"_a, "threads"_a);

  m.def(
      "pruned_hop",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, int blocks, int width,
         int hop, Input<float> keep, Input<float> gain, Input<float> target, Input<float> reach, Input<int64_t> fanout,
         float delta, bool rouse, bool by_feature, Input<float> size, Input<float> top, Array<float> size_out,
         Array<float> top_out, Maybe<Array<uint8_t>> alive, Array<float> even, Array<float> odd,
         Array<uint16_t> stamp, Maybe<Array<float>> out, Input<float> coefficient, int threads, Maybe<Input<float>> cost,
         Maybe<Input<double>> charge, Maybe<Input<float>> toll, Maybe<Array<double>> removed, int64_t cached) {
        PrunedCount count{};
        const PrunedHop h{edges(start, end, indices, weight), blocks, hop, keep.data(), gain.data(), target.data(),
                          reach.data(), fanout.data(), delta, rouse, size.data(), top.data(), size_out.data(),
                          top_out.data(), data(alive),
                          Lazy{{even.data(), odd.data()}, stamp.data(), data(out), out ? coefficient.data() : nullptr},
                          threads, data(cost), data(charge), data(toll), cached};
        {
          nb::gil_scoped_release free;
          if (by_feature)
            current.table().feature_hop(h, width, &count);
          else
            current.table().pruned_hop(h, &count);
        }
        if (removed) std::copy(count.removed, count.removed + blocks, removed->data());
        return nb::make_tuple(std::vector<int64_t>(count.kept, count.kept + blocks),
                              std::vector<int64_t>(count.zero, count.zero + blocks), count.lagging);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "blocks"_a, "width"_a, "hop"_a, "keep"_a, "gain"_a,
      "target"_a, "reach"_a, "fanout"_a, "delta"_a, "rouse"_a, "by_feature"_a, "size"_a, "top"_a, "size_out"_a, "top_out"_a,
      "alive"_a.none(), "even"_a, "odd"_a, "stamp"_a, "out"_a.none(), "coefficient"_a, "threads"_a, "cost"_a = nb::none(),
      "charge"_a = nb::none(), "toll"_a = nb::none(), "removed"_a = nb::none(), "cached"_a = int64_t(4) << 20);

  m.def(
      "select_edges",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, Input<float> norm,
         Input<float> target, float delta, Array<int64_t> end_out, Index indices_out, Maybe<Array<float>> weight_out,
         int threads) {
        const Edges e = edges(start, end, indices, weight);
        nb::gil_scoped_release free;
        return current.table().select_edges(e, norm.data(), target.data(), delta, end_out.data(), indices_out.data(),
                                            data(weight_out), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "norm"_a, "target"_a, "delta"_a, "end_out"_a,
      "indices_out"_a, "weight_out"_a.none(), "threads"_a);

  m.def(
      "fan",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, Input<float> target,
         Array<float> reach, Array<int64_t> fanout, int threads) {
        const Edges e = edges(start, end, indices, weight);
        nb::gil_scoped_release free;
        current.table().fan(e, target.data(), reach.data(), fanout.data(), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "target"_a, "reach"_a, "fanout"_a, "threads"_a);

  m.def(
      "finish",
      [](int blocks, int width, int hop, Input<float> keep, Input<float> source, Maybe<Input<float>> offset,
         Maybe<Input<float>> direction, Array<float> even, Array<float> odd, Maybe<Array<uint16_t>> stamp,
         Maybe<Array<float>> out, Input<float> coefficient, Array<float> result, int column0, int threads) {
        const Finish f{int64_t(source.shape(0)), blocks, width, hop, keep.data(), source.data(), data(offset),
                       data(direction),
                       Lazy{{even.data(), odd.data()}, data(stamp), data(out), out ? coefficient.data() : nullptr},
                       result.data() + column0, int64_t(result.shape(1)), threads};
        nb::gil_scoped_release free;
        current.table().finish(f);
      },
      "blocks"_a, "width"_a, "hop"_a, "keep"_a, "source"_a, "offset"_a.none(), "direction"_a.none(), "even"_a,
      "odd"_a, "stamp"_a.none(), "out"_a.none(), "coefficient"_a, "result"_a, "column0"_a, "threads"_a);

  m.def(
      "gather",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, int blocks,
         Maybe<Input<float>> gain, Input<float> x, Array<float> out, int threads) {
        const Edges e = edges(start, end, indices, weight);
        nb::gil_scoped_release free;
        current.messages().gather(e, blocks, data(gain), x.data(), out.data(), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "blocks"_a, "gain"_a.none(), "x"_a, "out"_a, "threads"_a);

  m.def(
      "scatter",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, int blocks, Input<float> x,
         Array<float> out, int threads) {
        const Edges e = edges(start, end, indices, weight);
        nb::gil_scoped_release free;
        current.messages().scatter(e, blocks, x.data(), int64_t(out.shape(0)), out.data(), threads);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "blocks"_a, "x"_a, "out"_a, "threads"_a);

  m.def(
      "gather_kept",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, int blocks,
         Maybe<Input<float>> gain, Input<float> x, Input<float> size, Input<float> cut, bool by_sender, Array<float> out,
         int threads) {
        const KeptGather g{edges(start, end, indices, weight), blocks, data(gain), x.data(), size.data(), cut.data(),
                           by_sender, out.data(), threads};
        nb::gil_scoped_release free;
        return current.messages().gather_kept(g);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "blocks"_a, "gain"_a.none(), "x"_a, "size"_a, "cut"_a,
      "by_sender"_a, "out"_a, "threads"_a);

  m.def(
      "diffuse",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, Maybe<Input<float>> weight, int blocks,
         Maybe<Input<int64_t>> columns, Input<float> table, Input<float> y, Maybe<Input<float>> loop,
         Maybe<Input<float>> rest, Array<float> out, int threads) {
        const int64_t width = int64_t(y.shape(1));
        const Diffuse d{edges(start, end, indices, weight), width, blocks, columns ? int64_t(columns->shape(0)) : width,
                        data(columns), table.data(), y.data(), data(loop), data(rest), out.data(), threads};
        nb::gil_scoped_release free;
        current.messages().diffuse(d);
      },
      "start"_a, "end"_a, "indices"_a, "weight"_a.none(), "blocks"_a, "columns"_a.none(), "table"_a, "y"_a,
      "loop"_a.none(), "rest"_a.none(), "out"_a, "threads"_a);

  m.def(
      "pick_columns",
      [](Input<float> y, Maybe<Input<int64_t>> columns, int blocks, Array<float> table, int threads) {
        const int64_t width = int64_t(y.shape(1));
        nb::gil_scoped_release free;
        current.messages().pick_columns(int64_t(y.shape(0)), width, y.data(), data(columns),
                                        columns ? int64_t(columns->shape(0)) : width, blocks, table.data(), threads);
      },
      "y"_a, "columns"_a.none(), "blocks"_a, "table"_a, "threads"_a);

  m.def(
      "block_sizes",
      [](Input<float> x, int blocks, Array<float> size, int threads) {
        const int64_t n = int64_t(x.shape(0));
        nb::gil_scoped_release free;
        current.messages().block_sizes(n, blocks, x.data(), size.data(), threads);
      },
      "x"_a, "blocks"_a, "size"_a, "threads"_a);

  m.def(
      "edge_dots",
      [](Input<int64_t> start, Input<int64_t> end, Indices indices, int blocks, Input<float> x, Input<float> y,
         Array<float> out, int threads) {
        const Edges e = edges(start, end, indices, Maybe<Input<float>>{});
        nb::gil_scoped_release free;
        current.messages().edge_dots(e, blocks, x.data(), y.data(), out.data(), threads);
      },
      "start"_a, "end"_a, "indices"_a, "blocks"_a, "x"_a, "y"_a, "out"_a, "threads"_a);

  bind_attention(m);
  bind_features(m);
  bind_pointwise(m);
  bind_rows(m);
  bind_weights(m);
}
