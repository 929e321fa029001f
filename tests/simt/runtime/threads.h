// The threads of the block that runs, and what each waits for.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "simt/execution.h"

namespace simt {

constexpr unsigned warp_size = 32;
constexpr unsigned most_threads = 1024;             // of a block, as all that follows
constexpr size_t most_shared_bytes = 227 << 10;     // on sm_90, the most of any

enum class State { ready, in_warp, in_block, done };

struct Thread {
  State state;
  unsigned number, warp, lane;         // number: within the block, x fastest
  uint3 index;
  // What it waits for, and what it gets.
  const char* name;
  Place place;
  unsigned mask, source;
  uint64_t value;
  Exchanged exchanged;
  uint32_t accesses;                   // since it was resumed
  // Which lanes' past it knows of: those of its warp up to clock[lane]; see races.h.
  uint32_t time;
  uint32_t clock[warp_size];
};

struct Block {
  Launch launch;
  uint3 index;
  unsigned threads;
  unsigned epoch;                      // counts barriers, blocks and launches; never falls
  unsigned first_epoch;                // of this block
  unsigned launch_epoch;               // of the first block of this launch
};

extern Thread threads[most_threads];
extern Block block;
extern Thread* running;                // null while no kernel code runs

// Code of the runtime that a kernel calls: nothing in it is an access of the kernel.
class Outside {
 public:
  Outside() : thread_(running) { running = nullptr; }
  ~Outside() { running = thread_; }
  Thread& thread() const { return *thread_; }

 private:
  Thread* thread_;
};

// Ends the launch with a Failure that says who did what. The words are found by the scheduler: the stack of the thread is
// given up as it is, with whatever lies on it.
[[noreturn]] void fail(const Thread& thread, std::function<std::string()> what);

// Fails a thread that goes on and on without letting others run.
void count_access(Thread& thread, const void* code);

std::string describe(Place place);
std::string describe_thread(unsigned number);                 // of the block that runs
std::string describe_block(uint3 index);
std::string describe_block_of(unsigned epoch);                // the block of this launch that the epoch belongs to
std::string describe_code(const void* address);               // file and line
std::string describe_kernel(const void* kernel);

}  // namespace simt
