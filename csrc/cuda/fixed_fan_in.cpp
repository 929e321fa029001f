// Fixed fan-in operators on CUDA: host functions and registration. The formulas stand in ../fixed_fan_in.h, the kernels and
// their design in fixed_fan_in.cu.
//
// Work goes to torch's current stream of the device of the tensors, and nothing waits for it, so calls may be captured
// in a CUDA graph. Scratch comes from torch's allocator.

#include "../fixed_fan_in.h"
#include "../settings.h"

#include "architectures.h"
#include "fixed_fan_in_launch.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <vector>

namespace torch_sparse_ops {
namespace {

using torch::stable::accelerator::DeviceGuard;

int64_t read_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

Device describe_device(int index) {
  require_architecture(
      TORCH_SPARSE_OPS_CUDA_ARCHITECTURES, read_attribute(cudaDevAttrComputeCapabilityMajor, index),
      read_attribute(cudaDevAttrComputeCapabilityMinor, index));
  return {read_attribute(cudaDevAttrMultiProcessorCount, index),
          read_attribute(cudaDevAttrMaxThreadsPerMultiProcessor, index),
          read_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, index),
          read_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index)};
}

cudaStream_t find_stream(int device) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device, &stream));
  return static_cast<cudaStream_t>(stream);
}

const FixedFanInLaunchers& find_launchers(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Double:
      return cuda_fixed_fan_in_float64;
    case ScalarType::Half:
      return cuda_fixed_fan_in_float16;
    case ScalarType::BFloat16:
      return cuda_fixed_fan_in_bfloat16;
    default:
      return cuda_fixed_fan_in_float32;
  }
}

Tensor make_contiguous(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

bool is_aligned(const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0; }

// A negative location of 16 bits, read without its sign, is 2^15 or more.
uint64_t find_limit(const FixedFanInShape& shape, ScalarType dtype) {
  const uint64_t inputs = static_cast<uint64_t>(shape.in_features);
  return trusts_locations() ? UINT64_MAX : dtype == ScalarType::Short ? std::min<uint64_t>(inputs, 1 << 15) : inputs;
}

Layer describe_layer(const char* op, const FixedFanInShape& shape, const Tensor& weights, const Tensor& locations) {
  if (shape.in_features > UINT32_MAX) {
    refuse(op, "features", "in_features " + std::to_string(shape.in_features), "at most 4294967295 on CUDA");
  }
  return {weights.const_data_ptr(), locations.const_data_ptr(), shape.in_features, shape.out_features, shape.fan_in,
          find_limit(shape, locations.scalar_type()), static_cast<int>(locations.element_size()),
          is_aligned(weights) && is_aligned(locations)};
}

// Uninitialised memory.
Tensor make_scratch(const Tensor& like, int64_t bytes) {
  constexpr int64_t word = sizeof(double);
  const std::array<int64_t, 1> sizes{(bytes + word - 1) / word};
  return torch::stable::new_empty(like, sizes, ScalarType::Double);
}

// The arguments of one call as the launchers want them. The tensors keep alive what the layer points to.
struct Call {
  FixedFanInShape shape;
  Tensor features, weights, locations;  // contiguous
  Device device;
  Layer layer;
  const FixedFanInLaunchers& launchers;

  Call(const char* op, const FixedFanInShape& shape, const Tensor& features, const Tensor& weights, const Tensor& locations)
      : shape(shape),
        features(make_contiguous(features)),
        weights(make_contiguous(weights)),
        locations(make_contiguous(locations)),
        device(describe_device(features.get_device_index())),
        layer(describe_layer(op, shape, this->weights, this->locations)),
        launchers(find_launchers(features.scalar_type())) {}
};

Tensor ffi_forward(
    const Tensor& features, const Tensor& weights, const Tensor& locations, const std::optional<Tensor>& bias) {
  constexpr const char* op = "ffi_forward";
  const FixedFanInShape shape = check_ffi_forward(features, weights, locations, bias);
  const DeviceGuard guard(features.get_device_index());
  const Call call(op, shape, features, weights, locations);
  const Tensor offsets = bias.has_value() ? make_contiguous(*bias) : call.features;
  const Tensor result = torch::stable::new_empty(features, result_sizes(features, weights));
  const Tensor scratch =
      make_scratch(features, call.launchers.count_forward_scratch(call.device, call.layer, shape.batch));
  call.launchers.forward(
      call.device, call.layer, shape.batch, call.features.const_data_ptr(),
      bias.has_value() ? offsets.const_data_ptr() : nullptr, scratch.mutable_data_ptr(),
      find_stream(features.get_device_index()), result.mutable_data_ptr());
  return result;
}

// Asks the operator of that name, which Python implements and whose answers it keeps. No offsets: add atomically.
std::tuple<Tensor, Tensor> transpose_locations(const Tensor& locations, int64_t in_features) {
  std::array<StableIValue, 2> stack{torch::stable::detail::from(locations), torch::stable::detail::from(in_features)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(
      "torch_sparse_ops::_ffi_transpose", "", stack.data(), TORCH_ABI_VERSION));
  return {torch::stable::detail::to<Tensor>(stack[0]), torch::stable::detail::to<Tensor>(stack[1])};
}

// An empty batch contributes nothing, and is not launched.
Tensor make_gradient(bool wanted, const Tensor& features, const std::vector<int64_t>& sizes, int64_t batch) {
  if (!wanted) {
    return torch::stable::new_empty(features, {0});
  }
  return batch == 0 ? torch::stable::new_zeros(features, sizes) : torch::stable::new_empty(features, sizes);
}

// The gradients that output_mask asks for; each other one is a tensor of shape [0], since the schema has no absent result.
std::tuple<Tensor, Tensor, Tensor> ffi_backward(
    const Tensor& grad_output, const Tensor& features, const Tensor& weights, const Tensor& locations,
    const std::vector<bool>& output_mask) {
  constexpr const char* op = "ffi_backward";
  const FixedFanInShape shape = check_ffi_backward(grad_output, features, weights, locations, output_mask);
  const DeviceGuard guard(features.get_device_index());
  const Call call(op, shape, features, weights, locations);
  const auto sizes = features.sizes();
  const Tensor grad_features = make_gradient(output_mask[0], features, {sizes.begin(), sizes.end()}, shape.batch);
  const Tensor grad_weights = make_gradient(output_mask[1], features, {shape.out_features, shape.fan_in}, shape.batch);
  const Tensor grad_bias = make_gradient(output_mask[2], features, {shape.out_features}, shape.batch);
  if (shape.batch > 0) {
    const auto data_if = [](bool wanted, const Tensor& tensor) { return wanted ? tensor.mutable_data_ptr() : nullptr; };
    const Gradients gradients{
        data_if(output_mask[0], grad_features), data_if(output_mask[1], grad_weights), data_if(output_mask[2], grad_bias)};
    const Tensor grads = make_contiguous(grad_output);
    const auto [offsets, order] = output_mask[0] ? transpose_locations(locations, shape.in_features)
                                                 : std::make_tuple(call.locations, call.locations);
    const bool atomic = offsets.numel() == 0;
    const Transposed transposed{
        atomic ? nullptr : static_cast<const int64_t*>(offsets.const_data_ptr()), order.const_data_ptr(),
        order.scalar_type() == ScalarType::Long};
    const Tensor scratch = make_scratch(
        features, call.launchers.count_backward_scratch(call.device, call.layer, shape.batch, atomic, gradients));
    call.launchers.backward(
        call.device, call.layer, shape.batch, grads.const_data_ptr(), call.features.const_data_ptr(), transposed,
        scratch.mutable_data_ptr(), find_stream(features.get_device_index()), gradients);
  }
  return {grad_features, grad_weights, grad_bias};
}

}  // namespace

// ---------------------------------------------------------------- registration

STABLE_TORCH_LIBRARY_IMPL(torch_sparse_ops, CUDA, library) {
  library.impl("ffi_forward", TORCH_BOX(&ffi_forward));
  library.impl("ffi_backward", TORCH_BOX(&ffi_backward));
}

}  // namespace torch_sparse_ops
