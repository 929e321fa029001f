// Matrices transposed in squares of vectors.

#pragma once

#include "vector.h"

namespace torch_sparse_ops {
namespace {

// target[columns][rows] = source[rows][columns] transposed, element by element, where an edge cuts a vector. Of source only
// the first `present` rows exist, others count as zero.
template <typename T>
void transpose_edge(
    const T* source, int64_t source_stride, int64_t rows, int64_t present, int64_t columns, T* target,
    int64_t target_stride) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      target[c * target_stride + r] = r < present ? source[r * source_stride + c] : T{0};
    }
  }
}

// The same for a square of `lanes` by whole vectors, of which the first `columns` are written.
template <typename T, int64_t lanes, bool streaming>
void transpose_square(
    const T* source, int64_t source_stride, int64_t present, int64_t columns, T* target, int64_t target_stride) {
  Vector<T, lanes> square[lanes];
  UNROLL
  for (int64_t i = 0; i < lanes; ++i) {
    square[i] = i < present ? load<lanes>(source + i * source_stride) : Vector<T, lanes>{};
  }
  transpose<T, lanes>(square);
  UNROLL
  for (int64_t i = 0; i < lanes; ++i) {
    if (i < columns) {
      if constexpr (streaming) {
        stream<lanes>(target + i * target_stride, square[i]);
      } else {
        store<lanes>(target + i * target_stride, square[i]);
      }
    }
  }
}

// Matrices of any size. `padded` tells that source may be read up to whole vectors of columns. `streaming` asks for stores
// past the caches; the target must then be aligned to a register, also its stride.
template <typename T, int64_t lanes>
void transpose_loop(
    const T* source, int64_t source_stride, int64_t rows, int64_t present, int64_t columns, bool padded, T* target,
    int64_t target_stride, bool streaming) {
  for (int64_t c = 0; c < columns; c += lanes) {
    const int64_t columns_here = columns - c < lanes ? columns - c : lanes;
    for (int64_t r = 0; r < rows; r += lanes) {
      const int64_t rows_here = rows - r < lanes ? rows - r : lanes;
      const int64_t present_here = present - r < lanes ? present - r : lanes;  // 0 or less: none
      const T* from = source + r * source_stride + c;
      T* to = target + c * target_stride + r;
      if (rows_here < lanes || (columns_here < lanes && !padded)) {
        transpose_edge<T>(from, source_stride, rows_here, present_here, columns_here, to, target_stride);
      } else if (streaming) {
        transpose_square<T, lanes, true>(from, source_stride, present_here, columns_here, to, target_stride);
      } else {
        transpose_square<T, lanes, false>(from, source_stride, present_here, columns_here, to, target_stride);
      }
    }
  }
}

}  // namespace
}  // namespace torch_sparse_ops
