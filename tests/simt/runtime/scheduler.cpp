// Blocks run one after another, the threads of one in turns: each until it waits, in an order that can be chosen.
#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "fibers.h"
#include "memory.h"
#include "threads.h"

namespace simt {

Thread threads[most_threads];
Block block;
Thread* running = nullptr;

namespace {

constexpr uint32_t most_accesses = 1 << 24;        // of a thread that does not let others run
constexpr size_t shared_bytes_by_default = 48 << 10;

Order order = Order::forward;
std::mt19937 generator;
std::vector<Thread*> ready;            // the next one is the last
std::vector<Thread*> next_ready;       // becomes `ready` when that is empty
unsigned done = 0, in_block = 0;
Thread* first_in_block = nullptr;
bool in_fiber = false;
struct Fault {
  const Thread* thread = nullptr;
  std::function<std::string()> what;
};
Fault fault;                           // of a fiber, on its way to the scheduler
std::vector<unsigned> block_epochs;    // first epoch of each block of the launch, by number
std::map<const void*, size_t> allowed_shared_bytes;

void wake(Thread& thread) {
  thread.state = State::ready;
  next_ready.push_back(&thread);
}

Thread* take_ready() {
  if (ready.empty()) {
    std::swap(ready, next_ready);
    if (order == Order::forward) {
      std::reverse(ready.begin(), ready.end());
    } else if (order == Order::shuffled) {
      std::shuffle(ready.begin(), ready.end(), generator);
    }
  }
  Thread* thread = ready.empty() ? nullptr : ready.back();
  if (thread != nullptr) {
    ready.pop_back();
  }
  return thread;
}

std::string describe_wait(const Thread& thread) {
  switch (thread.state) {
    case State::done:
      return "has left the kernel";
    case State::in_block:
    case State::in_warp: {
      char mask[32] = "";
      if (thread.state == State::in_warp) {
        std::snprintf(mask, sizeof(mask), " with mask 0x%08x", thread.mask);
      }
      return std::string("waits in ") + thread.name + mask + " (" + describe(thread.place) + ")";
    }
    default:
      return "runs";
  }
}

// Why a thread waits in vain: another that is elsewhere for good.
[[noreturn]] void fail_waiting(const Thread& thread, const Thread& other) {
  fail(thread, [&thread, &other] {
    return describe_wait(thread) + " for " + describe_thread(other.number) + ", which " + describe_wait(other);
  });
}

void run_thread(unsigned number) {
  running = &threads[number];
  block.launch.call(block.launch.packed);
  running = nullptr;
  threads[number].state = State::done;
  ++done;
  if (in_block > 0) {
    fail_waiting(*first_in_block, threads[number]);
  }
}

// ---------------------------------------------------------------- warps

Thread* warp_of(const Thread& thread) { return threads + thread.warp * warp_size; }

unsigned lanes_of(const Thread* warp) {
  return static_cast<unsigned>(std::min<ptrdiff_t>(warp_size, threads + block.threads - warp));
}

unsigned waiting[most_threads / warp_size];        // lanes of each warp

// The first lane of the thread's mask that is not there to meet it; null where all are.
Thread* find_absent(const Thread& thread) {
  Thread* warp = warp_of(thread);
  for (unsigned lanes = thread.mask; lanes != 0; lanes &= lanes - 1) {
    Thread& other = warp[__builtin_ctz(lanes)];
    if (other.state != State::in_warp || other.mask != thread.mask || other.name != thread.name ||
        other.place.line != thread.place.line) {
      return &other;
    }
  }
  return nullptr;
}

// What one lane has seen, all have seen.
void join_clocks(Thread* warp, unsigned mask) {
  uint32_t joined[warp_size] = {};
  for (unsigned lanes = mask; lanes != 0; lanes &= lanes - 1) {
    Thread& thread = warp[__builtin_ctz(lanes)];
    thread.clock[thread.lane] = thread.time++;
    for (unsigned lane = 0; lane < warp_size; ++lane) {
      joined[lane] = std::max(joined[lane], thread.clock[lane]);
    }
  }
  for (unsigned lanes = mask; lanes != 0; lanes &= lanes - 1) {
    std::copy(joined, joined + warp_size, warp[__builtin_ctz(lanes)].clock);
  }
}

void release_warp(Thread& last) {
  Thread* warp = warp_of(last);
  unsigned ballot = 0;
  for (unsigned lanes = last.mask; lanes != 0; lanes &= lanes - 1) {
    ballot |= (warp[__builtin_ctz(lanes)].value != 0 ? lanes & -lanes : 0);
  }
  for (unsigned lanes = last.mask; lanes != 0; lanes &= lanes - 1) {
    Thread& thread = warp[__builtin_ctz(lanes)];
    if ((last.mask >> thread.source & 1) == 0) {
      fail(thread, [&thread] {
        return std::string(thread.name) + " reads lane " + std::to_string(thread.source) +
               ", which its mask leaves out (" + describe(thread.place) + ")";
      });
    }
    thread.exchanged = {warp[thread.source].value, ballot};
  }
  for (unsigned lanes = last.mask; lanes != 0; lanes &= lanes - 1) {
    wake(warp[__builtin_ctz(lanes)]);
  }
  waiting[last.warp] &= ~last.mask;
  if (last.mask == ~0u >> (warp_size - lanes_of(warp))) {
    align_lanes(last.warp);
  }
}

[[noreturn]] void refuse(const Thread& thread, const char* name, const char* reason, Place place) {
  fail(thread, [=] { return std::string(name) + ": " + reason + " (" + describe(place) + ")"; });
}

Exchanged meet(Thread& thread, const char* name, unsigned mask, uint64_t value, unsigned source, Place place,
               bool orders_memory) {
  thread.name = name;
  thread.place = place;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  const unsigned existing = ~0u >> (warp_size - lanes_of(warp_of(thread)));
  if ((mask >> thread.lane & 1) == 0) {
    refuse(thread, name, "the mask leaves out the calling lane", place);
  }
  if (mask > existing) {
    refuse(thread, name, "the mask names lanes beyond the end of the block", place);
  }
  thread.state = State::in_warp;
  waiting[thread.warp] |= 1u << thread.lane;
  if ((mask & ~waiting[thread.warp]) == 0 && find_absent(thread) == nullptr) {
    if (orders_memory) {
      join_clocks(warp_of(thread), mask);
    }
    release_warp(thread);
  }
  suspend();
  return thread.exchanged;
}

// ---------------------------------------------------------------- blocks

void align_all_lanes() {
  for (unsigned warp = 0; warp * warp_size < block.threads; ++warp) {
    align_lanes(warp);
  }
}

bool is_done(const Thread& thread) { return thread.state == State::done; }

void release_block() {
  uint64_t ones = 0;
  for (unsigned number = 0; number < block.threads; ++number) {
    ones += threads[number].value;
  }
  for (unsigned number = 0; number < block.threads; ++number) {
    threads[number].exchanged.value = ones;
    wake(threads[number]);
  }
  in_block = 0;
  ++block.epoch;
  align_all_lanes();
}

void prepare_threads() {
  const dim3 size = block.launch.block;
  done = in_block = 0;
  std::fill(std::begin(waiting), std::end(waiting), 0);
  ready.clear();
  next_ready.clear();
  for (unsigned number = 0; number < block.threads; ++number) {
    Thread& thread = threads[number] = {};
    thread.number = number;
    thread.warp = number / warp_size;
    thread.lane = number % warp_size;
    thread.index = {number % size.x, number / size.x % size.y, number / size.x / size.y};
    thread.time = 1;
    wake(thread);
  }
}

[[noreturn]] void fail_stuck() {
  for (unsigned number = 0; number < block.threads; ++number) {
    if (threads[number].state == State::in_warp) {
      fail_waiting(threads[number], *find_absent(threads[number]));
    }
  }
  throw std::logic_error("no thread is ready, and none waits in a warp");
}

[[noreturn]] void throw_fault() {
  const Fault own = std::exchange(fault, {});
  throw Failure(describe_kernel(block.launch.kernel) + ", " + describe_block(block.index) + ", " +
                describe_thread(own.thread->number) + ": " + own.what());
}

void run_block() {
  block.first_epoch = ++block.epoch;
  block_epochs.push_back(block.epoch);
  begin_block();
  prepare_threads();
  while (done < block.threads) {
    Thread* thread = take_ready();
    if (thread == nullptr) {
      fail_stuck();
    }
    thread->accesses = 0;
    in_fiber = true;
    resume(thread->number);
    in_fiber = false;
    if (fault.thread != nullptr) {
      throw_fault();
    }
  }
  align_all_lanes();
}

void check_limits(const Launch& launch) {
  const dim3 b = launch.block, g = launch.grid;
  const auto refuse = [&](const std::string& what) {
    throw Failure("launch of " + describe_kernel(launch.kernel) + ": " + what);
  };
  if (b.x == 0 || b.y == 0 || b.z == 0 || uint64_t(b.x) * b.y * b.z > most_threads || b.z > 64) {
    refuse("a block has 1 to 1024 threads, at most 64 of them along z; got " + std::to_string(b.x) + " x " +
           std::to_string(b.y) + " x " + std::to_string(b.z));
  }
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7FFFFFFF || g.y > 65535 || g.z > 65535) {
    refuse("a grid has 1 to 2147483647 x 65535 x 65535 blocks; got " + std::to_string(g.x) + " x " +
           std::to_string(g.y) + " x " + std::to_string(g.z));
  }
  const auto found = allowed_shared_bytes.find(launch.kernel);
  const size_t allowed = found == allowed_shared_bytes.end() ? shared_bytes_by_default : found->second;
  if (launch.shared_bytes > allowed) {
    refuse(std::to_string(launch.shared_bytes) + " bytes of dynamic shared memory, of which " +
           std::to_string(allowed) + " are allowed (cudaFuncAttributeMaxDynamicSharedMemorySize)");
  }
}

}  // namespace

void fail(const Thread& thread, std::function<std::string()> what) {
  fault = {&thread, std::move(what)};
  if (in_fiber) {
    abandon();
  }
  forget_fibers();
  throw_fault();
}

void count_access(Thread& thread, const void* code) {
  if (++thread.accesses > most_accesses) {
    fail(thread, [code] { return "waits for something that no other thread can do meanwhile, at " + describe_code(code); });
  }
}

std::string describe_block_of(unsigned epoch) {
  const auto after = std::upper_bound(block_epochs.begin(), block_epochs.end(), epoch);
  const auto number = static_cast<unsigned>(after - block_epochs.begin() - 1);
  const dim3 grid = block.launch.grid;
  return describe_block({number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y});
}

void set_order(Order chosen, unsigned seed) {
  order = chosen;
  generator.seed(seed);
}

void allow_shared_bytes(const void* kernel, size_t bytes) {
  if (bytes > most_shared_bytes) {
    throw Failure(describe_kernel(kernel) + ": " + std::to_string(bytes) +
                  " bytes of dynamic shared memory; a block has at most " + std::to_string(most_shared_bytes));
  }
  allowed_shared_bytes[kernel] = bytes;
}

void run(const Launch& launch) {
  check_limits(launch);
  block.launch = launch;
  block.threads = launch.block.x * launch.block.y * launch.block.z;
  block.launch_epoch = block.epoch + 1;
  block_epochs.clear();
  use_fibers(block.threads, run_thread);
  begin_launch();
  for (block.index.z = 0; block.index.z < launch.grid.z; ++block.index.z) {
    for (block.index.y = 0; block.index.y < launch.grid.y; ++block.index.y) {
      for (block.index.x = 0; block.index.x < launch.grid.x; ++block.index.x) {
        run_block();
      }
    }
  }
}

uint3 thread_index() { return running->index; }
uint3 block_index() { return block.index; }
dim3 block_size() { return block.launch.block; }
dim3 grid_size() { return block.launch.grid; }
unsigned lane_index() { return running->lane; }

Votes block_barrier(const char* name, bool vote, Place place) {
  const Outside outside;
  Thread& thread = outside.thread();
  thread.name = name;
  thread.place = place;
  thread.value = vote;
  thread.state = State::in_block;
  if (in_block++ == 0) {
    first_in_block = &thread;
  }
  if (done > 0) {
    fail_waiting(thread, *std::find_if(threads, threads + block.threads, is_done));
  }
  if (first_in_block->place.line != place.line || first_in_block->name != name) {
    fail_waiting(thread, *first_in_block);
  }
  if (in_block == block.threads) {
    release_block();
  }
  suspend();
  return {static_cast<int>(thread.exchanged.value), static_cast<int>(block.threads)};
}

Exchanged warp_exchange(const char* name, unsigned mask, uint64_t value, unsigned source, Place place) {
  const Outside outside;
  return meet(outside.thread(), name, mask, value, source, place, false);
}

void warp_barrier(unsigned mask, Place place) {
  const Outside outside;
  meet(outside.thread(), "__syncwarp", mask, 0, outside.thread().lane, place, true);
}

void refuse(const char* name, const char* reason, Place place) {
  const Outside outside;
  refuse(outside.thread(), name, reason, place);
}

}  // namespace simt
