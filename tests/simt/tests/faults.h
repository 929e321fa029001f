// What programs of kernels that do something wrong have in common. tests/test_simt.py knows what is said of each.
#pragma once

#include <cuda_runtime.h>

#include "simt/buffer.h"
#include "simt/cases.h"

inline std::vector<float> count_to(size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) {
    values[i] = static_cast<float>(i);
  }
  return values;
}

// Runs a kernel that takes `in` and `out`, of 64 floats each.
inline void run(void (*kernel)(const float*, float*), dim3 grid = 1, dim3 block = 64, size_t shared_bytes = 0) {
  const simt::Buffer<float> in("in", count_to(64)), out("out", 64);
  simt::launch(kernel, grid, block, shared_bytes, in.data(), out.data());
}
