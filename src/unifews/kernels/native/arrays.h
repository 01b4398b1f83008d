// Arrays as Python hands them to the kernels, shared by the modules.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;

template <class T>
using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
template <class T>
using Input = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
template <class T>
using Maybe = std::optional<T>;
using Indices = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;  // int32 or int64

template <class A>
auto* data(const Maybe<A>& a) {
  return a ? a->data() : nullptr;
}

inline bool is_wide(nb::dlpack::dtype type) {
  if (type == nb::dtype<int32_t>()) return false;
  if (type == nb::dtype<int64_t>()) return true;
  throw std::invalid_argument("indices must be int32 or int64");
}
