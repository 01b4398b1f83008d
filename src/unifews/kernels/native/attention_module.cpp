// Python's view of attention.cpp, in the manner of module.cpp.
#include "arrays.h"
#include "attention.h"

using namespace unifews;

namespace {

using Longs = Input<int64_t>;
using Lanes = Input<int32_t>;

Edges edges(const Longs& start, const Longs& end, const int32_t* indices) {
  return {int64_t(start.shape(0)), start.data(), end.data(), indices, nullptr, false};
}

}  // namespace

void bind_attention(nb::module_& m) {
  m.def(
      "attention_scores",
      [](Longs start, Longs end, Input<int32_t> indices, int heads, Lanes lane, int blocks, Input<float> x, Input<float> y,
         Input<float> att, float slope, Array<float> score, Maybe<Array<float>> own, Maybe<Array<uint16_t>> signs,
         Maybe<Array<uint16_t>> own_signs, int threads) {
        const Scores s{{edges(start, end, indices.data()), nullptr, heads, lane.data(), blocks, threads}, x.data(), y.data(),
                       att.data(), slope, score.data(), data(own), data(signs), data(own_signs)};
        nb::gil_scoped_release free;
        attention_in_use().scores(s);
      },
      "start"_a, "end"_a, "indices"_a, "heads"_a, "lane"_a, "blocks"_a, "x"_a, "y"_a, "att"_a, "slope"_a, "score"_a,
      "own"_a.none(), "signs"_a.none(), "own_signs"_a.none(), "threads"_a);

  m.def(
      "attention_slopes",
      [](Longs start, Longs end, Maybe<Longs> at, int heads, Lanes lane, int blocks, Input<float> grad,
         Maybe<Input<float>> own_grad, Input<uint16_t> signs, Maybe<Input<uint16_t>> own_signs, Input<float> x,
         Input<float> att, float slope, Array<float> out, Array<float> partial, int threads) {
        const Slopes s{{edges(start, end, nullptr), data(at), heads, lane.data(), blocks, threads}, grad.data(),
                       data(own_grad), signs.data(), data(own_signs), x.data(), att.data(), slope, out.data(),
                       partial.data()};
        nb::gil_scoped_release free;
        attention_in_use().slopes(s);
      },
      "start"_a, "end"_a, "at"_a.none(), "heads"_a, "lane"_a, "blocks"_a, "grad"_a, "own_grad"_a.none(), "signs"_a,
      "own_signs"_a.none(), "x"_a, "att"_a, "slope"_a, "out"_a, "partial"_a, "threads"_a);

  m.def(
      "row_softmax",
      [](Longs start, Longs end, int heads, Input<float> score, Maybe<Input<float>> own, Maybe<Input<float>> loop,
         Array<float> alpha, Maybe<Array<float>> own_alpha, int threads) {
        const Softmax s{edges(start, end, nullptr), heads, score.data(), data(own), data(loop), alpha.data(),
                        data(own_alpha), threads};
        nb::gil_scoped_release free;
        attention_in_use().softmax(s);
      },
      "start"_a, "end"_a, "heads"_a, "score"_a, "own"_a.none(), "loop"_a.none(), "alpha"_a, "own_alpha"_a.none(),
      "threads"_a);

  m.def(
      "row_softmax_back",
      [](Longs start, Longs end, int heads, Input<float> alpha, Maybe<Input<float>> own_alpha, Input<float> grad,
         Maybe<Input<float>> own_grad, Array<float> out, Maybe<Array<float>> own_out, int threads) {
        const SoftmaxBack s{edges(start, end, nullptr), heads, alpha.data(), data(own_alpha), grad.data(), data(own_grad),
                            out.data(), data(own_out), threads};
        nb::gil_scoped_release free;
        attention_in_use().softmax_back(s);
      },
      "start"_a, "end"_a, "heads"_a, "alpha"_a, "own_alpha"_a.none(), "grad"_a, "own_grad"_a.none(), "out"_a,
      "own_out"_a.none(), "threads"_a);

  m.def(
      "head_diffuse",
      [](Longs start, Longs end, Input<int32_t> indices, Maybe<Longs> at, int heads, Lanes lane, int blocks,
         Input<float> alpha, Maybe<Input<float>> own, Lanes head, Lanes from, Input<float> base, Input<float> table,
         Lanes place, Array<float> out, int threads) {
        const HeadDiffuse d{{edges(start, end, indices.data()), data(at), heads, lane.data(), blocks, threads}, alpha.data(),
                            data(own), head.data(), from.data(), base.data(), int64_t(base.shape(1)), table.data(),
                            place.data(), out.data(), int64_t(out.shape(1))};
        nb::gil_scoped_release free;
        attention_in_use().head_diffuse(d);
      },
      "start"_a, "end"_a, "indices"_a, "at"_a.none(), "heads"_a, "lane"_a, "blocks"_a, "alpha"_a, "own"_a.none(), "head"_a,
      "from_"_a, "base"_a, "table"_a, "place"_a, "out"_a, "threads"_a);

  m.def(
      "head_dots",
      [](Longs start, Longs end, Input<int32_t> indices, Maybe<Longs> at, int heads, Lanes lane, int blocks, Input<float> x,
         Input<float> y, Array<float> out, int threads) {
        const Attention a{edges(start, end, indices.data()), data(at), heads, lane.data(), blocks, threads};
        nb::gil_scoped_release free;
        attention_in_use().head_dots(a, x.data(), y.data(), out.data());
      },
      "start"_a, "end"_a, "indices"_a, "at"_a.none(), "heads"_a, "lane"_a, "blocks"_a, "x"_a, "y"_a, "out"_a, "threads"_a);

  m.def(
      "own_dots",
      [](int heads, Lanes lane, Lanes from, Input<float> x, Input<float> y, Array<float> out, int threads) {
        const int64_t n = int64_t(x.shape(0)), slots = int64_t(x.shape(1)), width = int64_t(y.shape(1));
        nb::gil_scoped_release free;
        attention_in_use().own_dots(n, heads, lane.data(), slots, width, from.data(), x.data(), y.data(), out.data(), threads);
      },
      "heads"_a, "lane"_a, "from_"_a, "x"_a, "y"_a, "out"_a, "threads"_a);

  m.def(
      "column_squares",
      [](Longs start, Longs end, Maybe<Longs> at, int heads, Lanes lane, int blocks, Input<float> alpha, Input<float> x,
         Array<float> partial, int threads) {
        const Attention a{edges(start, end, nullptr), data(at), heads, lane.data(), blocks, threads};
        nb::gil_scoped_release free;
        attention_in_use().column_squares(a, alpha.data(), x.data(), partial.data());
      },
      "start"_a, "end"_a, "at"_a.none(), "heads"_a, "lane"_a, "blocks"_a, "alpha"_a, "x"_a, "partial"_a, "threads"_a);

  m.def(
      "take_columns",
      [](Input<float> x, Input<int32_t> index, Array<float> out, int threads) {
        const int64_t n = int64_t(x.shape(0)), from = int64_t(x.shape(1)), to = int64_t(index.shape(0));
        nb::gil_scoped_release free;
        attention_in_use().take_columns(n, from, to, index.data(), x.data(), out.data(), threads);
      },
      "x"_a, "index"_a, "out"_a, "threads"_a);
}
