// The contract of the fixed fan-in operators: shapes, and the checks that every device runs before any work.
//
//   ffi_forward:   result[b, o] = bias[o] + sum_k weights[o, k] * features[b, locations[o, k]]
//   ffi_backward:  grad_features[b, i] = sum over (o, k) with locations[o, k] == i of grad_output[b, o] * weights[o, k]
//                  grad_weights[o, k]  = sum_b grad_output[b, o] * features[b, locations[o, k]]
//                  grad_bias[o]        = sum_b grad_output[b, o]
//
// b runs over the product of all leading dimensions of features. A check that fails throws std::runtime_error, which
// Python sees as RuntimeError: "operator: argument: received this, accepted is that".

#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace torch_sparse_ops {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

struct FixedFanInShape {
  int64_t batch;         // product of the leading dimensions of features
  int64_t in_features;   // last dimension of features
  int64_t out_features;  // rows of weights and locations
  int64_t fan_in;        // columns of weights and locations

  int64_t connections() const { return out_features * fan_in; }
};

[[noreturn]] inline void refuse(
    const char* op, const std::string& argument, const std::string& received, const std::string& accepted) {
  throw std::runtime_error(std::string(op) + ": " + argument + ": received " + received + ", accepted is " + accepted);
}

template <typename Sizes>
std::string format_shape(const Sizes& sizes) {
  std::ostringstream text;
  text << "shape [";
  for (size_t d = 0; d < sizes.size(); ++d) {
    text << (d == 0 ? "" : ", ") << sizes[d];
  }
  text << "]";
  return text.str();
}

inline std::string format_dtype(ScalarType dtype) {
  return std::string("dtype ") + torch::headeronly::toString(dtype);
}

inline std::string format_device(const torch::stable::Device& device) {
  using torch::headeronly::DeviceType;
  const std::string index = device.has_index() ? ":" + std::to_string(device.index()) : "";
  switch (device.type()) {
    case DeviceType::CPU:
      return "device cpu";
    case DeviceType::CUDA:
      return "device cuda" + index;
    case DeviceType::Meta:
      return "device meta";
    default:
      return "device type " + std::to_string(static_cast<int>(device.type())) + index;
  }
}

inline void check_rank(const char* op, const char* name, const Tensor& tensor, int64_t rank, const char* accepted) {
  if (tensor.dim() != rank) {
    refuse(op, name, format_shape(tensor.sizes()), accepted);
  }
}

inline void check_shape(const char* op, const char* name, const Tensor& tensor, const std::vector<int64_t>& accepted) {
  const auto sizes = tensor.sizes();
  if (std::vector<int64_t>(sizes.begin(), sizes.end()) != accepted) {
    refuse(op, name, format_shape(sizes), format_shape(accepted));
  }
}

inline void check_device(const char* op, const char* name, const Tensor& tensor, const Tensor& features) {
  const torch::stable::Device device = tensor.device();
  if (device != features.device()) {
    refuse(op, name, format_device(device), format_device(features.device()) + ", as features");
  }
}

// The dtype of features decides; what else carries values must agree with it.
inline void check_value_dtype(const char* op, const char* name, const Tensor& tensor, const Tensor& features) {
  const ScalarType dtype = tensor.scalar_type();
  if (dtype != features.scalar_type()) {
    refuse(op, name, format_dtype(dtype), format_dtype(features.scalar_type()) + ", as features");
  }
}

inline void check_features(const char* op, const Tensor& features) {
  if (features.dim() < 1) {
    refuse(op, "features", format_shape(features.sizes()), "shape [..., in_features]");
  }
  const ScalarType dtype = features.scalar_type();
  if (dtype != ScalarType::Float && dtype != ScalarType::Double && dtype != ScalarType::Half &&
      dtype != ScalarType::BFloat16) {
    refuse(op, "features", format_dtype(dtype), "dtype Float, Double, Half or BFloat16");
  }
}

inline void check_connections(
    const char* op, const Tensor& features, const Tensor& weights, const Tensor& locations) {
  check_device(op, "weights", weights, features);
  check_device(op, "locations", locations, features);
  check_value_dtype(op, "weights", weights, features);
  const ScalarType dtype = locations.scalar_type();
  if (dtype != ScalarType::Int && dtype != ScalarType::Long && dtype != ScalarType::Short &&
      dtype != ScalarType::UInt16) {
    refuse(op, "locations", format_dtype(dtype), "dtype Short, UInt16, Int or Long");
  }
  check_rank(op, "weights", weights, 2, "shape [out_features, fan_in]");
  check_shape(op, "locations", locations, {weights.size(0), weights.size(1)});
}

inline FixedFanInShape read_shape(const Tensor& features, const Tensor& weights) {
  const auto sizes = features.sizes();
  int64_t batch = 1;
  for (size_t d = 0; d + 1 < sizes.size(); ++d) {
    batch *= sizes[d];
  }
  return {batch, sizes[sizes.size() - 1], weights.size(0), weights.size(1)};
}

// The sizes of ffi_forward's result: those of features, with out_features in place of in_features.
inline std::vector<int64_t> result_sizes(const Tensor& features, const Tensor& weights) {
  const auto sizes = features.sizes();
  std::vector<int64_t> result(sizes.begin(), sizes.end());
  result.back() = weights.size(0);
  return result;
}

inline FixedFanInShape check_ffi_forward(
    const Tensor& features, const Tensor& weights, const Tensor& locations, const std::optional<Tensor>& bias) {
  constexpr const char* op = "ffi_forward";
  check_features(op, features);
  check_connections(op, features, weights, locations);
  if (bias.has_value()) {
    check_device(op, "bias", *bias, features);
    check_value_dtype(op, "bias", *bias, features);
    check_shape(op, "bias", *bias, {weights.size(0)});
  }
  return read_shape(features, weights);
}

inline FixedFanInShape check_ffi_backward(
    const Tensor& grad_output, const Tensor& features, const Tensor& weights, const Tensor& locations,
    const std::vector<bool>& output_mask) {
  constexpr const char* op = "ffi_backward";
  check_features(op, features);
  check_connections(op, features, weights, locations);
  check_device(op, "grad_output", grad_output, features);
  check_value_dtype(op, "grad_output", grad_output, features);
  check_shape(op, "grad_output", grad_output, result_sizes(features, weights));
  if (output_mask.size() != 3) {
    refuse(op, "output_mask", std::to_string(output_mask.size()) + " entries", "3 entries: features, weights, bias");
  }
  return read_shape(features, weights);
}

[[noreturn]] inline void refuse_location(
    const char* op, const FixedFanInShape& shape, int64_t connection, int64_t value) {
  std::ostringstream argument;
  argument << "locations[" << connection / shape.fan_in << ", " << connection % shape.fan_in << "]";
  const std::string accepted = shape.in_features == 0
      ? "none, since features have in_features 0"
      : "0 to " + std::to_string(shape.in_features - 1) + " (in_features - 1)";
  refuse(op, argument.str(), std::to_string(value), accepted);
}

}  // namespace torch_sparse_ops
