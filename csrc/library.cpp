// The schemas of every operator. Kernels register themselves at the foot of the file of their device; shapes for tracing
// and derivatives are registered from Python (torch_sparse_ops/_registration.py).

#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(torch_sparse_ops, library) {
  library.def("ffi_forward(Tensor features, Tensor weights, Tensor locations, Tensor? bias=None) -> Tensor");
  library.def(
      "ffi_backward(Tensor grad_output, Tensor features, Tensor weights, Tensor locations, bool[3] output_mask)"
      " -> (Tensor, Tensor, Tensor)");
  // The connections of each input, for CUDA's gradient of the features; implemented in Python (_transposed.py).
  library.def("_ffi_transpose(Tensor locations, int in_features) -> (Tensor offsets, Tensor order)");
  library.def("_cpu_capability() -> int");
}
