// Steps of work, spread over threads that are woken once a call.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace torch_sparse_ops {

// Calls work(context) on `count` threads at once, of which the caller may be one, and returns when all have returned.
struct Threads {
  int64_t most;
  void (*run)(int64_t count, void (*work)(void*), void* context);
};

constexpr int64_t kTurns = 2000;                // of waiting for a task, before the core is offered to others
constexpr int64_t kThreadOperations = 1 << 17;  // vector operations that take about 50 microseconds

inline int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// `count` tasks, each of so many vector operations. Which thread runs a task has no influence on the result.
struct Step {
  int64_t count;
  int64_t operations;
  std::function<void(int64_t task, void* scratch)> run;
};

// Steps of which each needs the one before to be done. Lanes do not need each other.
using Lane = std::vector<Step>;

// What threads know of a step: the next task to take, and how many are done.
struct Progress {
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> done{0};
};

// Threads take the next task when they are done with one, so that a thread that is held up by other work on the machine
// does not hold up the rest. A task that is taken is being run: the others wait for it, which is not long.
inline void run_step(const Step& step, Progress& progress, void* scratch) {
  for (int64_t t = progress.next++; t < step.count; t = progress.next++) {
    step.run(t, scratch);
    progress.done.fetch_add(1, std::memory_order_release);
  }
  for (int64_t turn = 0; progress.done.load(std::memory_order_acquire) < step.count; ++turn) {
    if (turn >= kTurns) {
      std::this_thread::yield();
    }
  }
}

// How many threads the lanes are worth. Little work is not worth waking one.
inline int64_t count_threads(const Threads& threads, const std::vector<Lane>& lanes) {
  int64_t operations = 0;
  int64_t tasks = 0;  // at a time
  for (const Lane& lane : lanes) {
    int64_t most = 0;
    for (const Step& step : lane) {
      operations += step.count * step.operations;
      most = std::max(most, step.count);
    }
    tasks += most;
  }
  return std::max<int64_t>(1, std::min({operations / kThreadOperations, tasks, threads.most}));
}

// Runs all lanes. Threads begin with different ones, so that each reads what it has written itself; one whose own lanes are
// done helps with those of the others.
inline void run_lanes(const Threads& threads, int64_t scratch_bytes, const std::vector<Lane>& lanes) {
  const auto count = static_cast<int64_t>(lanes.size());
  const int64_t thread_count = count_threads(threads, lanes);
  std::vector<std::vector<Progress>> progress;
  for (const Lane& lane : lanes) {
    progress.emplace_back(lane.size());
  }
  std::atomic<int64_t> threads_begun{0};
  auto work = [&] {
    const std::unique_ptr<double[]> scratch(new double[divide_up(scratch_bytes, sizeof(double))]);
    const int64_t first = threads_begun++ * count / thread_count;
    for (int64_t i = first; i < first + count; ++i) {
      const Lane& lane = lanes[i % count];
      for (size_t s = 0; s < lane.size(); ++s) {
        run_step(lane[s], progress[i % count][s], scratch.get());
      }
    }
  };
  if (thread_count == 1) {
    work();
  } else {
    threads.run(thread_count, [](void* context) { (*static_cast<decltype(work)*>(context))(); }, &work);
  }
}

}  // namespace torch_sparse_ops
