// In place of CUDA's header of this name: kernels become functions of the host, run by the harness (../README.md).
#pragma once

#define SIMT_HARNESS 1

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simt/atomics.h"
#include "simt/execution.h"
#include "simt/vectors.h"
#include "simt/warp.h"

// Kernels have all that they call inlined, as nvcc does: accesses that are part of a call are not seen (runtime/hooks.cpp).
#define __global__ __attribute__((flatten, noinline))
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Blocks run one after another, so one copy serves all. Where accesses are watched, it lies in the storage of the one
// operating system thread: that the runtime can find. AddressSanitizer puts its red zones only around plain variables.
#ifdef __SANITIZE_THREAD__
#define __shared__ static thread_local
#else
#define __shared__ static
#endif

#define threadIdx (::simt::thread_index())
#define blockIdx (::simt::block_index())
#define blockDim (::simt::block_size())
#define gridDim (::simt::grid_size())
constexpr int warpSize = 32;

template <typename T>
__forceinline__ T __ldg(const T* address) {
  return *address;
}
template <typename T>
__forceinline__ T __ldcs(const T* address) {
  return *address;
}
template <typename T>
__forceinline__ void __stcs(T* address, T value) {
  *address = value;
}

template <typename T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}

inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return bits == 0 ? 32 : __builtin_clz(static_cast<unsigned>(bits)); }
inline unsigned __brev(unsigned bits) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) {
    reversed |= (bits >> i & 1u) << (31 - i);
  }
  return reversed;
}

template <typename To, typename From>
To simt_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
inline unsigned __float_as_uint(float value) { return simt_bits<unsigned>(value); }
inline int __float_as_int(float value) { return simt_bits<int>(value); }
inline float __uint_as_float(unsigned bits) { return simt_bits<float>(bits); }
inline float __int_as_float(int bits) { return simt_bits<float>(bits); }
inline long long __double_as_longlong(double value) { return simt_bits<long long>(value); }
inline double __longlong_as_double(long long bits) { return simt_bits<double>(bits); }

using cudaStream_t = struct CUstream_st*;
enum cudaError_t { cudaSuccess = 0 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };

inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }        // a launch that fails throws simt::Failure

// `parameters` point to one value for each parameter of the kernel.
template <typename... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** parameters,
                             size_t shared_bytes = 0, cudaStream_t = nullptr) {
  simt::launch_packed(kernel, grid, block, shared_bytes, parameters, std::index_sequence_for<Parameters...>());
  return cudaSuccess;
}

template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  simt::allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<size_t>(bytes));
  return cudaSuccess;
}
