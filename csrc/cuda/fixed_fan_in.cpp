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

Tensor ffi_forward(
    const Tensor& features, const Tensor& weights, const Tensor& locations, const std::optional<Tensor>& bias) {
  constexpr const char* op = "ffi_forward";
  const FixedFanInShape shape = check_ffi_forward(features, weights, locations, bias);
  const int index = features.get_device_index();
  const DeviceGuard guard(index);
  const Tensor rows = make_contiguous(features);
  const Tensor values = make_contiguous(weights);
  const Tensor indices = make_contiguous(locations);
  const Tensor offsets = bias.has_value() ? make_contiguous(*bias) : rows;
  const Tensor result = torch::stable::new_empty(features, result_sizes(features, weights));
  const Device device = describe_device(index);
  const Layer layer = describe_layer(op, shape, values, indices);
  const FixedFanInLaunchers& launchers = find_launchers(features.scalar_type());
  const Tensor scratch = make_scratch(features, launchers.count_forward_scratch(device, layer, shape.batch));
  launchers.forward(
      device, layer, shape.batch, rows.const_data_ptr(), bias.has_value() ? offsets.const_data_ptr() : nullptr,
      scratch.mutable_data_ptr(), find_stream(index), result.mutable_data_ptr());
  return result;
}

}  // namespace

// ---------------------------------------------------------------- registration

STABLE_TORCH_LIBRARY_IMPL(torch_sparse_ops, CUDA, library) { library.impl("ffi_forward", TORCH_BOX(&ffi_forward)); }

}  // namespace torch_sparse_ops
