// In place of CUDA's header of this name: bfloat16 is the upper half of a float32.
#pragma once

#include "cuda_runtime.h"

struct alignas(2) __nv_bfloat16 {
  uint16_t bits;

  __nv_bfloat16() = default;
  __nv_bfloat16(float value) : bits(round(value)) {}
  __nv_bfloat16(double value) : bits(round_odd(value)) {}
  __nv_bfloat16(int value) : __nv_bfloat16(static_cast<double>(value)) {}
  operator float() const { return __uint_as_float(static_cast<unsigned>(bits) << 16); }

 private:
  // To nearest, ties to even; a NaN stays one.
  static uint16_t round(float value) {
    const unsigned word = __float_as_uint(value);
    return value != value ? 0x7FFF : static_cast<uint16_t>((word + 0x7FFF + (word >> 16 & 1)) >> 16);
  }
  // Through float32 without rounding twice: what is cut off is kept as a set last bit.
  static uint16_t round_odd(double value) {
    float narrow = static_cast<float>(value);
    if (std::isfinite(narrow) && static_cast<double>(narrow) != value) {
      if (std::fabs(static_cast<double>(narrow)) > std::fabs(value)) {
        narrow = std::nextafter(narrow, 0.0f);
      }
      narrow = __uint_as_float(__float_as_uint(narrow) | 1u);
    }
    return round(narrow);
  }
};
using nv_bfloat16 = __nv_bfloat16;

struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;

  __nv_bfloat162() = default;
  __nv_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) : x(x), y(y) {}
};
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 value) { return value; }
inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline __nv_bfloat16 __double2bfloat16(double value) { return value; }

inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) { return {low, high}; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 low, __nv_bfloat16 high) { return {low, high}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 pair) { return pair.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 pair) { return pair.y; }
inline float __low2float(__nv_bfloat162 pair) { return pair.x; }
inline float __high2float(__nv_bfloat162 pair) { return pair.y; }
inline float2 __bfloat1622float2(__nv_bfloat162 pair) { return {pair.x, pair.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 pair) { return {pair.x, pair.y}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) { return {low, high}; }
