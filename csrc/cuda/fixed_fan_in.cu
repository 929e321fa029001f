// The kernels of the fixed fan-in operators for one type of values: compiled once per type, for every architecture.
// cmake/CudaLibrary.cmake gives VALUE, a type, and TABLE, the name of the table in fixed_fan_in_launch.h.

#include "fixed_fan_in_plan.cuh"

namespace torch_sparse_ops {
namespace {

int64_t count_forward_scratch(const Device& device, const Layer& layer, int64_t batch) {
  Scratch scratch(nullptr);
  take_packed<VALUE>(scratch, make_plan<VALUE>(device, layer, batch, Pass::forward), layer.in_features);
  return scratch.bytes();
}

void forward(
    const Device& device, const Layer& layer, int64_t batch, const void* features, const void* bias, void* scratch,
    cudaStream_t stream, void* result) {
  const Plan plan = make_plan<VALUE>(device, layer, batch, Pass::forward);
  run_forward<VALUE>(device, plan, layer, features, bias, scratch, stream, result);
}

int64_t count_backward_scratch(
    const Device& device, const Layer& layer, int64_t batch, bool atomic, const Gradients& gradients) {
  Scratch scratch(nullptr);
  take_backward<VALUE>(scratch, make_plan<VALUE>(device, layer, batch, Pass::backward), layer, atomic, gradients);
  return scratch.bytes();
}

void backward(
    const Device& device, const Layer& layer, int64_t batch, const void* grad_output, const void* features,
    const Transposed& transposed, void* scratch, cudaStream_t stream, const Gradients& gradients) {
  const Plan plan = make_plan<VALUE>(device, layer, batch, Pass::backward);
  run_backward<VALUE>(device, plan, layer, grad_output, features, transposed, scratch, stream, gradients);
}

}  // namespace

extern const FixedFanInLaunchers TABLE = {count_forward_scratch, forward, count_backward_scratch, backward};

}  // namespace torch_sparse_ops
