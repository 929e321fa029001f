#include "fibers.h"

#include <csetjmp>
#include <sys/mman.h>
#include <ucontext.h>

#include <new>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace simt {
namespace {

struct Fiber {
  jmp_buf context;
  ucontext_t start;                    // for the first entry; setjmp is quicker afterwards
  bool started;
};

constexpr unsigned most_fibers = 1024;

Fiber fibers[most_fibers];
char* stacks = nullptr;
void (*run_body)(unsigned) = nullptr;
unsigned current = 0;
jmp_buf scheduler;

// AddressSanitizer has to know the stack that it is on.
#ifdef __SANITIZE_ADDRESS__
void* scheduler_fake = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_bytes = 0;
void leave_scheduler(unsigned to) {
  __sanitizer_start_switch_fiber(&scheduler_fake, stack_of(to), stack_bytes);
}
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

void prepare(unsigned index) {
  Fiber& fiber = fibers[index];
  clean_stack(index);
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = stack_of(index);
  fiber.start.uc_stack.ss_size = stack_bytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, enter, 0);
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
    if (!fibers[index].started) {
      prepare(index);
    }
  }
}

void resume(unsigned index) {
  Fiber& fiber = fibers[index];
  current = index;
  leave_scheduler(index);
  if (_setjmp(scheduler) == 0) {
    if (fiber.started) {
      _longjmp(fiber.context, 1);
    }
    fiber.started = true;
    setcontext(&fiber.start);
  }
  arrive_in_scheduler();
}

void suspend() {
  void* fake = nullptr;
  leave_fiber(&fake);
  if (_setjmp(fibers[current].context) == 0) {
    _longjmp(scheduler, 1);
  }
  arrive_in_fiber(fake);
}

void forget_fibers() {
  for (Fiber& fiber : fibers) {
    fiber.started = false;             // and prepared anew by the next launch
  }
}

void abandon() {
  forget_fibers();
  leave_fiber(nullptr);
  _longjmp(scheduler, 1);
}

}  // namespace simt
