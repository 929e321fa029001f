// How the work is cut, and launchers: raw pointers, sizes and threads. The reasons stand in fixed_fan_in.cpp.

#include "fixed_fan_in_launch.h"

#include <algorithm>
#include <atomic>
#include <memory>

namespace torch_sparse_ops {
namespace {

constexpr int64_t kForwardWidth = kMaxWidth;            // of a tile, at most
constexpr int64_t kBackwardWidth = 32;                  // less, since backward reads and writes two rows a connection
constexpr int64_t kTileBytes = 1 << 20;                 // of a tile that stays in the L2 cache
constexpr int64_t kPackColumns = 512;                   // columns of features packed by one task
constexpr int64_t kForwardConnections = 16384;          // of a chunk: they stay in the L2 cache
constexpr int64_t kTasks = 32;                          // tasks wanted, to occupy many threads
constexpr int64_t kThreadOperations = 1 << 17;          // vector operations that take about 50 microseconds
constexpr int64_t kLanes = 16;                          // values in a vector, where operations are estimated
constexpr int64_t kStreamedBytes = 4 << 20;             // results of this size are written past the caches
constexpr int64_t kExtraBytes = int64_t{64} << 20;      // bound on what backward takes beside its results

int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// ---------------------------------------------------------------- cutting the work

// The width of the next tile for `rows` entries of the batch. The work on a tile grows less than its width, so that a rest
// is taken into one wider tile rather than two narrow ones, unless most of it would stay empty.
int64_t choose_width(int64_t rows, int64_t most) {
  if (rows <= 16) {
    return rows == 1 ? 1 : rows <= 4 ? 4 : rows <= 8 ? 8 : 16;
  }
  return std::min<int64_t>(most, rows <= 48 ? 32 : 64);
}

// Tiles of the whole batch. Wide rows make the best of every location read, as long as a tile stays in the cache; if none
// does, wide rows, again, make the best of every miss.
std::vector<Tile> cut_batch(int64_t batch, int64_t row_bytes, int64_t most) {
  const int64_t fitting = kTileBytes / (row_bytes + 1);
  const int64_t widest = fitting >= most || fitting < 16 ? most : fitting >= 32 ? 32 : 16;
  std::vector<Tile> tiles;
  for (int64_t row = 0, width; row < batch || tiles.empty(); row += width) {
    width = choose_width(batch - row, widest);
    tiles.push_back({row, std::min(width, batch - row), width, row});
  }
  return tiles;
}

const FixedFanInKernels* find_kernels(Capability capability, Value value) {
  const bool is_double = value == Value::float64;
#if defined(__x86_64__)
  switch (capability) {
    case Capability::avx512:
      return &fixed_fan_in_avx512[is_double];
    case Capability::avx2:
      return &fixed_fan_in_avx2[is_double];
    default:
      break;
  }
#endif
  (void)capability;  // all others have one set of kernels
  return &fixed_fan_in_baseline[is_double];
}

Launch plan(Capability capability, const Layer& layer, int64_t batch, int64_t most_width) {
  const bool is_double = layer.value == Value::float64;
  const int64_t value_bytes = is_double ? 8 : 4;
  most_width = is_double ? kMaxDoubleWidth : most_width;
  return {find_kernels(capability, layer.value), layer, batch, value_bytes,
          cut_batch(batch, layer.in_features * value_bytes, most_width)};
}

// The same launch for tiles [first, last) only.
Launch take_tiles(const Launch& launch, int64_t first, int64_t last) {
  Launch group = launch;
  group.tiles.assign(launch.tiles.begin() + first, launch.tiles.begin() + last);
  for (Tile& tile : group.tiles) {
    tile.place -= launch.tiles[first].place;
  }
  return group;
}

// Into how many parts the outputs are cut: enough to occupy many threads, but clearing and adding the copies of the
// gradient of the features may not outweigh the products, and the copies of one tile have to stay within bounds.
int64_t count_parts(const Launch& launch, bool wants_features) {
  int64_t most = std::min(kTasks, divide_up(launch.layer.out_features, kBlock));
  if (wants_features) {
    const int64_t affordable = launch.connections() / (24 * launch.layer.in_features + 1);
    most = std::min({most, std::max<int64_t>(2, affordable), kExtraBytes / (launch.tile_bytes() + 1) - 1});
  }
  int64_t parts = 1;
  while (2 * parts <= most) {
    parts *= 2;
  }
  return parts;
}

// ---------------------------------------------------------------- threads

// Calls task(t, scratch) once for every t < tasks. Threads take the next task when they are done with one, so that a
// thread that is held up by other work on the machine does not hold up the rest; which thread runs a task has no influence
// on the result. Little work is not worth waking a thread.
template <typename Task>
void run_tasks(
    const Threads& threads, int64_t tasks, int64_t operations_per_task, int64_t scratch_bytes, const Task& task) {
  std::atomic<int64_t> next{0};
  auto work = [&] {
    const std::unique_ptr<double[]> scratch(new double[divide_up(scratch_bytes, sizeof(double))]);
    for (int64_t t = next++; t < tasks; t = next++) {
      task(t, scratch.get());
    }
  };
  const int64_t worthwhile = tasks * operations_per_task / kThreadOperations;
  const int64_t count = std::min({worthwhile, tasks, threads.most});
  if (count <= 1) {
    work();
  } else {
    threads.run(count, [](void* context) { (*static_cast<decltype(work)*>(context))(); }, &work);
  }
}

void* advance(void* pointer, int64_t bytes) { return pointer == nullptr ? nullptr : static_cast<char*>(pointer) + bytes; }

// The values of features as tiles of the launch: themselves if they are that already, else packed.
const void* pack_features(const Threads& threads, const Launch& launch, const void* features, void* packed) {
  if (!launch.needs_packing()) {
    return features;
  }
  const int64_t blocks = divide_up(launch.layer.in_features, kPackColumns);
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  run_tasks(threads, tiles * blocks, kPackColumns * launch.tiles[0].width / 4, 0, [&](int64_t task, void*) {
    const int64_t first = task % blocks * kPackColumns;
    const int64_t last = std::min(first + kPackColumns, launch.layer.in_features);
    launch.kernels->pack(launch.layer, launch.tiles[task / blocks], features, first, last, packed);
  });
  return packed;
}

bool add_products(const Threads& threads, const Launch& launch, const BackwardTask& task, int64_t parts) {
  const int64_t outputs = launch.layer.out_features;
  const int64_t operations = 3 * (launch.connections() / parts + 1) * divide_up(launch.padded_batch(), kLanes);
  const int64_t scratch_bytes = launch.kernels->count_scratch(launch.layer);
  std::atomic<bool> valid{true};
  run_tasks(threads, parts, operations, scratch_bytes, [&](int64_t part, void* scratch) {
    BackwardTask mine = task;
    mine.partial = advance(task.partial, part * launch.packed_bytes());
    mine.first = outputs * part / parts;
    mine.last = outputs * (part + 1) / parts;
    if (!launch.kernels->backward(launch.layer, mine, scratch)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  return valid;
}

void sum_partials(const Threads& threads, const Launch& launch, const void* partials, int64_t parts, void* grad_features) {
  const int64_t blocks = divide_up(launch.layer.in_features, kPackColumns);
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  const int64_t copy = launch.padded_batch() * launch.layer.in_features;
  const int64_t operations = kPackColumns * launch.tiles[0].width / 8 * parts;
  run_tasks(threads, tiles * blocks, operations, 0, [&](int64_t task, void*) {
    const int64_t first = task % blocks * kPackColumns;
    const int64_t last = std::min(first + kPackColumns, launch.layer.in_features);
    launch.kernels->sum_partials(
        launch.layer, launch.tiles[task / blocks], first, last, partials, parts, copy, grad_features);
  });
}

}  // namespace

// ---------------------------------------------------------------- what the host functions call

Launch plan_forward(Capability capability, const Layer& layer, int64_t batch) {
  Launch launch = plan(capability, layer, batch, kForwardWidth);
  launch.layer.half_rows = true;
  return launch;
}

Launch plan_backward(Capability capability, const Layer& layer, int64_t batch) {
  return plan(capability, layer, batch, kBackwardWidth);
}

bool run_forward(
    const Threads& threads, const Launch& launch, const void* features, const void* bias, void* packed, void* result) {
  const Layer& layer = launch.layer;
  if (launch.batch == 0) {
    return layer.checked || launch.kernels->locations_valid(layer, 0, launch.connections());
  }
  const void* values = pack_features(threads, launch, features, packed);
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  const int64_t blocks = divide_up(layer.out_features, kBlock);
  const int64_t fitting = std::max<int64_t>(1, kForwardConnections / (kBlock * layer.fan_in + 1));
  const int64_t chunk = kBlock * std::clamp<int64_t>(blocks / kTasks, 1, fitting);
  const int64_t chunks = divide_up(layer.out_features, chunk);
  const int64_t groups = std::min(tiles, divide_up(kTasks, std::max<int64_t>(1, chunks)));
  const int64_t operations = chunk * (layer.fan_in + 1) * divide_up(launch.padded_batch(), kLanes) / groups;
  const int64_t scratch_bytes = launch.kernels->count_scratch(layer);
  const bool streaming = launch.batch * layer.out_features * launch.value_bytes >= kStreamedBytes;
  std::atomic<bool> valid{true};
  run_tasks(threads, chunks * groups, operations, scratch_bytes, [&](int64_t t, void* scratch) {
    const int64_t first = t / groups * chunk;
    const int64_t group = t % groups;
    const Tile* begin = launch.tiles.data();
    const ForwardTask task{
        values, bias, result, begin + tiles * group / groups, begin + tiles * (group + 1) / groups,
        first, std::min(first + chunk, layer.out_features), streaming};
    if (!launch.kernels->forward(layer, task, scratch)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  return valid;
}

BackwardPlan plan_memory(const Launch& launch, bool wants_features) {
  const int64_t parts = count_parts(launch, wants_features);
  const int64_t copies = wants_features ? parts : 0;
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  const int64_t fitting = kExtraBytes / ((copies + 1) * launch.tile_bytes() + 1);
  const int64_t group = std::clamp<int64_t>(fitting, 1, tiles);
  const int64_t group_bytes = take_tiles(launch, 0, group).packed_bytes();
  const bool keeps_sums = launch.is_narrow() && group < tiles;
  const int64_t sums = launch.connections() + launch.layer.out_features;
  return {parts, copies, group, launch.needs_packing() ? group_bytes : 0, copies * group_bytes,
          keeps_sums ? sums * static_cast<int64_t>(sizeof(float)) : 0};
}

bool run_backward(
    const Threads& threads, const Launch& launch, const BackwardPlan& plan, const void* grad_output,
    const void* features, const Gradients& gradients, void* packed, void* partials, void* sums) {
  BackwardTask task{};
  task.grad_output = grad_output;
  task.partial = plan.copies > 0 ? partials : nullptr;
  task.grad_weights = gradients.weights;
  task.grad_bias = gradients.bias;
  task.weights_sums = gradients.weights;
  task.bias_sums = gradients.bias;
  if (launch.is_narrow()) {
    task.weights_sums = plan.sums_bytes > 0 ? sums : nullptr;
    task.bias_sums = plan.sums_bytes > 0 ? static_cast<float*>(sums) + launch.connections() : nullptr;
  }
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  for (int64_t t = 0; t < tiles; t += plan.group_tiles) {
    const Launch group = take_tiles(launch, t, std::min(t + plan.group_tiles, tiles));
    task.first_tile = group.tiles.data();
    task.last_tile = group.tiles.data() + group.tiles.size();
    task.starts = t == 0;
    task.ends = t + plan.group_tiles >= tiles;
    task.packed = gradients.weights == nullptr ? nullptr : pack_features(threads, group, features, packed);
    if (!add_products(threads, group, task, plan.parts)) {
      return false;
    }
    if (plan.copies > 0) {
      sum_partials(threads, group, partials, plan.parts, gradients.features);
    }
  }
  return true;
}

int64_t find_invalid_location(const Launch& launch) {
  int64_t first = 0;
  int64_t last = launch.connections();
  while (last - first > 1) {  // the first invalid one lies in [first, last)
    const int64_t middle = first + (last - first) / 2;
    (launch.kernels->locations_valid(launch.layer, first, middle) ? first : last) = middle;
  }
  return first;
}

}  // namespace torch_sparse_ops
