// Memory with every access watched: kernels are compiled with -fsanitize=thread, which puts a call before each load and
// store (hooks.cpp). Each call comes here, and is checked against what the kernel may touch, before the access is made.
#include "memory.h"

#include <algorithm>
#include <iterator>

#include "fibers.h"
#include "program.h"
#include "regions.h"
#include "simt/atomics.h"
#include "watch.h"

namespace simt {
namespace {

constexpr size_t gap = 1 << 20;        // on both sides of memory: what lands there missed it

const Program program = read_program();

// An address space of its own, with the gap on both sides.
struct Space {
  size_t bytes;
  char* first;
  explicit Space(size_t bytes) : bytes(bytes + 2 * gap), first(static_cast<char*>(reserve(this->bytes))) {}
  ~Space() { give_back(first, bytes); }
  char* data() const { return first + gap; }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data()); }
};

Space dynamic_space(most_shared_bytes);
Region dynamic_memory("the dynamic shared memory", Kind::shared, dynamic_space.address(), most_shared_bytes, 1);

std::vector<Region*> regions = [] {
  std::vector<Region*> all = {&dynamic_memory};
  for (const Variable& one : program.shared) {
    all.push_back(new Region(one.name, Kind::shared, one.begin, one.bytes, 1));
  }
  return all;
}();

size_t hash(const void* code) { return reinterpret_cast<uintptr_t>(code) * 0x9E3779B97F4A7C15u >> 52; }

// Code that accesses memory, numbered as it comes up in a launch.
class Sites {
 public:
  static constexpr unsigned most = 4095;

  // `most` when there are too many.
  unsigned number(const void* code) {
    size_t at = hash(code);
    while (entries_[at].code != nullptr && entries_[at].code != code) {
      at = (at + 1) % (most + 1);
    }
    if (entries_[at].code == nullptr && count_ < most) {
      entries_[at] = {code, count_++};
    }
    return entries_[at].code == code ? entries_[at].number : most;
  }
  void clear() {
    std::fill(std::begin(entries_), std::end(entries_), Entry{});
    count_ = 0;
  }

 private:
  struct Entry {
    const void* code;
    unsigned number;
  };
  Entry entries_[most + 1] = {};
  unsigned count_ = 0;
};

Sites sites;

// ---------------------------------------------------------------- checks

const char* const verbs[] = {"reads", "writes", "changes atomically"};

struct Touch {
  const Thread& thread;
  Access access;
  uintptr_t address;
  size_t size;
  const void* code;

  std::string describe(const std::string& where) const {
    return std::string(verbs[static_cast<int>(access)]) + " " + std::to_string(size) + " bytes " + where + " at " +
           describe_code(code);
  }
  std::string describe(const Region& region) const {
    const int64_t offset = static_cast<int64_t>(address - region.begin);
    return describe("at offset " + std::to_string(offset) + " of " + region.name);
  }
};

Region* region_of_code[4096] = {};     // where it went last; most code stays with one region

Region* find_region(uintptr_t address, const void* code) {
  Region*& last = region_of_code[hash(code)];
  if (last == nullptr || !last->holds(address)) {
    const auto found = std::find_if(regions.begin(), regions.end(), [&](Region* region) { return region->holds(address); });
    last = found == regions.end() ? nullptr : *found;
  }
  return last;
}

[[noreturn]] void fail_outside(const Touch& touch) {
  const uintptr_t stacks = reinterpret_cast<uintptr_t>(stack_of(0));
  if (const uintptr_t number = (touch.address - stacks) / stack_bytes; number < block.threads) {
    fail(touch.thread, [=] {
      return touch.describe("of the stack of " + describe_thread(static_cast<unsigned>(number)));
    });
  }
  const Region& nearest = **std::min_element(regions.begin(), regions.end(), [&](Region* a, Region* b) {
    return a->distance(touch.address) < b->distance(touch.address);
  });
  if (nearest.distance(touch.address) > gap) {
    fail(touch.thread, [=] { return touch.describe("of memory that is not the device's"); });
  }
  fail(touch.thread, [touch, &nearest] {
    return touch.describe(nearest) + ", which has " + std::to_string(nearest.bytes) + " bytes";
  });
}

bool is_constant(uintptr_t address) {
  const uintptr_t packed = reinterpret_cast<uintptr_t>(block.launch.packed);
  return address - packed < block.launch.packed_bytes || program.image.holds(address);
}

[[noreturn]] void fail_race(const Touch& touch, const Region& region, const Conflict& other) {
  fail(touch.thread, [touch, &region, other] {
    const unsigned number = other.mark->warp * warp_size + static_cast<unsigned>(other.lane);
    const void* code = reinterpret_cast<const void*>(program.image.begin + other.mark->site);
    return "race: " + touch.describe(region) + ", which " + describe_block_of(other.mark->epoch) + ", " +
           describe_thread(number) + " " + other.did + " at " + describe_code(code) + ", and nothing orders the two";
  });
}

void check_granules(const Touch& touch, Region& region) {
  const uint32_t since = region.since();
  const uint32_t site = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(touch.code) - program.image.begin);
  const uint64_t first = (touch.address - region.begin) >> region.shift;
  const uint64_t last = (touch.address + touch.size - 1 - region.begin) >> region.shift;
  for (uint64_t i = first; i <= last; ++i) {
    Granule& granule = region.granules[i];
    if (touch.access != Access::write && !region.is_written(granule)) {
      fail(touch.thread, [touch, &region] { return touch.describe(region) + ", which nothing has written yet"; });
    }
    if (const Conflict other = find_conflict(granule, touch.access, touch.thread, since); other.mark != nullptr) {
      fail_race(touch, region, other);
    }
    note(granule, touch.access, touch.thread, site, since);
  }
}

bool is_misaligned(const Touch& touch) {
  return touch.size <= 16 && (touch.size & (touch.size - 1)) == 0 && (touch.address & (touch.size - 1)) != 0;
}

}  // namespace

void watch(Access access, const void* pointer, size_t size, const void* code) {
  const Outside outside;
  count_access(outside.thread(), code);
  const Touch touch{outside.thread(), access, reinterpret_cast<uintptr_t>(pointer), size, code};
  if (touch.address - reinterpret_cast<uintptr_t>(stack_of(touch.thread.number)) < stack_bytes) {
    return;
  }
  Region* region = find_region(touch.address, code);
  if (region == nullptr && access == Access::read && is_constant(touch.address)) {
    return;
  }
  if (region == nullptr || touch.address + size > region->begin + region->bytes) {
    fail_outside(touch);
  }
  if (is_misaligned(touch)) {
    fail(touch.thread, [=] { return touch.describe(*region) + ", which is not aligned to its size"; });
  }
  check_granules(touch, *region);
  const unsigned site = sites.number(code);
  if (site == Sites::most) {
    fail(touch.thread, [] { return "the kernel accesses memory from more than " + std::to_string(Sites::most) + " places"; });
  }
  region->count(access, touch.thread, site, touch.address, size);
}

void note_atomic(const void* address, size_t bytes, const void* site) {
  if (running != nullptr) {
    watch(Access::atomic, address, bytes, site);
  }
}

// ---------------------------------------------------------------- what the scheduler and the host ask for

void begin_launch() {
  sites.clear();
  forget_shared_traffic();
  dynamic_memory.bytes = block.launch.shared_bytes;
}

void begin_block() {}

void* dynamic_shared_memory() { return dynamic_space.data(); }

namespace {

struct Allocation {
  Space space;
  Region region;
  Allocation(const char* name, size_t bytes, size_t granule)
      : space(bytes), region("buffer '" + std::string(name) + "'", Kind::global, space.address(), bytes, granule) {}
};

Region& region_of(void* details) { return static_cast<Allocation*>(details)->region; }

}  // namespace

Memory::Memory(const char* name, size_t bytes, size_t granule) {
  auto* allocation = new Allocation(name, bytes, granule);
  data_ = allocation->space.data();
  details_ = allocation;
  regions.push_back(&allocation->region);
}

Memory::~Memory() {
  regions.erase(std::find(regions.begin(), regions.end(), &region_of(details_)));
  std::fill(std::begin(region_of_code), std::end(region_of_code), nullptr);
  delete static_cast<Allocation*>(details_);
}

void Memory::mark_written(size_t first, size_t bytes) {
  Region& region = region_of(details_);
  for (size_t i = first >> region.shift; i < (first + bytes) >> region.shift; ++i) {
    region.granules[i].written = 1;    // before every launch
  }
}

void Memory::require_written() const {
  Region& region = region_of(details_);
  for (size_t i = 0; i < region.bytes >> region.shift; ++i) {
    if (region.granules[i].written == 0) {
      throw Failure(region.name + ": nothing has written the byte at offset " + std::to_string(i << region.shift));
    }
  }
}

Traffic Memory::loads() const { return region_of(details_).traffic[static_cast<int>(Access::read)]; }

Traffic Memory::stores() const { return region_of(details_).traffic[static_cast<int>(Access::write)]; }

Traffic Memory::atomics() const { return region_of(details_).traffic[static_cast<int>(Access::atomic)]; }

}  // namespace simt
