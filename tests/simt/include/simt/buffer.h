// Global memory of the device: buffers of exactly the size they need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace simt {

// Bytes that a kernel moved to or from a buffer, in all launches since the buffer was made. Only where accesses are
// watched; zero elsewhere.
struct Traffic {
  uint64_t requested;         // sum over the accesses of all threads
  uint64_t moved;             // in sectors of 32 bytes, each once for one instruction of one warp
  uint64_t per_block;         // the same, each once for one block: with a cache that forgets nothing within a block
  uint64_t per_launch;        // the same, each once for one launch: the least that must come from, or go to, memory
};

// Shared memory in the last launch. Its 32 banks give one word of 4 bytes each at a time.
struct SharedTraffic {
  uint64_t accesses;          // instructions, each once for a warp
  uint64_t wavefronts;        // times that the banks were read or written: as many as words that an access has in one bank
};
SharedTraffic shared_traffic();

// Untyped memory. A "granule" is a step of the checks: accesses to parts of one are accesses to all of it.
class Memory {
 public:
  Memory(const char* name, size_t bytes, size_t granule);       // never written
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  void* data() const { return data_; }
  void mark_written(size_t first, size_t bytes);
  void require_written() const;                                 // all of it; throws Failure
  Traffic loads() const;
  Traffic stores() const;
  Traffic atomics() const;

 private:
  void* data_;
  void* details_;
};

template <typename T>
constexpr size_t granule_of() {
  return sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0 ? sizeof(T) : 1;
}

template <typename T>
class Buffer {
 public:
  // For results: reading what was never written is a failure.
  Buffer(const char* name, size_t size) : size_(size), memory_(name, size * sizeof(T), granule_of<T>()) {}

  Buffer(const char* name, const std::vector<T>& values) : Buffer(name, values.size()) {
    std::copy(values.begin(), values.end(), data());
    memory_.mark_written(0, size_ * sizeof(T));
  }

  T* data() const { return static_cast<T*>(memory_.data()); }
  size_t size() const { return size_; }

  // The host's own write of one element: enough for buffers too large to fill.
  void set(size_t i, T value) {
    data()[i] = value;
    memory_.mark_written(i * sizeof(T), sizeof(T));
  }

  // All elements, every one of which must have been written.
  std::vector<T> values() const {
    memory_.require_written();
    return std::vector<T>(data(), data() + size_);
  }

  Traffic loads() const { return memory_.loads(); }
  Traffic stores() const { return memory_.stores(); }
  Traffic atomics() const { return memory_.atomics(); }

 private:
  size_t size_;
  Memory memory_;
};

}  // namespace simt
