// Matrices transposed in squares of vectors.

#pragma once

#include "vector.h"

namespace torch_sparse_ops {
namespace {

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
