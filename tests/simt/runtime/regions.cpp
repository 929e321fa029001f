#include "regions.h"

#include <sys/mman.h>

#include <new>

#include "memory.h"
#include "warp_log.h"

namespace simt {
namespace {

WarpLog logs[most_threads / warp_size];
SharedTraffic shared_traffic_;

}  // namespace

void* reserve(size_t bytes) {
  void* memory = mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw std::bad_alloc();
  }
  return memory;
}

void give_back(void* memory, size_t bytes) { munmap(memory, bytes + 1); }

void align_lanes(unsigned warp) { logs[warp].align(); }

Region::Region(std::string name, Kind kind, uintptr_t begin, size_t bytes, size_t granule)
    : name(std::move(name)),
      kind(kind),
      begin(begin),
      bytes(bytes),
      shift(static_cast<unsigned>(__builtin_ctzl(granule))),
      granules((bytes >> shift) + 1),
      touched_{Zeros<uint32_t>(bytes / sector_bytes + 1), Zeros<uint32_t>(bytes / sector_bytes + 1),
               Zeros<uint32_t>(bytes / sector_bytes + 1)} {}

uint64_t Region::distance(uintptr_t address) const {
  return address < begin ? begin - address : holds(address) ? 0 : address - (begin + bytes) + 1;
}

void Region::count(Access access, const Thread& thread, unsigned site, uintptr_t address, uint64_t size) {
  if (kind == Kind::global) {
    count_sectors(access, thread, site, address, size);
  } else {
    count_words(thread, site, address, size);
  }
}

void Region::count_sectors(Access access, const Thread& thread, unsigned site, uintptr_t address, uint64_t size) {
  Traffic& own = traffic[static_cast<int>(access)];
  own.requested += size;
  WarpLog& log = logs[thread.warp];
  Execution& execution = log.execute(thread.lane, site);
  for (uint64_t sector = address / sector_bytes; sector <= (address + size - 1) / sector_bytes; ++sector) {
    own.moved += log.touch(execution, sector) ? sector_bytes : 0;
    uint32_t& touched = touched_[static_cast<int>(access)][sector - begin / sector_bytes];
    own.per_block += touched < block.first_epoch ? sector_bytes : 0;
    own.per_launch += touched < block.launch_epoch ? sector_bytes : 0;
    touched = block.epoch;
  }
}

void Region::count_words(const Thread& thread, unsigned site, uintptr_t address, uint64_t size) {
  WarpLog& log = logs[thread.warp];
  Execution& execution = log.execute(thread.lane, site);
  shared_traffic_.accesses += execution.units == 0;
  for (uint64_t word = address / word_bytes; word <= (address + size - 1) / word_bytes; ++word) {
    if (log.touch(execution, word) && ++execution.words[word % banks] > execution.wavefronts) {
      ++execution.wavefronts;
      ++shared_traffic_.wavefronts;
    }
  }
}

SharedTraffic shared_traffic() { return shared_traffic_; }

void forget_shared_traffic() { shared_traffic_ = {}; }

}  // namespace simt
