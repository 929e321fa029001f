// Launches of CUDA kernels. They are function calls instead of <<<>>>, so that the same source runs under nvcc and, as plain
// C++, under the harness of tests/simt, whose cuda_runtime.h defines SIMT_HARNESS.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <tuple>

namespace torch_sparse_ops {

// What a plan is made from: attributes of the device.
struct Device {
  int64_t processors;        // multiprocessors
  int64_t resident_threads;  // of one multiprocessor
  int64_t shared_bytes;      // of one multiprocessor
  int64_t block_bytes;       // of shared memory that one block may ask for
};

constexpr int64_t kPlainSharedBytes = 48 << 10;  // what a block has without asking for more

// Throws. The error is forgotten, lest the next check on this thread, perhaps one of torch's, report it again.
inline void check_cuda(const char* call, cudaError_t error) {
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw std::runtime_error(std::string("torch_sparse_ops: ") + call + ": " + cudaGetErrorString(error));
  }
}

#if defined(SIMT_HARNESS)

using simt::dynamic_shared;

template <typename... Parameters, typename... Values>
void start(
    void (*kernel)(Parameters...), dim3 blocks, dim3 threads, int64_t shared_bytes, cudaStream_t, Values&... values) {
  simt::launch(kernel, blocks, threads, static_cast<size_t>(shared_bytes), values...);
}

#else

// The shared memory that the launch asked for.
template <typename Element>
__device__ inline Element* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  return reinterpret_cast<Element*>(shared_memory);
}

template <typename... Parameters, typename... Values>
void start(
    void (*kernel)(Parameters...), dim3 blocks, dim3 threads, int64_t shared_bytes, cudaStream_t stream,
    Values&... values) {
  void* pointers[] = {&values...};
  const void* function = reinterpret_cast<const void*>(kernel);
  check_cuda("cudaLaunchKernel", cudaLaunchKernel(function, blocks, threads, pointers, shared_bytes, stream));
}

#endif

// Runs kernel(arguments...) on a stream of the current device. A launch that fails throws; a fault inside the kernel is
// reported by whatever synchronises next.
template <typename... Parameters, typename... Arguments>
void launch(
    void (*kernel)(Parameters...), int64_t blocks, int threads, int64_t shared_bytes, cudaStream_t stream,
    const Arguments&... arguments) {
  if (shared_bytes > kPlainSharedBytes) {
    check_cuda(
        "cudaFuncSetAttribute",
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
  }
  std::tuple<Parameters...> values(arguments...);
  std::apply(
      [&](auto&... value) {
        start(kernel, dim3(static_cast<unsigned>(blocks)), dim3(threads), shared_bytes, stream, value...);
      },
      values);
}

}  // namespace torch_sparse_ops
