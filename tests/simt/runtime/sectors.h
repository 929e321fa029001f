// What the accesses of a warp move: in sectors of 32 bytes, as the memory of the device does.
//
// The lanes of a warp execute an instruction together, and sectors that several of them touch are moved once. Here lanes
// run one after another; their accesses belong together when they come from the same instruction for the same time since
// the lanes were last seen at one place (a barrier, a shuffle, the start).
#pragma once

#include <cstdint>
#include <vector>

#include "threads.h"

namespace simt {

constexpr unsigned sector_bytes = 32;

class SectorLog {
 public:
  // True if no lane of the warp has touched the sector in this execution of the instruction.
  bool add(unsigned lane, unsigned site, bool again, uint64_t sector) {
    Site& own = find(site);
    const uint32_t time = again ? own.counts[lane] - 1 : own.counts[lane]++;
    if (time == own.heads.size()) {
      own.heads.push_back(0);
    }
    return insert(own.heads[time], sector);
  }

  void align() {
    ++stretch_;
    windows_.resize(1);
  }

 private:
  struct Site {
    uint64_t stretch;
    uint32_t counts[warp_size];        // executions by each lane
    std::vector<uint32_t> heads;       // of each execution: its first window
  };
  struct Window {                      // 64 sectors side by side
    uint64_t number, sectors;
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
      own.heads.clear();
    }
    return own;
  }

  bool insert(uint32_t& head, uint64_t sector) {
    const uint64_t bit = uint64_t(1) << (sector & 63);
    for (uint32_t at = head; at != 0; at = windows_[at].next) {
      Window& window = windows_[at];
      if (window.number == sector >> 6) {
        const bool is_new = (window.sectors & bit) == 0;
        window.sectors |= bit;
        return is_new;
      }
    }
    windows_.push_back({sector >> 6, bit, head});
    head = static_cast<uint32_t>(windows_.size() - 1);
    return true;
  }

  uint64_t stretch_ = 1;
  std::vector<Site> sites_;
  std::vector<Window> windows_{1};     // the first one stands for "none"
};

}  // namespace simt
