// CUDA's small vectors, with the alignment that they have on the device.
#pragma once

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

#define SIMT_VECTORS(element, name)                                                                    \
  struct alignas(2 * sizeof(element)) name##2 {                                                        \
    element x, y;                                                                                      \
  };                                                                                                   \
  struct name##3 {                                                                                     \
    element x, y, z;                                                                                   \
  };                                                                                                   \
  struct alignas(4 * sizeof(element) > 16 ? 16 : 4 * sizeof(element)) name##4 {                        \
    element x, y, z, w;                                                                                \
  };                                                                                                   \
  inline name##2 make_##name##2(element x, element y) { return {x, y}; }                               \
  inline name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; }                 \
  inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }

SIMT_VECTORS(unsigned, uint)
SIMT_VECTORS(signed char, char)
SIMT_VECTORS(unsigned char, uchar)
SIMT_VECTORS(short, short)
SIMT_VECTORS(unsigned short, ushort)
SIMT_VECTORS(int, int)
SIMT_VECTORS(long long, longlong)
SIMT_VECTORS(unsigned long long, ulonglong)
SIMT_VECTORS(float, float)
SIMT_VECTORS(double, double)
#undef SIMT_VECTORS
