// How the work of the fixed fan-in operators on the CPU is cut and spread over threads. No torch header: memory and threads
// are handed in, so that the same code runs in a plain program under a sanitizer.

#pragma once

#include "capability.h"
#include "fixed_fan_in_kernels.h"
#include "steps.h"

#include <cstdint>
#include <vector>

namespace torch_sparse_ops {

constexpr int64_t kHugePageBytes = 2 << 20;  // of Linux on most processors

// A layer for a batch. `tiles` cover the batch.
struct Launch {
  const FixedFanInKernels* kernels;
  Layer layer;
  int64_t batch;
  int64_t value_bytes;  // of a value in a tile
  std::vector<Tile> tiles;

  int64_t connections() const { return layer.out_features * layer.fan_in; }
  int64_t padded_batch() const { return tiles.back().place + tiles.back().width - tiles[0].place; }
  int64_t packed_bytes() const { return padded_batch() * layer.in_features * value_bytes; }
  int64_t tile_bytes() const { return tiles[0].width * layer.in_features * value_bytes; }  // of the widest
  bool is_narrow() const { return layer.value == Value::float16 || layer.value == Value::bfloat16; }
  // A batch of one, of values as they are summed, is a tile as it stands.
  bool needs_packing() const { return batch > 1 || is_narrow(); }
};

Launch plan_forward(Capability capability, const Layer& layer, int64_t batch);
Launch plan_backward(Capability capability, const Layer& layer, int64_t batch);

// result[batch][out_features] from features[batch][in_features]; bias may be null. `packed` holds packed_bytes if the
// launch needs packing. Returns false, and leaves the result undefined, if a location is out of range.
bool run_forward(
    const Threads& threads, const Launch& launch, const void* features, const void* bias, void* packed, void* result);

// Pointers to gradients that are not wanted are null.
struct Gradients {
  void* features;
  void* weights;
  void* bias;
};

// How the backward pass is cut, and the memory it takes beside the gradients.
struct BackwardPlan {
  int64_t copies;       // of the gradient of the features, one for each part of the outputs; none if it is not wanted
  int64_t group_tiles;  // tiles that are worked off together
  int64_t packed_bytes;
  int64_t partial_bytes;
  int64_t sums_bytes;
};

BackwardPlan plan_memory(const Launch& launch, bool wants_features);

// Buffers are of the sizes in the plan. Returns false, and leaves the gradients undefined, if a location is out of range.
bool run_backward(
    const Threads& threads, const Launch& launch, const BackwardPlan& plan, const void* grad_output,
    const void* features, const Gradients& gradients, void* packed, void* partials, void* sums);

// The first connection whose location is out of range; there must be one.
int64_t find_invalid_location(const Launch& launch);

}  // namespace torch_sparse_ops
