#include "fibers.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

#ifdef SIMT_SANITIZED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves where it is to *from and goes on at `to`. The library's ways to do that take system calls, and more of them under
// AddressSanitizer. A stack that is left holds the registers that calls preserve, below the address to return to.
extern "C" void simt_switch(void** from, void* to);
#ifndef __x86_64__
#error "the harness switches stacks on x86-64; another processor needs its own simt_switch and prepare()"
#endif
asm(R"(
.text
.type simt_switch, @function
simt_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size simt_switch, . - simt_switch
)");

namespace simt {
namespace {

constexpr unsigned most_fibers = 1024;

void* fibers[most_fibers];             // where each one left; null for one that has to be prepared
void* scheduler;
char* stacks = nullptr;
void (*run_body)(unsigned) = nullptr;
unsigned current = 0;

// AddressSanitizer has to know the stack that it is on.
#ifdef SIMT_SANITIZED
void* scheduler_fake = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_bytes = 0;
void leave_scheduler(unsigned to) { __sanitizer_start_switch_fiber(&scheduler_fake, stack_of(to), stack_bytes); }
void arrive_in_scheduler() { __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr); }
void leave_fiber(void** fake) { __sanitizer_start_switch_fiber(fake, scheduler_stack, scheduler_bytes); }
void arrive_in_fiber(void* fake) { __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_bytes); }
void clean_stack(unsigned fiber) { __asan_unpoison_memory_region(stack_of(fiber), stack_bytes); }
#else
void leave_scheduler(unsigned) {}
void arrive_in_scheduler() {}
void leave_fiber(void**) {}
void arrive_in_fiber(void*) {}
void clean_stack(unsigned) {}
#endif

void enter() {
  arrive_in_fiber(nullptr);
  for (;;) {
    run_body(current);
    suspend();
  }
}

// As if `enter` had been called from nowhere, and left at once.
void prepare(unsigned index) {
  clean_stack(index);
  void** top = reinterpret_cast<void**>(stack_of(index) + stack_bytes);
  top[-1] = nullptr;
  top[-2] = reinterpret_cast<void*>(enter);
  for (int i = 3; i <= 8; ++i) {
    top[-i] = nullptr;
  }
  fibers[index] = top - 8;
}

}  // namespace

char* stack_of(unsigned fiber) { return stacks + fiber * stack_bytes; }

void use_fibers(unsigned count, void (*body)(unsigned)) {
  run_body = body;
  if (stacks == nullptr) {
    void* memory = mmap(nullptr, most_fibers * stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      throw std::bad_alloc();
    }
    stacks = static_cast<char*>(memory);
  }
  for (unsigned index = 0; index < count; ++index) {
    if (fibers[index] == nullptr) {
      prepare(index);
    }
  }
}

void resume(unsigned index) {
  current = index;
  leave_scheduler(index);
  simt_switch(&scheduler, fibers[index]);
  arrive_in_scheduler();
}

void suspend() {
  void* fake = nullptr;
  leave_fiber(&fake);
  simt_switch(&fibers[current], scheduler);
  arrive_in_fiber(fake);
}

void forget_fibers() {
  for (void*& fiber : fibers) {
    fiber = nullptr;
  }
}

void abandon() {
  forget_fibers();
  leave_fiber(nullptr);
  void* nowhere;
  simt_switch(&nowhere, scheduler);
  __builtin_unreachable();
}

}  // namespace simt
