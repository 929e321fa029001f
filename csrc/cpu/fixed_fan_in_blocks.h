// Blocks: at most kBlock columns of a batch-major matrix, for the rows of one tile. They enter and leave transposed.

#pragma once

#include "fixed_fan_in_kernels.h"

#include "fixed_fan_in_loops.h"
#include "fixed_fan_in_values.h"
#include "transpose.h"

namespace torch_sparse_ops {
namespace {

template <typename T>
struct Loops {
  void (*transpose)(
      const T* source, int64_t source_stride, int64_t rows, int64_t present, int64_t columns, bool padded, T* target,
      int64_t target_stride, bool streaming);
  void (*forward[4])(  // 32-bit locations, 16-bit locations; the same for half rows, where they exist
      const void* tile, const void* weights, const void* locations, const T* bias, int64_t fan_in, int64_t outputs,
      bool prefetches, T* block);
  void (*pack_halves)(const T* block, int64_t columns, void* rows);
  void (*features)(
      const T* grads, const T* weights, const uint32_t* locations, int64_t fan_in, int64_t outputs, T* partial);
  void (*weights)(
      const T* tile, const T* grads, const uint32_t* locations, int64_t fan_in, int64_t outputs, bool starts,
      T* grad_weights);
  // For a tile that is a single row, instead of the two before: of features, of weights, of both at the start of the sums.
  void (*gradients[3])(
      const T* row, const T* grads, const T* weights, const uint32_t* locations, int64_t fan_in, int64_t outputs,
      bool starts, T* partial, T* grad_weights);
  void (*bias)(const T* grads, int64_t outputs, bool starts, T* sums);
};

constexpr int64_t kHalfRowWidth = 8;  // of the narrowest tiles that have half rows

template <typename T, int64_t width>
constexpr Loops<T> make_loops() {
  Loops<T> loops = {
      transpose_loop<T, Row<T, width>::lanes>,
      {forward_loop<T, PlainRows<T, width>, uint32_t>, forward_loop<T, PlainRows<T, width>, uint16_t>},
      nullptr,
      features_loop<T, width>,
      weights_loop<T, width>,
      {},
      bias_loop<T, width>};
  if constexpr (width >= kHalfRowWidth && std::is_same_v<T, float>) {
    loops.forward[2] = forward_loop<T, HalfRows<width>, uint32_t>;
    loops.forward[3] = forward_loop<T, HalfRows<width>, uint16_t>;
    loops.pack_halves = HalfRows<width>::pack;
  }
  return loops;
}

// For a batch of one.
template <typename T>
constexpr Loops<T> make_row_loops() {
  return {
      transpose_loop<T, 1>,
      {dot_loop<T, uint32_t>, dot_loop<T, uint16_t>},
      nullptr,
      nullptr,
      nullptr,
      {gradients_row_loop<T, true, false>, gradients_row_loop<T, false, true>, gradients_row_loop<T, true, true>},
      bias_row_loop<T>};
}

constexpr Loops<float> kFloatLoops[] = {make_row_loops<float>(), make_loops<float, 4>(),  make_loops<float, 8>(),
                                        make_loops<float, 16>(), make_loops<float, 32>()};
constexpr Loops<double> kDoubleLoops[] = {
    make_row_loops<double>(), make_loops<double, 4>(), make_loops<double, 8>(), make_loops<double, 16>()};

constexpr int64_t find_width(int64_t width) {
  return width == 1 ? 0 : width == 4 ? 1 : width == 8 ? 2 : width == 16 ? 3 : 4;
}

template <typename T>
const Loops<T>& find_loops(const Tile& tile) {
  if constexpr (std::is_same_v<T, double>) {
    return kDoubleLoops[find_width(tile.width)];
  } else {
    return kFloatLoops[find_width(tile.width)];
  }
}

bool has_half_rows(const Layer& layer, const Tile& tile) {
  return layer.half_rows && layer.value == Value::bfloat16 && tile.width >= kHalfRowWidth;
}

// ---------------------------------------------------------------- blocks: at most kBlock columns of batch-major matrices

// block[columns][width] of a tile from a batch-major matrix, which starts at the block's first column.
template <typename T>
void load_block(Value value, const Tile& tile, const void* matrix, int64_t stride, int64_t columns, T* block) {
  const void* source = advance(matrix, tile.first * stride * size_of(value));
  const T* rows = static_cast<const T*>(source);
  int64_t rows_stride = stride;
  T wide[kMaxWidth * kGradBlock];
  if (is_narrow(value)) {
    widen(value, source, stride, tile.rows, columns, wide, kGradBlock);
    rows = wide;
    rows_stride = kGradBlock;
  }
  find_loops<T>(tile).transpose(rows, rows_stride, tile.width, tile.rows, columns, false, block, tile.width, false);
}

ALWAYS_INLINE bool is_aligned(const void* pointer, int64_t stride_bytes) {
  return (reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride_bytes)) % kRegisterBytes == 0;
}

// The opposite. Matrices that do not stay in the caches anyway are written past them.
template <typename T>
void store_block(
    Value value, const Tile& tile, const T* block, int64_t columns, void* matrix, int64_t stride, bool streaming) {
  void* target = advance(matrix, tile.first * stride * size_of(value));
  const auto transpose = find_loops<T>(tile).transpose;
  streaming = streaming && is_aligned(target, stride * size_of(value));
  if (!is_narrow(value)) {
    transpose(block, tile.width, columns, columns, tile.rows, true, static_cast<T*>(target), stride, streaming);
    return;
  }
  T wide[kMaxWidth * kBlock];
  transpose(block, tile.width, columns, columns, tile.rows, true, wide, kBlock, false);
  narrow(value, wide, kBlock, tile.rows, columns, target, stride, streaming);
}

template <typename T>
void pack(const Layer& layer, const Tile& tile, const void* features, int64_t first, int64_t last, void* packed) {
  T* target = static_cast<T*>(packed) + tile.place * layer.in_features;
  const bool halves = has_half_rows(layer, tile);
  T block[kMaxWidth * kBlock];
  for (int64_t c = first; c < last; c += kBlock) {
    const int64_t columns = smaller(kBlock, last - c);
    load_block(
        layer.value, tile, advance(features, c * size_of(layer.value)), layer.in_features, columns,
        halves ? block : target + c * tile.width);
    if (halves) {
      find_loops<T>(tile).pack_halves(block, columns, advance(static_cast<void*>(target), c * tile.width * 2));
    }
  }
}

// total[count] = the sum of `parts` arrays that lie `copy` elements apart, added in order.
template <typename T>
void add_copies(const T* copies, int64_t parts, int64_t copy, int64_t count, T* total) {
  constexpr int64_t lanes = kLanes<T>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    Vector<T, lanes> sum = load<lanes>(copies + i);
    for (int64_t part = 1; part < parts; ++part) {
      sum += load<lanes>(copies + i + part * copy);
    }
    store<lanes>(total + i, sum);
  }
  for (; i < count; ++i) {
    total[i] = copies[i];
    for (int64_t part = 1; part < parts; ++part) {
      total[i] += copies[i + part * copy];
    }
  }
}

template <typename T>
void sum_partials(
    const Layer& layer, const Tile& tile, int64_t first, int64_t last, const void* partials, int64_t parts, int64_t copy,
    void* grad_features) {
  const T* total = static_cast<const T*>(partials) + tile.place * layer.in_features;
  T block[kMaxWidth * kBlock];
  for (int64_t c = first; c < last; c += kBlock) {
    const int64_t columns = smaller(kBlock, last - c);
    add_copies(total + c * tile.width, parts, copy, columns * tile.width, block);
    store_block(
        layer.value, tile, block, columns, advance(grad_features, c * size_of(layer.value)), layer.in_features, false);
  }
}

}  // namespace
}  // namespace torch_sparse_ops
