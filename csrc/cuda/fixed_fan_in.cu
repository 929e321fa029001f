// The kernels of the fixed fan-in operators for one type of values: compiled once per type, for every architecture.
// cmake/CudaLibrary.cmake gives VALUE, a type, and TABLE, the name of the table in fixed_fan_in_launch.h.

#include "fixed_fan_in_plan.cuh"

namespace torch_sparse_ops {
namespace {

int64_t count_forward_scratch(const Device& device, const Layer& layer, int64_t batch) {
  return plan_forward<VALUE>(device, layer, batch).packed_bytes;
}

void forward(
    const Device& device, const Layer& layer, int64_t batch, const void* features, const void* bias, void* scratch,
    cudaStream_t stream, void* result) {
  run_forward(
      device, plan_forward<VALUE>(device, layer, batch), layer, static_cast<const VALUE*>(features),
      static_cast<const VALUE*>(bias), static_cast<VALUE*>(scratch), stream, static_cast<VALUE*>(result));
}

}  // namespace

extern const FixedFanInLaunchers TABLE = {count_forward_scratch, forward};

}  // namespace torch_sparse_ops
