// The backward pass of a task.

#pragma once

#include "fixed_fan_in_kernels.h"

#include "fixed_fan_in_blocks.h"

namespace torch_sparse_ops {
namespace {

constexpr int64_t kChunkConnections = 40960;  // connections that meet all tiles in turn: they stay in the L2 cache
constexpr int64_t kChunkOutputs = 32 * kBlock;

int64_t chunk_outputs(const Layer& layer) {
  const int64_t outputs = kChunkConnections / (layer.fan_in + 1);
  return outputs < kBlock ? outputs + 1 : smaller(outputs / kBlock * kBlock, kChunkOutputs);
}

// What a chunk of outputs needs: its connections, and its sums over the batch, where they lie or in scratch.
template <typename T>
struct Chunk {
  int64_t first;
  int64_t outputs;
  const T* weights;
  const uint32_t* locations;
  T* weights_sums;  // null if they are not wanted
  T* bias_sums;     // the same
};

template <typename T>
T* choose_sums(const void* gradient, void* sums, int64_t first, T* scratch) {
  return gradient == nullptr ? nullptr : sums == nullptr ? scratch : static_cast<T*>(sums) + first;
}

template <typename T>
Chunk<T> open_chunk(
    const Layer& layer, const BackwardTask& task, int64_t first, int64_t outputs, void* scratch, T* bias_scratch) {
  const int64_t begin = first * layer.fan_in;
  const int64_t count = outputs * layer.fan_in;
  const int64_t most = chunk_outputs(layer) * layer.fan_in;
  T* wide = static_cast<T*>(scratch);
  T* weights_scratch = wide + most;
  uint32_t* converted = reinterpret_cast<uint32_t*>(weights_scratch + most);
  return {
      first, outputs, read_values(layer.value, layer.weights, begin, count, wide),
      read_locations(layer, begin, count, converted),
      choose_sums(task.grad_weights, task.weights_sums, begin, weights_scratch),
      choose_sums(task.grad_bias, task.bias_sums, first, bias_scratch)};
}

template <typename T>
void close_chunk(const Layer& layer, const BackwardTask& task, const Chunk<T>& chunk) {
  if (task.ends && chunk.weights_sums != nullptr) {
    write_values(
        layer.value, chunk.weights_sums, chunk.first * layer.fan_in, chunk.outputs * layer.fan_in, task.grad_weights);
  }
  if (task.ends && chunk.bias_sums != nullptr) {
    write_values(layer.value, chunk.bias_sums, chunk.first, chunk.outputs, task.grad_bias);
  }
}

// Asks for one slice of several of what the next block of the tile is going to read, which begins with output `next`: a few
// pieces of many rows, which the hardware does not foresee. All of them at once would fill its queue and hold up the rest.
// GCC takes a call of a function that does nothing else for needless.
ALWAYS_INLINE void prefetch_rows(
    const Layer& layer, const BackwardTask& task, const Tile& tile, int64_t next, int64_t slice, int64_t slices) {
  const int64_t stride = layer.out_features * size_of(layer.value);
  const int64_t bytes = smaller(layer.out_features - next, kGradBlock) * size_of(layer.value);
  const char* source = static_cast<const char*>(task.grad_output) + tile.first * stride + next * size_of(layer.value);
  for (int64_t r = slice; r < tile.rows; r += slices) {
    for (int64_t i = 0; i < bytes; i += 64) {
      __builtin_prefetch(source + r * stride + i);
    }
  }
}

// Whether the gradient of the weights is written past the caches: one that does not stay in them, and lies where four
// values of it are written at a time.
bool streams_sums(const Layer& layer, const BackwardTask& task) {
  const int64_t step = 4 * size_of(layer.value);
  return layer.out_features * layer.fan_in * size_of(layer.value) >= kStreamedBytes && task.weights_sums == task.grad_weights &&
      layer.fan_in % 4 == 0 && reinterpret_cast<uintptr_t>(task.grad_weights) % step == 0;
}

// Adds what one tile contributes to the gradients of a block of outputs, the chunk's from `o` on.
template <typename T>
void add_block(
    const Layer& layer, const BackwardTask& task, const Tile& tile, const Chunk<T>& chunk, int64_t o, int64_t outputs) {
  const Loops<T>& loops = find_loops<T>(tile);
  const int64_t begin = o * layer.fan_in;
  const int64_t offset = tile.place * layer.in_features;
  const bool starts = task.starts && &tile == task.first_tile;
  T grads[kGradBlock * kMaxWidth];
  load_block(
      layer.value, tile, advance(task.grad_output, (chunk.first + o) * size_of(layer.value)), layer.out_features, outputs,
      grads);
  if (task.grad_bias != nullptr) {
    loops.bias(grads, outputs, starts, chunk.bias_sums + o);
  }
  const T* weights = chunk.weights + begin;
  const uint32_t* locations = chunk.locations + begin;
  const T* features = task.packed == nullptr ? nullptr : static_cast<const T*>(task.packed) + offset;
  T* partial = task.partial == nullptr ? nullptr : static_cast<T*>(task.partial) + offset;
  T* sums = task.grad_weights == nullptr ? nullptr : chunk.weights_sums + begin;
  if (tile.width == 1) {
    const bool together = partial != nullptr && sums != nullptr && starts && streams_sums(layer, task);
    const bool wanted[] = {partial != nullptr && !together, sums != nullptr && !together, together};
    for (int i = 0; i < 3; ++i) {
      if (wanted[i]) {
        loops.gradients[i](features, grads, weights, locations, layer.fan_in, outputs, starts, partial, sums);
      }
    }
    return;
  }
  const int64_t slices = task.prefetches ? tile.width / 2 : 1;
  for (int64_t slice = 0; slice < slices; ++slice) {
    if (task.prefetches) {
      prefetch_rows(layer, task, tile, chunk.first + o + outputs, slice, slices);
    }
    const int64_t first = outputs * slice / slices;
    const int64_t last = outputs * (slice + 1) / slices;
    if (partial != nullptr) {
      loops.features(
          grads + first * tile.width, weights + first * layer.fan_in, locations + first * layer.fan_in, layer.fan_in,
          last - first, partial);
    }
  }
  if (sums != nullptr) {
    loops.weights(features, grads, locations, layer.fan_in, outputs, starts, sums);
  }
}

// The same for the chunk. Returns false if a location is out of range; the first tile looks at them, block by block, just
// before they are used.
template <typename T>
bool add_tile(const Layer& layer, const BackwardTask& task, const Tile& tile, const Chunk<T>& chunk) {
  const int64_t most = tile.width == 1 ? kBlock : kGradBlock;  // connections of a block are read again soon
  for (int64_t o = 0; o < chunk.outputs; o += most) {
    const int64_t outputs = smaller(most, chunk.outputs - o);
    const int64_t begin = (chunk.first + o) * layer.fan_in;
    if (!layer.checked && &tile == task.first_tile && !locations_valid(layer, begin, begin + outputs * layer.fan_in)) {
      return false;
    }
    add_block(layer, task, tile, chunk, o, outputs);
  }
  return true;
}

template <typename T>
bool backward(const Layer& layer, const BackwardTask& task, void* scratch) {
  for (const Tile* tile = task.first_tile; task.partial != nullptr && tile != task.last_tile; ++tile) {
    __builtin_memset(
        static_cast<T*>(task.partial) + tile->place * layer.in_features, 0, tile->width * layer.in_features * sizeof(T));
  }
  const int64_t most = chunk_outputs(layer);
  T bias_scratch[kChunkOutputs];
  for (int64_t o = task.first; o < task.last; o += most) {
    const int64_t outputs = smaller(most, task.last - o);
    const Chunk<T> chunk = open_chunk(layer, task, o, outputs, scratch, bias_scratch);
    for (const Tile* tile = task.first_tile; tile != task.last_tile; ++tile) {
      if (!add_tile(layer, task, *tile, chunk)) {
        return false;
      }
    }
    close_chunk(layer, task, chunk);
  }
  finish_streaming();
  return true;
}

}  // namespace
}  // namespace torch_sparse_ops
