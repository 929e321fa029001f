// What the accesses of a warp move together: sectors of 32 bytes of global memory, words of 4 bytes of shared memory.
//
// The lanes of a warp execute an instruction together, and what several of them touch is moved once. Here lanes run one
// after another; their accesses belong together when they come from the same instruction for the same time since the
// lanes were last seen at one place (a barrier, a shuffle, the start).
#pragma once

#include <cstdint>
#include <vector>

#include "threads.h"

namespace simt {

constexpr unsigned sector_bytes = 32, word_bytes = 4, banks = 32;

// One execution of an instruction by a warp.
struct Execution {
  uint32_t units;                      // what was touched: the first of a list of windows
  uint8_t words[banks];                // different ones in each bank of shared memory
  uint8_t wavefronts;                  // most words in one bank: so often it has to be read
};

class WarpLog {
 public:
  // The next execution of the instruction by the lane.
  Execution& execute(unsigned lane, unsigned site) {
    Site& own = find(site);
    const uint32_t time = own.counts[lane]++;
    if (time == own.executions.size()) {
      own.executions.push_back({});
    }
    return own.executions[time];
  }

  // True if no lane has touched the unit in this execution.
  bool touch(Execution& execution, uint64_t unit) {
    const uint64_t bit = uint64_t(1) << (unit & 63);
    for (uint32_t at = execution.units; at != 0; at = windows_[at].next) {
      Window& window = windows_[at];
      if (window.number == unit >> 6) {
        const bool is_new = (window.units & bit) == 0;
        window.units |= bit;
        return is_new;
      }
    }
    windows_.push_back({unit >> 6, bit, execution.units});
    execution.units = static_cast<uint32_t>(windows_.size() - 1);
    return true;
  }

  // All lanes are at the same place.
  void align() {
    ++stretch_;
    windows_.resize(1);
  }

 private:
  struct Site {
    uint64_t stretch;                  // between two alignments
    uint32_t counts[warp_size];        // executions by each lane
    std::vector<Execution> executions;
  };
  struct Window {                      // 64 units side by side
    uint64_t number, units;
    uint32_t next;
  };

  Site& find(unsigned site) {
    if (site >= sites_.size()) {
      sites_.resize(site + 1);
    }
    Site& own = sites_[site];
    if (own.stretch != stretch_) {
      own.stretch = stretch_;
      for (uint32_t& count : own.counts) {
        count = 0;
      }
      own.executions.clear();
    }
    return own;
  }

  uint64_t stretch_ = 1;
  std::vector<Site> sites_;
  std::vector<Window> windows_{1};     // the first one stands for "none"
};

}  // namespace simt
