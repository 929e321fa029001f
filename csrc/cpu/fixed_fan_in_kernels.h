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

// result[outputs][width] for one tile[in_features][width]; weights and locations are [outputs][fan_in].
template <int64_t width, typename value_t, typename index_t>
void forward_block(
    const accumulate_t<value_t>* tile, const value_t* weights, const index_t* locations, const value_t* bias,
    int64_t fan_in, int64_t outputs, accumulate_t<value_t>* result) {
  using sum_t = accumulate_t<value_t>;
  for (int64_t o = 0; o < outputs; ++o) {
    sum_t sums[width];
    std::fill(sums, sums + width, bias == nullptr ? sum_t{0} : static_cast<sum_t>(bias[o]));
    for (int64_t k = o * fan_in; k < (o + 1) * fan_in; ++k) {
      const sum_t weight = static_cast<sum_t>(weights[k]);
      const sum_t* row = tile + static_cast<int64_t>(locations[k]) * width;
      for (int64_t j = 0; j < width; ++j) {
        sums[j] += weight * row[j];
      }
    }
    std::copy(sums, sums + width, result + o * width);
  }
}

// The dot product of two rows; lanes are added pairwise, so that the order is the same however wide the vectors are.
template <int64_t width, typename sum_t>
sum_t dot(const sum_t* left, const sum_t* right) {
  sum_t lanes[width];
  for (int64_t j = 0; j < width; ++j) {
    lanes[j] = left[j] * right[j];
  }
  for (int64_t half = width / 2; half > 0; half /= 2) {
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
  for (int64_t o = 0; o < outputs; ++o) {
    for (int64_t k = o * fan_in; k < (o + 1) * fan_in; ++k) {
      sums[k] += dot<width>(grads + o * width, tile + static_cast<int64_t>(locations[k]) * width);
    }
  }
}

// partial[in_features][width] += grads[outputs][width] spread over the connections.
template <int64_t width, typename value_t, typename index_t>
void features_gradient_block(
    const accumulate_t<value_t>* grads, const value_t* weights, const index_t* locations, int64_t fan_in,
    int64_t outputs, accumulate_t<value_t>* partial) {
  using sum_t = accumulate_t<value_t>;
  for (int64_t o = 0; o < outputs; ++o) {
    const sum_t* grad = grads + o * width;
    for (int64_t k = o * fan_in; k < (o + 1) * fan_in; ++k) {
      const sum_t weight = static_cast<sum_t>(weights[k]);
      sum_t* row = partial + static_cast<int64_t>(locations[k]) * width;
      for (int64_t j = 0; j < width; ++j) {
        row[j] += weight * grad[j];
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
