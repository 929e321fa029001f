// Memory that kernels may touch, with a record of every granule and the bytes moved.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "races.h"
#include "simt/buffer.h"

namespace simt {

constexpr unsigned access_kinds = 3;

// Large arrays of zeros that occupy memory only where they are touched.
void* reserve(size_t bytes);
void give_back(void* memory, size_t bytes);

template <typename T>
class Zeros {
 public:
  explicit Zeros(size_t count) : bytes_(count * sizeof(T)), first_(static_cast<T*>(reserve(bytes_))) {}
  ~Zeros() { give_back(first_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  T& operator[](size_t i) { return first_[i]; }

 private:
  size_t bytes_;
  T* first_;
};

enum class Kind { global, shared };

void forget_shared_traffic();

class Region {
 public:
  // `granule` is a power of two.
  Region(std::string name, Kind kind, uintptr_t begin, size_t bytes, size_t granule);

  bool holds(uintptr_t address) const { return address - begin < bytes; }
  uint64_t distance(uintptr_t address) const;
  uint32_t since() const { return kind == Kind::global ? block.launch_epoch : block.first_epoch; }
  bool is_written(const Granule& granule) const {
    return kind == Kind::global ? granule.written != 0 : granule.written >= block.first_epoch;
  }
  void count(Access access, const Thread& thread, unsigned site, uintptr_t address, uint64_t size);

  std::string name;
  Kind kind;
  uintptr_t begin;
  size_t bytes;
  unsigned shift;                                   // of an offset, to the number of its granule
  Zeros<Granule> granules;
  Traffic traffic[access_kinds] = {};

 private:
  void count_sectors(Access access, const Thread& thread, unsigned site, uintptr_t address, uint64_t size);
  static void count_words(const Thread& thread, unsigned site, uintptr_t address, uint64_t size);

  Zeros<uint32_t> touched_[access_kinds];           // epoch of the last access to each sector
};

}  // namespace simt
