// The functions that code compiled with -fsanitize=thread calls, in place of the sanitizer's own library. Code of the
// host is compiled so too; its accesses pass.
//
// GCC puts no such call before what a call does itself: loading an argument of class type, storing a result of class
// type, copying with memcpy. Inlined, they are plain loads and stores, and small copies are too.
#include "threads.h"
#include "watch.h"

namespace {

void pass_on(simt::Access access, const void* pointer, size_t size, const void* code) {
  if (simt::running != nullptr) {
    simt::watch(access, pointer, size, code);
  }
}

}  // namespace

#define ACCESS(name, kind, size) \
  void __tsan_##name(const void* pointer) { pass_on(simt::Access::kind, pointer, size, __builtin_return_address(0)); }

#define ACCESSES(size)                       \
  ACCESS(read##size, read, size)             \
  ACCESS(write##size, write, size)           \
  ACCESS(unaligned_read##size, read, size)   \
  ACCESS(unaligned_write##size, write, size) \
  ACCESS(volatile_read##size, read, size)    \
  ACCESS(volatile_write##size, write, size)

// Atomics of C++ are the host's business: device code has functions for that (simt/atomics.h).
#define ATOMICS(bits, T)                                                                                     \
  T __tsan_atomic##bits##_load(const volatile T* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }    \
  void __tsan_atomic##bits##_store(volatile T* p, T v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }    \
  T __tsan_atomic##bits##_exchange(volatile T* p, T v, int) {                                                \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                                      \
  }                                                                                                          \
  T __tsan_atomic##bits##_fetch_add(volatile T* p, T v, int) {                                               \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                          \
  T __tsan_atomic##bits##_fetch_sub(volatile T* p, T v, int) {                                               \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                          \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile T* p, T* e, T v, int, int) {                   \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                  \
  }                                                                                                          \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile T* p, T* e, T v, int, int) {                     \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                  \
  }

extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __tsan_read_range(const void* pointer, size_t size) {
  pass_on(simt::Access::read, pointer, size, __builtin_return_address(0));
}
void __tsan_write_range(const void* pointer, size_t size) {
  pass_on(simt::Access::write, pointer, size, __builtin_return_address(0));
}
ATOMICS(8, unsigned char)
ATOMICS(32, unsigned)
ATOMICS(64, unsigned long)
void __tsan_init() {}
void __tsan_func_entry(const void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(const void*) {}
void __tsan_vptr_update(const void*, const void*) {}
}
