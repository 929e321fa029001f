// What fixed_fan_in.cu offers to fixed_fan_in.cpp: one table of launchers per value type. They take raw pointers, sizes and
// a stream of the current device, allocate nothing and wait for nothing.

#pragma once

#include "launch.h"

#include <cstdint>

namespace torch_sparse_ops {

struct Layer {
  const void* weights;    // [out_features][fan_in]
  const void* locations;  // [out_features][fan_in], read as unsigned integers
  int64_t in_features;
  int64_t out_features;
  int64_t fan_in;
  uint64_t limit;      // the first location that is refused; beyond all of them if they are trusted
  int location_bytes;  // 2, 4 or 8
  bool aligned;        // whether both arrays begin at a multiple of 16 bytes
};

// The transposed locations: connections (row * fan_in + column), sorted by the input that they read.
struct Transposed {
  const int64_t* offsets;  // [in_features + 1] into order: where the connections of each input begin
  const void* order;       // [out_features * fan_in]
  bool wide;               // whether order holds int64, else int32
};

// Null where a gradient is not wanted.
struct Gradients {
  void* features;  // [batch][in_features]
  void* weights;   // [out_features][fan_in]
  void* bias;      // [out_features]
};

// Each function wants the bytes of scratch that the function before it counts.
struct FixedFanInLaunchers {
  int64_t (*count_forward_scratch)(const Device& device, const Layer& layer, int64_t batch);
  // features [batch][in_features] and bias [out_features], or null, to result [batch][out_features].
  void (*forward)(
      const Device& device, const Layer& layer, int64_t batch, const void* features, const void* bias, void* scratch,
      cudaStream_t stream, void* result);
  int64_t (*count_backward_scratch)(
      const Device& device, const Layer& layer, int64_t batch, bool atomic, const Gradients& gradients);
  // grad_output [batch][out_features], features [batch][in_features], no empty batch. `transposed` serves gradients.features
  // alone; if its offsets are null, they are added atomically.
  void (*backward)(
      const Device& device, const Layer& layer, int64_t batch, const void* grad_output, const void* features,
      const Transposed& transposed, void* scratch, cudaStream_t stream, const Gradients& gradients);
};

extern const FixedFanInLaunchers cuda_fixed_fan_in_float32;
extern const FixedFanInLaunchers cuda_fixed_fan_in_float64;
extern const FixedFanInLaunchers cuda_fixed_fan_in_float16;
extern const FixedFanInLaunchers cuda_fixed_fan_in_bfloat16;

}  // namespace torch_sparse_ops
