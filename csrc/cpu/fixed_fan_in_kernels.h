// Kernels of the fixed fan-in operators on the CPU: raw pointers and sizes, one thread, no tensor and no torch header.
// fixed_fan_in.cpp says how the layouts came about and who calls these.

#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace torch_sparse_ops {
namespace {

// What sums are kept in: float for float and narrower types, double for double.
template <typename value_t>
using accumulate_t = std::conditional_t<std::is_same_v<value_t, double>, double, float>;

// target[columns][width] = source[rows][columns] transposed, rows beyond `rows` zero. source rows are `stride` apart.
template <int64_t width, typename value_t>
void load_transposed(
    const value_t* source, int64_t stride, int64_t rows, int64_t columns, accumulate_t<value_t>* target) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < width; ++r) {
      target[c * width + r] = r < rows ? static_cast<accumulate_t<value_t>>(source[r * stride + c]) : 0;
    }
  }
}

// target[rows][columns] = source[columns][width] transposed. target rows are `stride` apart.
template <int64_t width, typename value_t>
void store_transposed(
    const accumulate_t<value_t>* source, int64_t stride, int64_t rows, int64_t columns, value_t* target) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      target[r * stride + c] = static_cast<value_t>(source[c * width + r]);
    }
  }
}

// A row of a tile in parts that each fill one register of the instruction set; a row of one entry is a plain number. The
// compiler keeps an array of parts in registers, which it does not do reliably for an array of numbers. Parts are loaded
// and stored through pointers to part_t, so it may alias its elements and promises no more than their alignment.
constexpr int64_t kRegisterBytes = 16;

template <typename sum_t, int64_t width>
struct Row {
  typedef sum_t part_t __attribute__((vector_size(kRegisterBytes), aligned(sizeof(sum_t)), may_alias));
  static constexpr int64_t lanes = kRegisterBytes / sizeof(sum_t);
  static constexpr int64_t parts = width / lanes;
};

template <typename sum_t>
struct Row<sum_t, 1> {
  using part_t = sum_t;
  static constexpr int64_t lanes = 1;
  static constexpr int64_t parts = 1;
};

// result[outputs][width] for one tile[in_features][width]; weights and locations are [outputs][fan_in].
template <int64_t width, typename value_t, typename index_t>
void forward_block(
    const accumulate_t<value_t>* tile, const value_t* weights, const index_t* locations, const value_t* bias,
    int64_t fan_in, int64_t outputs, accumulate_t<value_t>* result) {
  using sum_t = accumulate_t<value_t>;
  using part_t = typename Row<sum_t, width>::part_t;
  constexpr int64_t parts = Row<sum_t, width>::parts;
  for (int64_t o = 0; o < outputs; ++o) {
    part_t sums[parts];
    for (int64_t p = 0; p < parts; ++p) {
      sums[p] = part_t{} + (bias == nullptr ? sum_t{0} : static_cast<sum_t>(bias[o]));
    }
    for (int64_t k = o * fan_in; k < (o + 1) * fan_in; ++k) {
      const sum_t weight = static_cast<sum_t>(weights[k]);
      const part_t* row = reinterpret_cast<const part_t*>(tile + locations[k] * width);
      for (int64_t p = 0; p < parts; ++p) {
        sums[p] += weight * row[p];
      }
    }
    for (int64_t p = 0; p < parts; ++p) {
      reinterpret_cast<part_t*>(result + o * width)[p] = sums[p];
    }
  }
}

// The sum over a row. Lane j meets lane j + half at every step, so the order is the same however wide registers are.
template <int64_t width, typename sum_t>
sum_t sum_row(typename Row<sum_t, width>::part_t* row) {
  for (int64_t half = Row<sum_t, width>::parts / 2; half > 0; half /= 2) {
    for (int64_t p = 0; p < half; ++p) {
      row[p] += row[p + half];
    }
  }
  sum_t* lanes = reinterpret_cast<sum_t*>(row);
  for (int64_t half = Row<sum_t, width>::lanes / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) {
      lanes[j] += lanes[j + half];
    }
  }
  return lanes[0];
}

// sums[outputs][fan_in] += the products of grads[outputs][width] with the rows of one tile[in_features][width].
template <int64_t width, typename sum_t, typename index_t>
void weights_gradient_block(
    const sum_t* tile, const sum_t* grads, const index_t* locations, int64_t fan_in, int64_t outputs, sum_t* sums) {
  using part_t = typename Row<sum_t, width>::part_t;
  constexpr int64_t parts = Row<sum_t, width>::parts;
  for (int64_t o = 0; o < outputs; ++o) {
    const part_t* grad = reinterpret_cast<const part_t*>(grads + o * width);
    for (int64_t k = o * fan_in; k < (o + 1) * fan_in; ++k) {
      const part_t* row = reinterpret_cast<const part_t*>(tile + locations[k] * width);
      part_t products[parts];
      for (int64_t p = 0; p < parts; ++p) {
        products[p] = grad[p] * row[p];
      }
      sums[k] += sum_row<width, sum_t>(products);
    }
  }
}

// partial[in_features][width] += grads[outputs][width] spread over the connections.
template <int64_t width, typename value_t, typename index_t>
void features_gradient_block(
    const accumulate_t<value_t>* grads, const value_t* weights, const index_t* locations, int64_t fan_in,
    int64_t outputs, accumulate_t<value_t>* partial) {
  using sum_t = accumulate_t<value_t>;
  using part_t = typename Row<sum_t, width>::part_t;
  for (int64_t o = 0; o < outputs; ++o) {
    const part_t* grad = reinterpret_cast<const part_t*>(grads + o * width);
    for (int64_t k = o * fan_in; k < (o + 1) * fan_in; ++k) {
      const sum_t weight = static_cast<sum_t>(weights[k]);
      part_t* row = reinterpret_cast<part_t*>(partial + locations[k] * width);
      for (int64_t p = 0; p < Row<sum_t, width>::parts; ++p) {
        row[p] += weight * grad[p];
      }
    }
  }
}

// Whether all of locations[0, count) lie in [0, in_features). One unsigned comparison covers negative values too.
template <typename index_t>
bool locations_valid(const index_t* locations, int64_t count, int64_t in_features) {
  using unsigned_t = std::make_unsigned_t<index_t>;
  constexpr uint64_t representable = uint64_t{std::numeric_limits<index_t>::max()} + 1;
  const auto limit = static_cast<unsigned_t>(std::min<uint64_t>(in_features, representable));
  unsigned_t invalid = 0;
  for (int64_t c = 0; c < count; ++c) {
    invalid |= static_cast<unsigned_t>(locations[c]) >= limit ? 1 : 0;
  }
  return invalid == 0;
}

}  // namespace
}  // namespace torch_sparse_ops
