// The LLTM cell for Python: argument checks, the matrix products, and the call into the device's kernels.
//
//   input [batch, features]   weights [3 state, state + features]   bias [3 state]   hidden, cell [batch, state]

#include <torch/extension.h>

#include <array>

#include "lltm.h"

namespace lltm {

template <typename T>
Kernels<T>& kernels(Device device) {
  static std::array<Kernels<T>, 2> table{};        // local, so that it is there before the first registration
  return table[static_cast<size_t>(device)];
}

template Kernels<float>& kernels<float>(Device);
template Kernels<double>& kernels<double>(Device);

namespace {

using at::Tensor;

template <typename T>
const Kernels<T>& kernels_for(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_cpu() || tensor.is_cuda(), "lltm: tensors must be on cpu or cuda, got ", tensor.device());
  const Kernels<T>& found = kernels<T>(tensor.is_cpu() ? Device::cpu : Device::cuda);
  TORCH_CHECK(found.forward != nullptr, "lltm: this build has no kernels for ", tensor.device(),
              "; build it with a CUDA torch and the files that extension.json lists under cuda_sources");
  return found;
}

void check(const char* name, const Tensor& tensor, at::IntArrayRef sizes, const char* shape, const Tensor& input) {
  TORCH_CHECK(tensor.sizes() == sizes, "lltm: ", name, " must be ", shape, " = ", sizes, ", got ", tensor.sizes());
  TORCH_CHECK(tensor.scalar_type() == input.scalar_type(), "lltm: ", name, " must have the dtype of input, ",
              input.scalar_type(), ", got ", tensor.scalar_type());
  TORCH_CHECK(tensor.device() == input.device(), "lltm: ", name, " must be on the device of input, ", input.device(),
              ", got ", tensor.device());
}

void check_arguments(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& hidden,
                     const Tensor& cell) {
  TORCH_CHECK(input.dim() == 2, "lltm: input must be [batch, features], got ", input.sizes());
  TORCH_CHECK(hidden.dim() == 2, "lltm: hidden must be [batch, state], got ", hidden.sizes());
  TORCH_CHECK(input.scalar_type() == at::kFloat || input.scalar_type() == at::kDouble,
              "lltm: input must be float32 or float64, got ", input.scalar_type());
  const int64_t batch = input.size(0), features = input.size(1), state = hidden.size(1);
  check("hidden", hidden, {batch, state}, "[batch, state]", input);
  check("cell", cell, {batch, state}, "[batch, state]", input);
  check("weights", weights, {3 * state, state + features}, "[3 * state, state + features]", input);
  check("bias", bias, {3 * state}, "[3 * state]", input);
}

void* stream_of(const Tensor& tensor) {
  if (tensor.is_cpu()) {
    return nullptr;
  }
  return c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).native_handle();
}

// Returns new_hidden and new_cell, then what backward needs: the activated gates and [hidden, input].
std::vector<Tensor> forward(const Tensor& input, const Tensor& weights, const Tensor& bias, const Tensor& hidden,
                            const Tensor& cell) {
  check_arguments(input, weights, bias, hidden, cell);
  const c10::DeviceGuard guard(input.device());
  const Tensor joined = at::cat({hidden, input}, 1);
  const Tensor gates = at::addmm(bias, joined, weights.t());
  const Tensor old_cell = cell.contiguous();
  const Tensor new_hidden = at::empty_like(old_cell), new_cell = at::empty_like(old_cell);
  AT_DISPATCH_FLOATING_TYPES(input.scalar_type(), "lltm_forward", [&] {
    kernels_for<scalar_t>(input).forward({hidden.size(0), hidden.size(1), gates.mutable_data_ptr<scalar_t>(),
                                          old_cell.const_data_ptr<scalar_t>(),
                                          new_hidden.mutable_data_ptr<scalar_t>(),
                                          new_cell.mutable_data_ptr<scalar_t>(), stream_of(input)});
  });
  return {new_hidden, new_cell, gates, joined};
}

// Returns the gradients of input, weights, bias, hidden and cell.
std::vector<Tensor> backward(const Tensor& grad_new_hidden, const Tensor& grad_new_cell, const Tensor& new_cell,
                             const Tensor& gates, const Tensor& joined, const Tensor& weights) {
  const c10::DeviceGuard guard(gates.device());
  const int64_t batch = new_cell.size(0), state = new_cell.size(1);
  const Tensor grad_hidden = grad_new_hidden.contiguous(), grad_cell = grad_new_cell.contiguous();
  const Tensor grad_gates = at::empty_like(gates), grad_old_cell = at::empty_like(new_cell);
  AT_DISPATCH_FLOATING_TYPES(gates.scalar_type(), "lltm_backward", [&] {
    kernels_for<scalar_t>(gates).backward(
        {batch, state, grad_hidden.const_data_ptr<scalar_t>(), grad_cell.const_data_ptr<scalar_t>(),
         gates.const_data_ptr<scalar_t>(), new_cell.const_data_ptr<scalar_t>(),
         grad_gates.mutable_data_ptr<scalar_t>(), grad_old_cell.mutable_data_ptr<scalar_t>(), stream_of(gates)});
  });
  const Tensor grad_joined = grad_gates.mm(weights);
  return {grad_joined.slice(1, state), grad_gates.t().mm(joined), grad_gates.sum(0), grad_joined.slice(1, 0, state),
          grad_old_cell};
}

}  // namespace
}  // namespace lltm

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.doc() = "Forward and backward of the LLTM cell; use them through the module lltm.";
  module.def("forward", &lltm::forward, py::arg("input"), py::arg("weights"), py::arg("bias"), py::arg("hidden"),
             py::arg("cell"), py::call_guard<py::gil_scoped_release>());
  module.def("backward", &lltm::backward, py::arg("grad_new_hidden"), py::arg("grad_new_cell"), py::arg("new_cell"),
             py::arg("gates"), py::arg("joined"), py::arg("weights"), py::call_guard<py::gil_scoped_release>());
}
