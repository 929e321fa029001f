// Fibers: stacks of their own in one operating system thread, between which the runtime switches.
#pragma once

#include <cstddef>

namespace simt {

// Not a power of two: the same place in every stack would be in the same few lines of the processor's caches.
constexpr size_t stack_bytes = (128 << 10) + 67 * 64;

// Fiber i runs body(i) each time it is resumed after body has returned.
void use_fibers(unsigned count, void (*body)(unsigned fiber));
void resume(unsigned fiber);           // returns when the fiber suspends
void suspend();                        // from a fiber; returns when it is resumed
[[noreturn]] void abandon();           // from a fiber: as suspend, and forgets them
void forget_fibers();                  // none goes on where it was
char* stack_of(unsigned fiber);        // its lowest byte

}  // namespace simt
