// Values and locations as the inner loops take them: values as float or double, locations checked and in 32 bits or fewer.
//
// 16-bit values are widened block by block on the way, and results are rounded once, when they are written. So the number
// of inner loops is that of the widths, not widths times types.

#pragma once

#include "fixed_fan_in_kernels.h"

#include "vector.h"

namespace torch_sparse_ops {
namespace {

template <typename Number>
ALWAYS_INLINE Number smaller(Number a, Number b) {
  return a < b ? a : b;
}

// ---------------------------------------------------------------- widening and narrowing

template <typename Format>
ALWAYS_INLINE void widen_row(const uint16_t* source, int64_t count, float* target) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store<lanes>(target + i, Format::template widen<lanes>(load<lanes>(source + i)));
  }
  if (i < count) {
    uint16_t last[lanes] = {};
    float wide[lanes];
    __builtin_memcpy(last, source + i, (count - i) * sizeof(uint16_t));
    store<lanes>(wide, Format::template widen<lanes>(load<lanes>(last)));
    __builtin_memcpy(target + i, wide, (count - i) * sizeof(float));
  }
}

template <typename Format, bool streaming>
ALWAYS_INLINE void narrow_row(const float* source, int64_t count, uint16_t* target) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto values = Format::template narrow<lanes>(load<lanes>(source + i));
    if constexpr (streaming) {
      stream<lanes>(target + i, values);
    } else {
      store<lanes>(target + i, values);
    }
  }
  if (i < count) {
    float last[lanes] = {};
    uint16_t narrow[lanes];
    __builtin_memcpy(last, source + i, (count - i) * sizeof(float));
    store<lanes>(narrow, Format::template narrow<lanes>(load<lanes>(last)));
    __builtin_memcpy(target + i, narrow, (count - i) * sizeof(uint16_t));
  }
}

// Rows of a matrix: short ones would spend their time on calls.
template <typename Format>
void widen_loop(
    const uint16_t* source, int64_t source_stride, int64_t rows, int64_t columns, float* target, int64_t target_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    widen_row<Format>(source + r * source_stride, columns, target + r * target_stride);
  }
}

template <typename Format, bool streaming>
void narrow_loop(
    const float* source, int64_t source_stride, int64_t rows, int64_t columns, uint16_t* target, int64_t target_stride) {
  for (int64_t r = 0; r < rows; ++r) {
    narrow_row<Format, streaming>(source + r * source_stride, columns, target + r * target_stride);
  }
}

constexpr int64_t size_of(Value value) { return value == Value::float64 ? 8 : value == Value::float32 ? 4 : 2; }
constexpr int64_t size_of(Index index) { return index == Index::int64 ? 8 : index == Index::int32 ? 4 : 2; }
constexpr bool is_narrow(Value value) { return size_of(value) == 2; }

ALWAYS_INLINE const void* advance(const void* pointer, int64_t bytes) { return static_cast<const char*>(pointer) + bytes; }
ALWAYS_INLINE void* advance(void* pointer, int64_t bytes) { return static_cast<char*>(pointer) + bytes; }

void widen(
    Value value, const void* source, int64_t source_stride, int64_t rows, int64_t columns, float* target,
    int64_t target_stride) {
  const auto loop = value == Value::bfloat16 ? widen_loop<Bfloat16> : widen_loop<Float16>;
  loop(static_cast<const uint16_t*>(source), source_stride, rows, columns, target, target_stride);
}

// `streaming` asks for stores past the caches; the target's rows must then be aligned to a register.
void narrow(
    Value value, const float* source, int64_t source_stride, int64_t rows, int64_t columns, void* target,
    int64_t target_stride, bool streaming) {
  const auto loop = value == Value::bfloat16 ? (streaming ? narrow_loop<Bfloat16, true> : narrow_loop<Bfloat16, false>)
                                             : (streaming ? narrow_loop<Float16, true> : narrow_loop<Float16, false>);
  loop(source, source_stride, rows, columns, static_cast<uint16_t*>(target), target_stride);
}

void widen(Value, const void*, int64_t, int64_t, int64_t, double*, int64_t) {}
void narrow(Value, const double*, int64_t, int64_t, int64_t, void*, int64_t, bool) {}

// The values from `first` on of an array, as they lie there or widened into `scratch`.
template <typename T>
const T* read_values(Value value, const void* values, int64_t first, int64_t count, T* scratch) {
  const void* source = advance(values, first * size_of(value));
  if (!is_narrow(value)) {
    return static_cast<const T*>(source);
  }
  widen(value, source, count, 1, count, scratch, count);
  return scratch;
}

template <typename T>
void write_values(Value value, const T* sums, int64_t first, int64_t count, void* target) {
  void* to = advance(target, first * size_of(value));
  if (is_narrow(value)) {
    narrow(value, sums, count, 1, count, to, count, false);
  } else if (to != sums) {
    __builtin_memcpy(to, sums, count * sizeof(T));
  }
}

// ---------------------------------------------------------------- locations

template <typename Location>
bool is_below(const void* locations, int64_t first, int64_t last, uint64_t limit) {
  const Location* from = static_cast<const Location*>(locations);
  constexpr int64_t lanes = kLanes<Location>;
  const auto bound = static_cast<Location>(limit - 1);
  auto bad = Vector<Location, lanes>{} > bound;
  int64_t i = first;
  for (; i + lanes <= last; i += lanes) {
    bad |= load<lanes>(from + i) > bound;
  }
  bool any = any_lane(bad);
  for (; i < last; ++i) {
    any |= from[i] > bound;
  }
  return !any;
}

// As unsigned numbers negative ones are large. What the type cannot hold as a positive number is out of range, too.
bool locations_valid(const Layer& layer, int64_t first, int64_t last) {
  const auto size = static_cast<uint64_t>(layer.in_features);
  if (size == 0) {
    return first == last;
  }
  switch (layer.index) {
    case Index::int16:
      return is_below<uint16_t>(layer.locations, first, last, smaller(size, uint64_t{1} << 15));
    case Index::uint16:
      return is_below<uint16_t>(layer.locations, first, last, smaller(size, uint64_t{1} << 16));
    case Index::int32:
      return is_below<uint32_t>(layer.locations, first, last, smaller(size, uint64_t{1} << 31));
    default:
      return is_below<uint64_t>(layer.locations, first, last, size);
  }
}

template <typename Location>
void convert_locations(const void* source, int64_t count, uint32_t* target) {
  constexpr int64_t lanes = kLanes<uint64_t>;
  const Location* from = static_cast<const Location*>(source);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store<lanes>(target + i, __builtin_convertvector(load<lanes>(from + i), Vector<uint32_t, lanes>));
  }
  for (; i < count; ++i) {
    target[i] = static_cast<uint32_t>(from[i]);
  }
}

// Locations from `first` on, as 32-bit numbers.
const uint32_t* read_locations(const Layer& layer, int64_t first, int64_t count, uint32_t* scratch) {
  const void* source = advance(layer.locations, first * size_of(layer.index));
  if (layer.index == Index::int32) {
    return static_cast<const uint32_t*>(source);
  }
  const auto convert = layer.index == Index::int64 ? convert_locations<uint64_t> : convert_locations<uint16_t>;
  convert(source, count, scratch);
  return scratch;
}

}  // namespace
}  // namespace torch_sparse_ops
