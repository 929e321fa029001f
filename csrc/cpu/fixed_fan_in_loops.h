// The inner loops of the fixed fan-in operators: one tile, one block of outputs, values as float or double.
//
// A tile holds the values of one input for `width` batch entries side by side, so that a connection costs a load of its
// location, a broadcast of its weight and width / lanes multiply-adds with operands straight from the cache: no gather.
//
// Gradient of the weights: the products of a connection lie side by side and have to be added up. As many connections as a
// vector has lanes are added up together, by exchanges of lanes between them, which is three instructions a connection.
//
// Locations have been checked; they are unsigned here, so that an address takes one shift.

#pragma once

#include "fixed_fan_in_rows.h"

namespace torch_sparse_ops {
namespace {

// vectors[first] + ... of `count` vectors, added in pairs.
template <int64_t count, int64_t first = 0, typename V>
ALWAYS_INLINE V add_parts(const V* vectors) {
  if constexpr (count == 1) {
    return vectors[first];
  } else {
    return add_parts<count / 2, first>(vectors) + add_parts<count / 2, first + count / 2>(vectors);
  }
}

// block[outputs][width] = bias[o] + sum_k weights[o][k] * tile[locations[o][k]][width].
// Several sums that are added at last hide the latency of the additions where a row is narrow. Connections that are not in
// the caches yet are to be prefetched.
template <typename T, typename Rows, typename Location>
void forward_loop(
    const void* tile, const void* weights, const void* locations, const T* bias, int64_t fan_in, int64_t outputs,
    bool prefetches, T* block) {
  constexpr int64_t lanes = Rows::lanes;
  constexpr int64_t parts = Rows::parts;
  constexpr int64_t group = kGroup<T>;
  constexpr int64_t sets = parts == 1 ? group : parts == 2 ? 2 : 1;
  for (int64_t o = 0; o < outputs; ++o) {
    const auto* w = static_cast<const typename Rows::Weight*>(weights) + o * fan_in;
    const Location* from = static_cast<const Location*>(locations) + o * fan_in;
    if (prefetches) {
      prefetch_connections(w, from, fan_in);
    }
    typename Rows::V sums[parts][sets] = {};
    UNROLL
    for (int64_t p = 0; p < parts; ++p) {
      sums[p][0] += bias[o];
    }
    int64_t k = 0;
    for (; k + group <= fan_in; k += group) {
      Rows::add_group(tile, Locations<Location, group>(from + k), w + k, sums);
    }
    for (; k < fan_in; ++k) {
      Rows::add_one(tile, from[k], w[k], sums);
    }
    UNROLL
    for (int64_t p = 0; p < parts; ++p) {
      store<lanes>(block + (o * parts + p) * lanes, add_parts<sets>(sums[p]));
    }
  }
}

// The same for a tile that is a single row of features: block[outputs] = bias[o] + sum_k weights[o][k] * row[locations].
// Four values at a time are brought together from single loads, which is faster than the gather instructions are.
template <typename T, typename Location>
void dot_loop(
    const void* tile, const void* weights, const void* locations, const T* bias, int64_t fan_in, int64_t outputs,
    bool prefetches, T* block) {
  using V = Vector<T, 4>;
  const T* row = static_cast<const T*>(tile);
  for (int64_t o = 0; o < outputs; ++o) {
    const T* w = static_cast<const T*>(weights) + o * fan_in;
    const Location* from = static_cast<const Location*>(locations) + o * fan_in;
    if (prefetches) {
      prefetch_connections(w, from, fan_in);
    }
    const auto multiply = [&](int64_t k) __attribute__((always_inline)) {
      const Locations<Location, 4> here(from + k);
      const V values = {
          row[here.template location<0>()], row[here.template location<1>()], row[here.template location<2>()],
          row[here.template location<3>()]};
      return load<4>(w + k) * values;
    };
    V even = {};
    V odd = {};
    int64_t k = 0;
    for (; k + 8 <= fan_in; k += 8) {
      even += multiply(k);
      odd += multiply(k + 4);
    }
    even += odd;
    T sum = bias[o] + ((even[0] + even[2]) + (even[1] + even[3]));
    for (; k < fan_in; ++k) {
      sum += w[k] * row[from[k]];
    }
    block[o] = sum;
  }
}

template <typename T, int64_t width>
ALWAYS_INLINE bool is_zero(const typename Row<T, width>::V* grad) {
  using R = Row<T, width>;
  auto nonzero = grad[0] != T{0};
  UNROLL
  for (int64_t p = 1; p < R::parts; ++p) {
    nonzero |= grad[p] != T{0};
  }
  return !any_lane(nonzero);
}

// The gradient of one output, in registers.
template <typename T, int64_t width>
struct Gradient : Row<T, width> {
  using R = Row<T, width>;
  typename R::V parts_of[R::parts];

  explicit ALWAYS_INLINE Gradient(const T* grad) {
    UNROLL
    for (int64_t p = 0; p < R::parts; ++p) {
      parts_of[p] = load<R::lanes>(grad + p * R::lanes);
    }
  }

  bool ALWAYS_INLINE zero() const { return is_zero<T, width>(parts_of); }

  // row[width] += weight * gradient
  void ALWAYS_INLINE add_to(T* row, typename R::V weight) const {
    UNROLL
    for (int64_t p = 0; p < R::parts; ++p) {
      store<R::lanes>(row + p * R::lanes, load<R::lanes>(row + p * R::lanes) + weight * parts_of[p]);
    }
  }

  // A vector whose lanes add up to gradient * row[width].
  typename R::V ALWAYS_INLINE multiply(const T* row) const {
    auto products = parts_of[0] * load<R::lanes>(row);
    UNROLL
    for (int64_t p = 1; p < R::parts; ++p) {
      products += parts_of[p] * load<R::lanes>(row + p * R::lanes);
    }
    return products;
  }
};

// Gradient of the features: partial[locations[o][k]][width] += weights[o][k] * grads[o][width].
// Here and below, an output whose gradient is zero in all entries of the tile is passed over.
template <typename T, int64_t width>
void features_loop(
    const T* grads, const T* weights, const uint32_t* locations, int64_t fan_in, int64_t outputs, T* partial) {
  constexpr int64_t lanes = Row<T, width>::lanes;
  constexpr int64_t group = kGroup<T>;
  for (int64_t o = 0; o < outputs; ++o) {
    const Gradient<T, width> grad(grads + o * width);
    if (grad.zero()) {
      continue;
    }
    const T* w = weights + o * fan_in;
    const uint32_t* to = locations + o * fan_in;
    int64_t k = 0;
    for (; k + group <= fan_in; k += group) {
      const auto group_weights = repeat_group<T, lanes>(load<group>(w + k));
      const Locations<uint32_t, group> here(to + k);
      call_with_each(LaneNumbers<group>{}, [&](auto j) __attribute__((always_inline)) {
        grad.add_to(partial + here.template location<j>() * width, spread_member<T, j>(group_weights));
      });
    }
    for (; k < fan_in; ++k) {
      grad.add_to(partial + uint64_t{to[k]} * width, spread<lanes>(w[k]));
    }
  }
}

// Gradient of the weights: grad_weights[o][k] += sum over width of grads[o][width] * tile[locations[o][k]][width]; or =,
// if `starts`.
template <typename T, int64_t width>
void weights_loop(
    const T* tile, const T* grads, const uint32_t* locations, int64_t fan_in, int64_t outputs, bool starts,
    T* grad_weights) {
  constexpr int64_t lanes = Row<T, width>::lanes;
  for (int64_t o = 0; o < outputs; ++o) {
    const Gradient<T, width> grad(grads + o * width);
    const uint32_t* from = locations + o * fan_in;
    T* sums = grad_weights + o * fan_in;
    if (grad.zero()) {
      __builtin_memset(sums, 0, starts ? fan_in * sizeof(T) : 0);
      continue;
    }
    int64_t k = 0;
    for (; k + lanes <= fan_in; k += lanes) {
      const auto sum = sum_lanes<T, lanes>([&](auto j) __attribute__((always_inline)) {
        return grad.multiply(tile + uint64_t{from[k + j]} * width);
      });
      store<lanes>(sums + k, starts ? sum : sum + load<lanes>(sums + k));
    }
    if (k < fan_in) {
      Vector<T, lanes> products[lanes] = {};
      for (int64_t j = 0; j < fan_in - k; ++j) {
        products[j] = grad.multiply(tile + uint64_t{from[k + j]} * width);
      }
      T last[lanes];
      store<lanes>(last, sum_lanes<T, lanes>([&](auto j) __attribute__((always_inline)) { return products[j]; }));
      for (int64_t j = 0; j < fan_in - k; ++j) {
        sums[k + j] = starts ? last[j] : sums[k + j] + last[j];
      }
    }
  }
}

// Gradient of the bias: sums[o] += the sum over grads[o][width]; or =, if `starts`. Of grads, whole vectors of outputs exist.
template <typename T, int64_t width>
void bias_loop(const T* grads, int64_t outputs, bool starts, T* sums) {
  constexpr int64_t lanes = Row<T, width>::lanes;
  for (int64_t o = 0; o < outputs; o += lanes) {
    T totals[lanes];
    const auto total = sum_lanes<T, lanes>([&](auto j) __attribute__((always_inline)) {
      const Gradient<T, width> grad(grads + (o + j) * width);
      return add_parts<Row<T, width>::parts>(grad.parts_of);
    });
    store<lanes>(totals, total);
    for (int64_t j = 0; j < lanes && o + j < outputs; ++j) {
      sums[o + j] = starts ? totals[j] : sums[o + j] + totals[j];
    }
  }
}

// Gradients for a tile that is a single row of features, of those two that are asked for. Both at once read a location once;
// the gradient of the weights is then written past the caches, to where it is aligned to a vector of four for every output.
template <typename T, bool features, bool weights>
void gradients_row_loop(
    const T* row, const T* grads, const T* weights_of, const uint32_t* locations, int64_t fan_in, int64_t outputs,
    bool starts, T* partial, T* grad_weights) {
  for (int64_t o = 0; o < outputs; ++o) {
    const T* w = weights_of + o * fan_in;
    const uint32_t* to = locations + o * fan_in;
    T* sums = weights ? grad_weights + o * fan_in : nullptr;
    const T grad = grads[o];
    if (grad == T{0}) {
      if (weights && starts) {
        __builtin_memset(sums, 0, fan_in * sizeof(T));
      }
      continue;
    }
    prefetch_connections(w, to, fan_in);
    int64_t k = 0;
    for (; k + 4 <= fan_in; k += 4) {
      const Locations<uint32_t, 4> here(to + k);
      const uint64_t places[] = {
          here.template location<0>(), here.template location<1>(), here.template location<2>(),
          here.template location<3>()};
      if constexpr (weights) {
        const Vector<T, 4> products = grad * Vector<T, 4>{row[places[0]], row[places[1]], row[places[2]], row[places[3]]};
        if constexpr (features) {
          stream<4>(sums + k, products);
        } else {
          store<4>(sums + k, starts ? products : load<4>(sums + k) + products);
        }
      }
      if constexpr (features) {
        const Vector<T, 4> products = grad * load<4>(w + k);
        UNROLL
        for (int64_t j = 0; j < 4; ++j) {
          partial[places[j]] += products[j];
        }
      }
    }
    for (; k < fan_in; ++k) {
      if constexpr (weights) {
        sums[k] = (starts ? T{0} : sums[k]) + grad * row[to[k]];
      }
      if constexpr (features) {
        partial[to[k]] += grad * w[k];
      }
    }
  }
}

template <typename T>
void bias_row_loop(const T* grads, int64_t outputs, bool starts, T* sums) {
  for (int64_t o = 0; o < outputs; ++o) {
    sums[o] = (starts ? T{0} : sums[o]) + grads[o];
  }
}

}  // namespace
}  // namespace torch_sparse_ops
