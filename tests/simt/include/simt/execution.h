// Launches, the place of a thread, and the barriers: what the runtime offers to kernels and to those who launch them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "vectors.h"

// For harness code in headers: its own loads and stores are no accesses of the kernel.
#define SIMT_UNWATCHED __attribute__((no_sanitize("thread"), noinline))

namespace simt {

// True where loads and stores are watched, false under AddressSanitizer and UndefinedBehaviorSanitizer.
#ifdef __SANITIZE_THREAD__
constexpr bool watched = true;
#else
constexpr bool watched = false;
#endif

// What a kernel did wrong; thrown by the launch.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A line of source: two barriers are the same barrier when they stand in the same line.
struct Place {
  const char* file;
  int line;
  static constexpr Place here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

// In which order threads that could run do run.
enum class Order { forward, reverse, shuffled };
void set_order(Order order, unsigned seed = 0);

uint3 thread_index();
uint3 block_index();
dim3 block_size();
dim3 grid_size();

// Waits for the whole block; the sums are over all its threads.
struct Votes {
  int ones, threads;
};
Votes block_barrier(const char* name, bool vote, Place place);

// Waits for the lanes of the mask. Returns the value of lane `source`, and the lanes whose value is not zero.
struct Exchanged {
  uint64_t value;
  unsigned ballot;
};
Exchanged warp_exchange(const char* name, unsigned mask, uint64_t value, unsigned source, Place place);
void warp_barrier(unsigned mask, Place place);
unsigned lane_index();

// Ends the launch: what the calling thread asked of the function `name` cannot be.
[[noreturn]] void refuse(const char* name, const char* reason, Place place);

void* dynamic_shared_memory();

// The first byte of the launch's dynamic shared memory.
template <typename T = char>
T* dynamic_shared() {
  return static_cast<T*>(dynamic_shared_memory());
}

// Allows a kernel dynamic shared memory beyond 48 KiB, as cudaFuncSetAttribute does.
void allow_shared_bytes(const void* kernel, size_t bytes);

struct Launch {
  const void* kernel;
  void (*call)(const void* packed);      // one thread's run
  const void* packed;                    // kernel and arguments: constant memory
  size_t packed_bytes;
  dim3 grid, block;
  size_t shared_bytes;
};

void run(const Launch& launch);

// Runs the kernel to its end. Throws Failure at the first thing it does wrong.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Arguments&&... arguments) {
  struct Packed {
    void (*kernel)(Parameters...);
    std::tuple<std::decay_t<Parameters>...> parameters;
  };
  const Packed packed{kernel, {std::forward<Arguments>(arguments)...}};
  const auto call = [](const void* own) {
    const Packed& one = *static_cast<const Packed*>(own);
    std::apply(one.kernel, one.parameters);
  };
  run({reinterpret_cast<const void*>(kernel), call, &packed, sizeof(packed), grid, block, shared_bytes});
}

template <typename... Parameters, size_t... I>
void launch_packed(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, void** parameters,
                   std::index_sequence<I...>) {
  launch(kernel, grid, block, shared_bytes, *static_cast<std::decay_t<Parameters>*>(parameters[I])...);
}

}  // namespace simt
