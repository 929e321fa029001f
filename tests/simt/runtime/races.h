// Who touched a granule of memory last, and whether that was ordered before an access that comes now.
//
// Ordered are: accesses of one thread; of threads of one block with a block barrier between them, which shows in the
// epoch; of lanes of one warp with __syncwarp between them, which shows in the lanes' clocks; of different launches.
// Not ordered is everything else, above all accesses of different blocks of one launch. Two accesses that are not
// ordered race, unless both read or both are atomic.
//
// A mark stands for lanes of one warp in one epoch. For accesses that may be many at a time (reads, atomics) there are
// two: of the first warp and of the last, among those that later accesses of the block may race with. If a later access
// races with any of the others, it races with one of the two.
#pragma once

#include <cstdint>

#include "threads.h"

namespace simt {

struct Mark {
  uint32_t epoch;
  uint32_t lanes;
  uint32_t time : 24;                  // of the lanes
  uint32_t warp : 8;
  uint32_t site;                       // of the last one's code
};

struct Granule {
  uint32_t written;                    // epoch of the last write; 0 for never
  Mark write;
  Mark reads[2];
  Mark atomics[2];
};

enum class Access { read, write, atomic };

// A lane of the mark that `thread` is not ordered after; -1 if there is none. Marks before epoch `since` do not count.
inline int find_unordered(const Mark& mark, const Thread& thread, uint32_t since) {
  if (mark.epoch < since) {
    return -1;
  }
  if (mark.epoch < block.first_epoch || (mark.epoch == block.epoch && mark.warp != thread.warp)) {
    return __builtin_ctz(mark.lanes);
  }
  if (mark.epoch == block.epoch) {
    for (uint32_t lanes = mark.lanes & ~(1u << thread.lane); lanes != 0; lanes &= lanes - 1) {
      const int lane = __builtin_ctz(lanes);
      if (thread.clock[lane] < mark.time) {
        return lane;
      }
    }
  }
  return -1;
}

inline Mark mark_of(const Thread& thread, uint32_t site) {
  return {block.epoch, 1u << thread.lane, thread.time, thread.warp, site};
}

// Adds the thread to a mark of its own warp and epoch. Lanes that it is ordered after need no mention any more.
inline void join_mark(Mark& mark, const Thread& thread, uint32_t site) {
  if (mark.time != thread.time && find_unordered(mark, thread, block.epoch) < 0) {
    mark = mark_of(thread, site);
    return;
  }
  mark.lanes |= 1u << thread.lane;
  mark.time = mark.time > thread.time ? mark.time : thread.time;
  mark.site = site;
}

inline void note(Mark (&marks)[2], const Thread& thread, uint32_t site, uint32_t since) {
  for (Mark& mark : marks) {
    if (mark.epoch == block.epoch && mark.warp == thread.warp) {
      return join_mark(mark, thread, site);
    }
  }
  // Free, or superseded by now: marks of this block before its last barrier.
  for (Mark& mark : marks) {
    if (mark.epoch < since || (mark.epoch >= block.first_epoch && mark.epoch < block.epoch)) {
      mark = mark_of(thread, site);
      return;
    }
  }
  marks[1] = mark_of(thread, site);
}

struct Conflict {
  const Mark* mark;                    // null for none
  int lane;
  const char* did;
};

inline Conflict find_conflict(const Granule& granule, Access access, const Thread& thread, uint32_t since) {
  struct Rule {
    const Mark* mark;
    bool applies;
    const char* did;
  };
  const bool reads = access == Access::read, atomic = access == Access::atomic;
  const Rule rules[] = {
      {&granule.write, true, "writes"},
      {&granule.atomics[0], !atomic, "changes atomically"},
      {&granule.atomics[1], !atomic, "changes atomically"},
      {&granule.reads[0], !reads, "reads"},
      {&granule.reads[1], !reads, "reads"},
  };
  for (const Rule& rule : rules) {
    if (rule.applies && rule.mark->epoch >= since) {
      if (const int lane = find_unordered(*rule.mark, thread, since); lane >= 0) {
        return {rule.mark, lane, rule.did};
      }
    }
  }
  return {nullptr, 0, nullptr};
}

inline void note(Granule& granule, Access access, const Thread& thread, uint32_t site, uint32_t since) {
  switch (access) {
    case Access::read:
      note(granule.reads, thread, site, since);
      break;
    case Access::write:
      granule.write = mark_of(thread, site);
      granule.written = block.epoch;
      break;
    case Access::atomic:
      note(granule.atomics, thread, site, since);
      granule.written = block.epoch;
  }
}

}  // namespace simt
