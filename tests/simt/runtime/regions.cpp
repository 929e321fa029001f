#include "regions.h"

#include <sys/mman.h>

#include <new>

#include "memory.h"
#include "sectors.h"

namespace simt {
namespace {

SectorLog logs[most_threads / warp_size];

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

void Region::count(Access access, const Thread& thread, unsigned site, uint64_t offset, uint64_t size) {
  Traffic& own = traffic[static_cast<int>(access)];
  own.requested += size;
  // Sites may serve several regions, so that the log takes addresses.
  bool again = false;
  for (uint64_t sector = (begin + offset) / sector_bytes; sector <= (begin + offset + size - 1) / sector_bytes; ++sector) {
    own.moved += logs[thread.warp].add(thread.lane, site, again, sector) ? sector_bytes : 0;
    again = true;
    uint32_t& touched = touched_[static_cast<int>(access)][sector - begin / sector_bytes];
    own.per_block += touched < block.first_epoch ? sector_bytes : 0;
    own.per_launch += touched < block.launch_epoch ? sector_bytes : 0;
    touched = block.epoch;
  }
}

}  // namespace simt
