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

struct FixedFanInLaunchers {
  // Bytes that forward needs as scratch.
  int64_t (*count_forward_scratch)(const Device& device, const Layer& layer, int64_t batch);
  // features [batch][in_features] and bias [out_features], or null, to result [batch][out_features].
  void (*forward)(
      const Device& device, const Layer& layer, int64_t batch, const void* features, const void* bias, void* scratch,
      cudaStream_t stream, void* result);
};

extern const FixedFanInLaunchers cuda_fixed_fan_in_float32;
extern const FixedFanInLaunchers cuda_fixed_fan_in_float64;
extern const FixedFanInLaunchers cuda_fixed_fan_in_float16;
extern const FixedFanInLaunchers cuda_fixed_fan_in_bfloat16;

}  // namespace torch_sparse_ops
