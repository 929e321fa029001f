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

#include "vector.h"

namespace torch_sparse_ops {
namespace {

// A row of a tile, [width], in registers. The baseline has 16 registers: a wider row is worked on in two halves.
template <typename T, int64_t width>
struct Row {
  static constexpr int64_t lanes = width < kLanes<T> ? width : kLanes<T>;
  static constexpr int64_t parts = width / lanes;
  static constexpr int64_t passes = parts > 8 ? 2 : 1;
  static constexpr int64_t parts_at_once = parts / passes;
  using V = Vector<T, lanes>;
};

// Asks for what lies 8 KiB behind the connections of an output: the hardware follows a stream only to the end of its page.
template <typename T, typename Location>
ALWAYS_INLINE void prefetch_connections(const T* weights, const Location* locations, int64_t fan_in) {
  for (int64_t k = 2048; k < 2048 + fan_in; k += 16) {
    __builtin_prefetch(weights + k);
    __builtin_prefetch(locations + k);
  }
}

// How forward_loop reads the rows of a tile: as values of T.
template <typename T, int64_t width>
struct PlainRows : Row<T, width> {
  using R = Row<T, width>;

  // sums += weight * the parts of a row that belong to a pass.
  static ALWAYS_INLINE void add(const void* tile, uint64_t location, int64_t pass, T weight, typename R::V* sums) {
    const T* row = static_cast<const T*>(tile) + location * width + pass * R::parts_at_once * R::lanes;
    UNROLL
    for (int64_t p = 0; p < R::parts_at_once; ++p) {
      sums[p] += weight * load<R::lanes>(row + p * R::lanes);
    }
  }
};

// As bfloat16, which halves what has to come from the cache. A 32-bit word holds two values that lie a vector apart, so that
// a shift and a mask turn a vector of words into two parts of floats in their natural order.
template <int64_t width>
struct HalfRows {
  static constexpr int64_t lanes = width / 2 < kLanes<float> ? width / 2 : kLanes<float>;
  static constexpr int64_t parts = width / lanes;
  static constexpr int64_t passes = parts > 8 ? 2 : 1;
  static constexpr int64_t parts_at_once = parts / passes;
  using V = Vector<float, lanes>;

  static ALWAYS_INLINE void add(const void* tile, uint64_t location, int64_t pass, float weight, V* sums) {
    const uint32_t* row = static_cast<const uint32_t*>(tile) + location * (width / 2) + pass * (parts_at_once / 2) * lanes;
    UNROLL
    for (int64_t p = 0; p < parts_at_once; p += 2) {
      const Bits<lanes> words = load<lanes>(row + p / 2 * lanes);
      sums[p] += weight * reinterpret_bits<V>(words << 16);
      sums[p + 1] += weight * reinterpret_bits<V>(words & 0xFFFF0000);
    }
  }

  // rows[columns][width] from floats that are bfloat16 numbers.
  static void pack(const float* block, int64_t columns, void* rows) {
    uint32_t* target = static_cast<uint32_t*>(rows);
    for (int64_t i = 0; i < columns * width; i += 2 * lanes) {
      const auto low = reinterpret_bits<Bits<lanes>>(load<lanes>(block + i));
      const auto high = reinterpret_bits<Bits<lanes>>(load<lanes>(block + i + lanes));
      store<lanes>(target + i / 2, low >> 16 | (high & 0xFFFF0000));
    }
  }
};

// block[outputs][width] = bias[o] + sum_k weights[o][k] * tile[locations[o][k]][width].
// Several sums that are added at last hide the latency of the additions where a row is narrow.
template <typename T, typename Rows, typename Location>
void forward_loop(
    const void* tile, const T* weights, const void* locations, const T* bias, int64_t fan_in, int64_t outputs, T* block) {
  constexpr int64_t parts = Rows::parts_at_once;
  constexpr int64_t sets = parts == 1 ? 4 : parts == 2 ? 2 : 1;
  for (int64_t o = 0; o < outputs; ++o) {
    const T* w = weights + o * fan_in;
    const Location* from = static_cast<const Location*>(locations) + o * fan_in;
    prefetch_connections(w, from, fan_in);
    for (int64_t pass = 0; pass < Rows::passes; ++pass) {
      typename Rows::V sums[sets][parts] = {};
      UNROLL
      for (int64_t p = 0; p < parts; ++p) {
        sums[0][p] += bias[o];
      }
      int64_t k = 0;
      for (; k + sets <= fan_in; k += sets) {
        UNROLL
        for (int64_t s = 0; s < sets; ++s) {
          Rows::add(tile, from[k + s], pass, w[k + s], sums[s]);
        }
      }
      for (; sets > 1 && k < fan_in; ++k) {
        Rows::add(tile, from[k], pass, w[k], sums[0]);
      }
      UNROLL
      for (int64_t p = 0; p < parts; ++p) {
        UNROLL
        for (int64_t s = 1; s < sets; s *= 2) {
          UNROLL
          for (int64_t i = 0; i < sets; i += 2 * s) {
            sums[i][p] += sums[i + s][p];
          }
        }
        store<Rows::lanes>(block + (o * Rows::parts + pass * parts + p) * Rows::lanes, sums[0][p]);
      }
    }
  }
}

// The same for a tile that is a single row of features: block[outputs] = bias[o] + sum_k weights[o][k] * row[locations].
// Four values at a time are brought together from single loads, which is faster than the gather instructions are.
template <typename T, typename Location>
void dot_loop(
    const void* tile, const T* weights, const void* locations, const T* bias, int64_t fan_in, int64_t outputs, T* block) {
  using V = Vector<T, 4>;
  const T* row = static_cast<const T*>(tile);
  for (int64_t o = 0; o < outputs; ++o) {
    const T* w = weights + o * fan_in;
    const Location* from = static_cast<const Location*>(locations) + o * fan_in;
    prefetch_connections(w, from, fan_in);
    const auto gather = [&](int64_t k) __attribute__((always_inline)) {
      return V{row[from[k]], row[from[k + 1]], row[from[k + 2]], row[from[k + 3]]};
    };
    V even = {};
    V odd = {};
    int64_t k = 0;
    for (; k + 8 <= fan_in; k += 8) {
      even += load<4>(w + k) * gather(k);
      odd += load<4>(w + k + 4) * gather(k + 4);
    }
    even += odd;
    T sum = bias[o] + ((even[0] + even[2]) + (even[1] + even[3]));
    for (; k < fan_in; ++k) {
      sum += w[k] * row[from[k]];
    }
    block[o] = sum;
  }
}

// What backward_loop computes: the gradient of the features, of the weights, or both in one pass.
enum class Gradients { features, weights, both };

// One connection: the vector of products for grad_weights; the row of `partial` is updated.
template <typename T, int64_t width, Gradients gradients>
ALWAYS_INLINE typename Row<T, width>::V visit_connection(
    const T* tile, T* partial, uint64_t location, T weight, const typename Row<T, width>::V* grad) {
  using R = Row<T, width>;
  typename R::V products = {};
  if constexpr (gradients != Gradients::weights) {
    T* row = partial + location * width;
    UNROLL
    for (int64_t p = 0; p < R::parts; ++p) {
      store<R::lanes>(row + p * R::lanes, load<R::lanes>(row + p * R::lanes) + weight * grad[p]);
    }
  }
  if constexpr (gradients != Gradients::features) {
    const T* row = tile + location * width;
    products = grad[0] * load<R::lanes>(row);
    UNROLL
    for (int64_t p = 1; p < R::parts; ++p) {
      products += grad[p] * load<R::lanes>(row + p * R::lanes);
    }
  }
  return products;
}

template <typename T, int64_t width>
ALWAYS_INLINE bool is_zero(const typename Row<T, width>::V* grad) {
  using R = Row<T, width>;
  auto nonzero = grad[0] != T{0};
  UNROLL
  for (int64_t p = 1; p < R::parts; ++p) {
    nonzero |= grad[p] != T{0};
  }
  constexpr int64_t words = R::lanes * sizeof(T) / sizeof(int64_t);
  const auto bits = reinterpret_bits<Vector<int64_t, words>>(nonzero);
  int64_t any = 0;
  UNROLL
  for (int64_t i = 0; i < words; ++i) {
    any |= bits[i];
  }
  return any == 0;
}

// For grads[outputs][width]:
//   partial[locations[o][k]][width] += weights[o][k] * grads[o][width]
//   grad_weights[o][k]              += sum over width of grads[o][width] * tile[locations[o][k]][width]
// An output whose gradient is zero in all entries of the tile is passed over.
template <typename T, int64_t width, Gradients gradients>
void backward_loop(
    const T* tile, const T* grads, const T* weights, const uint32_t* locations, int64_t fan_in, int64_t outputs,
    T* partial, T* grad_weights) {
  using R = Row<T, width>;
  constexpr int64_t lanes = R::lanes;
  for (int64_t o = 0; o < outputs; ++o) {
    typename R::V grad[R::parts];
    UNROLL
    for (int64_t p = 0; p < R::parts; ++p) {
      grad[p] = load<lanes>(grads + o * width + p * lanes);
    }
    if (is_zero<T, width>(grad)) {
      continue;
    }
    const T* w = weights + o * fan_in;
    const uint32_t* from = locations + o * fan_in;
    const auto visit = [&](int64_t k) __attribute__((always_inline)) {
      return visit_connection<T, width, gradients>(tile, partial, from[k], w[k], grad);
    };
    int64_t k = 0;
    if constexpr (gradients == Gradients::features) {
      for (; k < fan_in; ++k) {
        visit(k);
      }
    } else {
      T* sums = grad_weights + o * fan_in;
      for (; k + lanes <= fan_in; k += lanes) {
        store<lanes>(sums + k, load<lanes>(sums + k) + sum_lanes<T, lanes>([&](int64_t j) __attribute__((always_inline)) { return visit(k + j); }));
      }
      if (k < fan_in) {
        typename R::V products[lanes] = {};
        const int64_t rest = fan_in - k;
        for (int64_t j = 0; j < rest; ++j) {
          products[j] = visit(k + j);
        }
        T last[lanes];
        store<lanes>(last, sum_lanes<T, lanes>([&](int64_t j) __attribute__((always_inline)) { return products[j]; }));
        for (int64_t j = 0; j < rest; ++j) {
          sums[k + j] += last[j];
        }
      }
    }
  }
}

// The same for a tile that is a single row of features.
template <typename T, Gradients gradients>
void scatter_loop(
    const T* row, const T* grads, const T* weights, const uint32_t* locations, int64_t fan_in, int64_t outputs,
    T* partial, T* grad_weights) {
  for (int64_t o = 0; o < outputs; ++o) {
    const T grad = grads[o];
    if (grad == T{0}) {
      continue;
    }
    const T* w = weights + o * fan_in;
    const uint32_t* from = locations + o * fan_in;
    prefetch_connections(w, from, fan_in);
    int64_t k = 0;
    for (; k + 4 <= fan_in; k += 4) {
      if constexpr (gradients != Gradients::weights) {
        const Vector<T, 4> spread = grad * load<4>(w + k);
        UNROLL
        for (int64_t j = 0; j < 4; ++j) {
          partial[from[k + j]] += spread[j];
        }
      }
      if constexpr (gradients != Gradients::features) {
        T* sums = grad_weights + o * fan_in + k;
        const Vector<T, 4> values = {row[from[k]], row[from[k + 1]], row[from[k + 2]], row[from[k + 3]]};
        store<4>(sums, load<4>(sums) + grad * values);
      }
    }
    for (; k < fan_in; ++k) {
      if constexpr (gradients != Gradients::weights) {
        partial[from[k]] += grad * w[k];
      }
      if constexpr (gradients != Gradients::features) {
        grad_weights[o * fan_in + k] += grad * row[from[k]];
      }
    }
  }
}

// target[columns][rows] = source[rows][columns] transposed, in squares of `lanes`. Of source only the first `present`
// rows exist, others count as zero. Rows of source lie source_stride apart, those of target target_stride.
template <typename T, int64_t lanes>
void transpose_square(
    const T* source, int64_t source_stride, int64_t rows, int64_t present, int64_t columns, T* target,
    int64_t target_stride) {
  Vector<T, lanes> square[lanes] = {};
  for (int64_t r = 0; r < present; ++r) {
    if (columns == lanes) {
      square[r] = load<lanes>(source + r * source_stride);
    } else {
      for (int64_t c = 0; c < columns; ++c) {
        reinterpret_cast<T*>(&square[r])[c] = source[r * source_stride + c];
      }
    }
  }
  transpose<T, lanes>(square);
  for (int64_t c = 0; c < columns; ++c) {
    if (rows == lanes) {
      store<lanes>(target + c * target_stride, square[c]);
    } else {
      for (int64_t r = 0; r < rows; ++r) {
        target[c * target_stride + r] = reinterpret_cast<const T*>(&square[c])[r];
      }
    }
  }
}

template <typename T, int64_t lanes, bool streaming>
ALWAYS_INLINE void transpose_full_square(const T* source, int64_t source_stride, T* target, int64_t target_stride) {
  Vector<T, lanes> square[lanes];
  UNROLL
  for (int64_t i = 0; i < lanes; ++i) {
    square[i] = load<lanes>(source + i * source_stride);
  }
  transpose<T, lanes>(square);
  UNROLL
  for (int64_t i = 0; i < lanes; ++i) {
    if constexpr (streaming) {
      stream<lanes>(target + i * target_stride, square[i]);
    } else {
      store<lanes>(target + i * target_stride, square[i]);
    }
  }
}

// `streaming` asks for stores past the caches; the target must then be aligned to a register, also its stride.
template <typename T, int64_t lanes>
void transpose_loop(
    const T* source, int64_t source_stride, int64_t rows, int64_t present, int64_t columns, T* target,
    int64_t target_stride, bool streaming) {
  for (int64_t c = 0; c < columns; c += lanes) {
    const int64_t columns_here = columns - c < lanes ? columns - c : lanes;
    for (int64_t r = 0; r < rows; r += lanes) {
      const int64_t rows_here = rows - r < lanes ? rows - r : lanes;
      const int64_t present_here = present < r ? 0 : present - r < lanes ? present - r : lanes;
      const T* from = source + r * source_stride + c;
      T* to = target + c * target_stride + r;
      if (present_here < lanes || columns_here < lanes) {
        transpose_square<T, lanes>(from, source_stride, rows_here, present_here, columns_here, to, target_stride);
      } else if (streaming) {
        transpose_full_square<T, lanes, true>(from, source_stride, to, target_stride);
      } else {
        transpose_full_square<T, lanes, false>(from, source_stride, to, target_stride);
      }
    }
  }
}

}  // namespace
}  // namespace torch_sparse_ops
