// Memory under AddressSanitizer: each buffer, and each launch's dynamic shared memory, is an allocation of its exact
// size, so that a step beyond it is seen. What was never written holds NaNs: all bits are set.
#include "memory.h"

#include <cstring>
#include <memory>

#include "simt/atomics.h"
#include "simt/buffer.h"
#include "threads.h"

namespace simt {
namespace {

std::unique_ptr<char[]> dynamic_shared_bytes;

}  // namespace

void begin_launch() { dynamic_shared_bytes.reset(new char[block.launch.shared_bytes]); }

void begin_block() { std::memset(dynamic_shared_bytes.get(), 0xFF, block.launch.shared_bytes); }

void align_lanes(unsigned) {}

void* dynamic_shared_memory() { return dynamic_shared_bytes.get(); }

void note_atomic(const void*, size_t, const void* site) {
  const Outside outside;
  count_access(outside.thread(), site);
}

Memory::Memory(const char*, size_t bytes, size_t) : data_(std::memset(new char[bytes], 0xFF, bytes)), details_(nullptr) {}

Memory::~Memory() { delete[] static_cast<char*>(data_); }

void Memory::mark_written(size_t, size_t) {}

void Memory::require_written() const {}

Traffic Memory::loads() const { return {}; }

Traffic Memory::stores() const { return {}; }

Traffic Memory::atomics() const { return {}; }

SharedTraffic shared_traffic() { return {}; }

}  // namespace simt
