// LLTM on a CUDA device: one thread an element, neighbouring threads at neighbouring addresses; a grid-stride loop covers
// any size. Both kernels are bound by memory: forward moves 9 values an element, backward 10. The launch is a function
// call rather than <<<>>>, so that a compiler of the host can read this file too.

#include <cuda_runtime.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "lltm.h"

namespace lltm {
namespace {

constexpr int threads = 256;
constexpr int64_t most_blocks = 65535;

template <typename Arguments>
__device__ int64_t elements(const Arguments& a) {
  return a.batch * a.state;
}

__device__ int64_t first() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

__device__ int64_t stride() { return int64_t(gridDim.x) * blockDim.x; }

template <typename T>
__global__ void forward_kernel(const Forward<T> a) {
  for (int64_t i = first(); i < elements(a); i += stride()) {
    forward_element(a, i / a.state, i % a.state);
  }
}

template <typename T>
__global__ void backward_kernel(const Backward<T> a) {
  for (int64_t i = first(); i < elements(a); i += stride()) {
    backward_element(a, i / a.state, i % a.state);
  }
}

template <typename Arguments>
void launch(void (*kernel)(Arguments), Arguments a, const char* name) {
  const int64_t blocks = std::min((a.batch * a.state + threads - 1) / threads, most_blocks);
  if (blocks == 0) {
    return;
  }
  void* parameters[] = {&a};
  const cudaError_t code = cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), parameters, 0,
                                            static_cast<cudaStream_t>(a.stream));
  if (code != cudaSuccess) {
    throw std::runtime_error(std::string("lltm: launching the ") + name + " kernel failed: " + cudaGetErrorString(code));
  }
}

template <typename T>
void forward(const Forward<T>& arguments) {
  launch<Forward<T>>(forward_kernel<T>, arguments, "forward");
}

template <typename T>
void backward(const Backward<T>& arguments) {
  launch<Backward<T>>(backward_kernel<T>, arguments, "backward");
}

const Registration<float> registered_float(Device::cuda, {forward<float>, backward<float>});
const Registration<double> registered_double(Device::cuda, {forward<double>, backward<double>});

}  // namespace
}  // namespace lltm
