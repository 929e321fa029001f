// The one door for accesses of kernels.
#pragma once

#include <cstddef>

#include "races.h"

namespace simt {

// An access that a kernel is about to make; `code` is where it goes on after it.
void watch(Access access, const void* pointer, size_t size, const void* code);

}  // namespace simt
