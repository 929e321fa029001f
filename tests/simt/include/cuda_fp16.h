// In place of CUDA's header of this name: float16 through the compiler's own type.
#pragma once

#include "cuda_runtime.h"

struct alignas(2) __half {
  _Float16 bits;

  __half() = default;
  __half(float value) : bits(static_cast<_Float16>(value)) {}
  __half(double value) : bits(static_cast<_Float16>(value)) {}
  __half(int value) : bits(static_cast<_Float16>(value)) {}
  operator float() const { return static_cast<float>(bits); }
};
using half = __half;

struct alignas(4) __half2 {
  __half x, y;

  __half2() = default;
  __half2(__half x, __half y) : x(x), y(y) {}
};
using half2 = __half2;

inline float __half2float(__half value) { return value; }
inline __half __float2half(float value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline __half __double2half(double value) { return value; }

inline __half2 __halves2half2(__half low, __half high) { return {low, high}; }
inline __half2 make_half2(__half low, __half high) { return {low, high}; }
inline __half __low2half(__half2 pair) { return pair.x; }
inline __half __high2half(__half2 pair) { return pair.y; }
inline float __low2float(__half2 pair) { return pair.x; }
inline float __high2float(__half2 pair) { return pair.y; }
inline float2 __half22float2(__half2 pair) { return {pair.x, pair.y}; }
inline __half2 __float22half2_rn(float2 pair) { return {pair.x, pair.y}; }
inline __half2 __floats2half2_rn(float low, float high) { return {low, high}; }
