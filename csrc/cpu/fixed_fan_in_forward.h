// The forward pass of a task: results of a block of outputs are collected as [outputs][width] in the first-level cache and
// leave it transposed, so that whole cache lines of the batch-major result are written.

#pragma once

#include "fixed_fan_in_kernels.h"

#include "fixed_fan_in_blocks.h"

namespace torch_sparse_ops {
namespace {

constexpr int64_t kStepConnections = 4096;  // connections that are widened at once: scratch stays in the L1 cache

int64_t step_outputs(const Layer& layer) {
  const int64_t outputs = kStepConnections / (layer.fan_in + 1);
  return outputs < 1 ? 1 : smaller(outputs, kBlock);
}

// The results of outputs [first, last), at most a block, for one tile; as many of them at once as scratch holds.
template <typename T>
bool compute_block(
    const Layer& layer, const ForwardTask& task, const Tile& tile, int64_t first, int64_t last, void* scratch, T* block) {
  T bias[kBlock] = {};
  const T* offsets = bias;
  if (task.bias != nullptr) {
    offsets = read_values(layer.value, task.bias, first, last - first, bias);
  }
  const T* features = static_cast<const T*>(task.packed) + tile.place * layer.in_features;
  const int64_t step = step_outputs(layer);
  const bool is_first = &tile == task.first_tile;
  const bool halves = has_half_rows(layer, tile);
  const bool is_short = size_of(layer.index) == 2;
  T* wide = static_cast<T*>(scratch);
  uint32_t* converted = reinterpret_cast<uint32_t*>(wide + step * layer.fan_in);
  for (int64_t o = first; o < last; o += step) {
    const int64_t outputs = smaller(step, last - o);
    const int64_t begin = o * layer.fan_in;
    const int64_t count = outputs * layer.fan_in;
    if (is_first && !layer.checked && !locations_valid(layer, begin, begin + count)) {
      return false;
    }
    const void* weights = halves ? advance(layer.weights, begin * 2) : read_values(layer.value, layer.weights, begin, count, wide);
    const void* locations =
        is_short ? advance(layer.locations, begin * 2) : read_locations(layer, begin, count, converted);
    find_loops<T>(tile).forward[is_short + 2 * halves](
        features, weights, locations, offsets + (o - first), layer.fan_in, outputs, is_first,
        block + (o - first) * tile.width);
  }
  return true;
}

template <typename T>
bool forward(const Layer& layer, const ForwardTask& task, void* scratch) {
  T block[kBlock * kMaxWidth];
  for (const Tile* tile = task.first_tile; tile != task.last_tile; ++tile) {
    for (int64_t o = task.first; o < task.last; o += kBlock) {
      const int64_t last = smaller(o + kBlock, task.last);
      if (!compute_block(layer, task, *tile, o, last, scratch, block)) {
        return false;
      }
      store_block(
          layer.value, *tile, block, last - o, advance(task.result, o * size_of(layer.value)), layer.out_features,
          task.streaming);
    }
  }
  finish_streaming();
  return true;
}

}  // namespace
}  // namespace torch_sparse_ops
