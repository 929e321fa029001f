// Atomic functions under CUDA's names, for the types that CUDA has them for.
#pragma once

#include "execution.h"

namespace simt {

// Checks and counts an atomic access as far as the build of the harness does that.
void note_atomic(const void* address, size_t bytes, const void* site);

template <typename T, typename Change>
SIMT_UNWATCHED T change_atomically(T* address, const void* site, Change change) {
  note_atomic(address, sizeof(T), site);
  const T old = *address;
  *address = change(old);
  return old;
}

}  // namespace simt

#define SIMT_ATOMIC(T, name, result)                                              \
  SIMT_UNWATCHED inline T name(T* address, T value) {                             \
    const void* site = __builtin_return_address(0);                               \
    return simt::change_atomically(address, site, [value](T old) -> T { return result; }); \
  }

SIMT_ATOMIC(int, atomicAdd, static_cast<int>(static_cast<unsigned>(old) + static_cast<unsigned>(value)))
SIMT_ATOMIC(unsigned, atomicAdd, old + value)
SIMT_ATOMIC(unsigned long long, atomicAdd, old + value)
SIMT_ATOMIC(float, atomicAdd, old + value)
SIMT_ATOMIC(double, atomicAdd, old + value)
SIMT_ATOMIC(int, atomicMax, old > value ? old : value)
SIMT_ATOMIC(unsigned, atomicMax, old > value ? old : value)
SIMT_ATOMIC(long long, atomicMax, old > value ? old : value)
SIMT_ATOMIC(unsigned long long, atomicMax, old > value ? old : value)
SIMT_ATOMIC(int, atomicMin, old < value ? old : value)
SIMT_ATOMIC(unsigned, atomicMin, old < value ? old : value)
SIMT_ATOMIC(long long, atomicMin, old < value ? old : value)
SIMT_ATOMIC(unsigned long long, atomicMin, old < value ? old : value)
SIMT_ATOMIC(int, atomicExch, (static_cast<void>(old), value))
SIMT_ATOMIC(unsigned, atomicExch, (static_cast<void>(old), value))
SIMT_ATOMIC(unsigned long long, atomicExch, (static_cast<void>(old), value))
SIMT_ATOMIC(float, atomicExch, (static_cast<void>(old), value))
#undef SIMT_ATOMIC

#define SIMT_ATOMIC_CAS(T)                                                        \
  SIMT_UNWATCHED inline T atomicCAS(T* address, T expected, T desired) {          \
    const void* site = __builtin_return_address(0);                               \
    return simt::change_atomically(address, site,                                 \
                                   [=](T old) -> T { return old == expected ? desired : old; }); \
  }

SIMT_ATOMIC_CAS(unsigned short)
SIMT_ATOMIC_CAS(int)
SIMT_ATOMIC_CAS(unsigned)
SIMT_ATOMIC_CAS(unsigned long long)
#undef SIMT_ATOMIC_CAS
