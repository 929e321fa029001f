// How the work is cut, and launchers: raw pointers, sizes and threads. The reasons stand in fixed_fan_in.cpp.

#include "fixed_fan_in_launch.h"

#include "steps.h"

#include <algorithm>
#include <atomic>

namespace torch_sparse_ops {
namespace {

constexpr int64_t kTileBytes = 1 << 20;                 // of a tile that stays in the L2 cache
constexpr int64_t kSpilledWidth = 16;                   // in the backward pass, which rather has more tiles than copies
constexpr int64_t kPackColumns = 512;                   // columns of features packed by one task
constexpr int64_t kSharedBytes = 1 << 18;               // of a tile that leaves room in the L2 cache for others
constexpr int64_t kCheckedLocations = 1 << 15;          // checked by one task
constexpr int64_t kForwardConnections = 16384;          // of a chunk: they stay in the L2 cache
constexpr int64_t kTasks = 32;                          // tasks wanted, to occupy many threads
constexpr int64_t kParts = 16;                          // the same where each costs a copy
constexpr int64_t kGroupOperations = 1 << 14;           // that make the steps of a group of tiles worth their start
constexpr int64_t kLanes = 16;                          // values in a vector, where operations are estimated
constexpr int64_t kExtraBytes = int64_t{64} << 20;      // bound on what backward takes beside its results

// ---------------------------------------------------------------- cutting the work

// The width of the next tile for `rows` entries of the batch. A rest is taken into one tile that is partly empty rather than
// two full ones, since the work on a tile grows less than its width; but a single entry is cheaper alone.
int64_t choose_width(int64_t rows, int64_t most) {
  for (int64_t width : {1, 4, 8, 16}) {
    if (rows <= width || (width == 16 && rows == width + 1)) {
      return std::min(width, most);
    }
  }
  return most;
}

// Tiles of the whole batch. Wide rows make the best of every location read, as long as a tile stays in the cache; for one
// that does not anyway, `spilled` is the width.
std::vector<Tile> cut_batch(int64_t batch, int64_t row_bytes, int64_t most, int64_t spilled) {
  const int64_t fitting = kTileBytes / (row_bytes + 1);
  const int64_t widest = fitting >= most ? most : fitting >= 16 ? 16 : spilled;
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
    case Capability::avx512_bf16:
      return &fixed_fan_in_avx512_bf16[is_double];
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

Launch plan(Capability capability, const Layer& layer, int64_t batch, int64_t spilled) {
  const bool is_double = layer.value == Value::float64;
  const int64_t value_bytes = is_double ? 8 : 4;
  const int64_t most = is_double ? kMaxDoubleWidth : kMaxWidth;
  return {find_kernels(capability, layer.value), layer, batch, value_bytes,
          cut_batch(batch, layer.in_features * value_bytes, most, std::min(most, spilled))};
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

int64_t count_tiles(const Launch& launch) { return static_cast<int64_t>(launch.tiles.size()); }

// Whether tiles are so large that only one of them stays in the L2 cache: each is then done with before the next.
bool takes_turns(const Launch& launch) { return count_tiles(launch) > 1 && launch.tile_bytes() > kSharedBytes; }

// Vector operations of one pass over all connections and the whole batch.
int64_t count_operations(const Launch& launch) {
  return (launch.connections() + 1) * divide_up(launch.padded_batch(), kLanes);
}

int64_t largest_power(int64_t most) {
  int64_t power = 1;
  while (2 * power <= most) {
    power *= 2;
  }
  return power;
}

// Into how many parts the outputs are cut where every part needs a copy of the gradient of the features: enough to occupy
// threads, if there are not enough tiles for that; but clearing and adding the copies may not outweigh the products, and
// those of one tile have to stay in bounds.
int64_t count_copies(const Launch& launch) {
  const bool turns = takes_turns(launch);
  const int64_t parts = std::min(kParts, count_operations(launch) / kThreadOperations);
  const int64_t wanted = turns ? parts / count_tiles(launch) : parts;
  const int64_t affordable = std::max<int64_t>(turns ? 1 : 2, launch.connections() / (48 * launch.layer.in_features + 1));
  const int64_t blocks = divide_up(launch.layer.out_features, kBlock);
  return largest_power(std::min({wanted, affordable, blocks, kExtraBytes / (launch.tile_bytes() + 1) - 1}));
}

// ---------------------------------------------------------------- steps

void* advance(void* pointer, int64_t bytes) { return pointer == nullptr ? nullptr : static_cast<char*>(pointer) + bytes; }

// Makes tiles of features.
Step pack_features(const Launch& launch, const void* features, void* packed) {
  const int64_t blocks = divide_up(launch.layer.in_features, kPackColumns);
  const int64_t tiles = count_tiles(launch);
  return {tiles * blocks, kPackColumns * launch.tiles[0].width / 4, [=, &launch](int64_t task, void*) {
            const int64_t first = task % blocks * kPackColumns;
            const int64_t last = std::min(first + kPackColumns, launch.layer.in_features);
            launch.kernels->pack(launch.layer, launch.tiles[task / blocks], features, first, last, packed);
          }};
}

// Looks at every location once, where several tasks are going to use it.
Step check_locations(const Launch& launch, std::atomic<bool>& valid) {
  const int64_t connections = launch.connections();
  return {divide_up(connections, kCheckedLocations), kCheckedLocations / kLanes, [=, &launch, &valid](int64_t t, void*) {
            const int64_t first = t * kCheckedLocations;
            const int64_t last = std::min(first + kCheckedLocations, connections);
            if (!launch.kernels->locations_valid(launch.layer, first, last)) {
              valid.store(false, std::memory_order_relaxed);
            }
          }};
}

// Outputs of a task of the forward pass.
int64_t choose_chunk(const Layer& layer) {
  const int64_t blocks = divide_up(layer.out_features, kBlock);
  const int64_t fitting = std::max<int64_t>(1, kForwardConnections / (kBlock * layer.fan_in + 1));
  return kBlock * std::clamp<int64_t>(blocks / kTasks, 1, fitting);
}

// Groups of tiles that meet the same chunk of outputs, one after the other, in a task of the forward pass: all of them, if
// there are enough chunks and the tiles stay in the cache together.
std::vector<Launch> cut_groups(const Launch& launch) {
  const int64_t tiles = count_tiles(launch);
  const int64_t chunks = divide_up(launch.layer.out_features, choose_chunk(launch.layer));
  const int64_t wanted = std::min(divide_up(kTasks, chunks + 1), 1 + count_operations(launch) / kGroupOperations);
  const int64_t count = takes_turns(launch) ? tiles : std::min(tiles, wanted);
  std::vector<Launch> groups;
  groups.reserve(count);
  for (int64_t group = 0; group < count; ++group) {
    const auto first = launch.tiles.begin() + tiles * group / count;
    const auto last = launch.tiles.begin() + tiles * (group + 1) / count;
    groups.push_back({launch.kernels, launch.layer, launch.batch, launch.value_bytes, {first, last}});
  }
  return groups;
}

// Touches each huge page of a result, which may be new memory. Threads that write to a new page at once, as the next step
// makes them do, would each have the system clear one.
Step touch_pages(const Launch& launch, void* result) {
  const Tile& last = launch.tiles.back();
  const int64_t row_bytes = launch.layer.out_features * (launch.is_narrow() ? 2 : launch.value_bytes);
  char* const begin = static_cast<char*>(result) + launch.tiles[0].first * row_bytes;
  const int64_t skipped = -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  const int64_t bytes = (last.first + last.rows - launch.tiles[0].first) * row_bytes - skipped;
  return {std::max<int64_t>(0, divide_up(bytes, kHugePageBytes)), 0, [=](int64_t page, void*) {
            *static_cast<volatile char*>(begin + skipped + page * kHugePageBytes) = 0;
          }};
}

Step compute_results(
    const Launch& launch, const void* values, const void* bias, void* result, std::atomic<bool>& valid) {
  const Layer& layer = launch.layer;
  const int64_t chunk = choose_chunk(layer);
  const int64_t chunks = divide_up(layer.out_features, chunk);
  const bool streaming = launch.batch * layer.out_features * launch.value_bytes >= kStreamedBytes;
  return {chunks, count_operations(launch) / (chunks + 1), [=, &launch, &layer, &valid](int64_t t, void* scratch) {
            const Tile* tiles = launch.tiles.data();
            const ForwardTask task{
                values, bias, result, tiles, tiles + launch.tiles.size(), t * chunk,
                std::min((t + 1) * chunk, layer.out_features), streaming};
            if (valid && !launch.kernels->forward(layer, task, scratch)) {
              valid.store(false, std::memory_order_relaxed);
            }
          }};
}

// The tasks are parts of the outputs times groups of tiles.
Step add_products(
    const Launch& launch, const BackwardTask& task, int64_t parts, int64_t groups, std::atomic<bool>& valid) {
  const int64_t outputs = launch.layer.out_features;
  const int64_t tiles = count_tiles(launch);
  const int64_t passes = 1 + (task.partial != nullptr && task.grad_weights != nullptr);
  return {parts * groups, passes * count_operations(launch) / (parts * groups),
          [=, &launch, &valid](int64_t t, void* scratch) {
            const int64_t part = t % parts;
            const int64_t group = t / parts;
            BackwardTask mine = task;
            mine.partial = advance(task.partial, part * launch.packed_bytes());
            mine.first = outputs * part / parts;
            mine.last = outputs * (part + 1) / parts;
            mine.first_tile = launch.tiles.data() + tiles * group / groups;
            mine.last_tile = launch.tiles.data() + tiles * (group + 1) / groups;
            if (valid && !launch.kernels->backward(launch.layer, mine, scratch)) {
              valid.store(false, std::memory_order_relaxed);
            }
          }};
}

Step sum_partials(const Launch& launch, const void* partials, int64_t parts, void* grad_features) {
  const int64_t blocks = divide_up(launch.layer.in_features, kPackColumns);
  const int64_t tiles = count_tiles(launch);
  const int64_t copy = launch.padded_batch() * launch.layer.in_features;
  const int64_t operations = kPackColumns * launch.tiles[0].width / 8 * parts;
  return {tiles * blocks, operations, [=, &launch](int64_t task, void*) {
            const int64_t first = task % blocks * kPackColumns;
            const int64_t last = std::min(first + kPackColumns, launch.layer.in_features);
            launch.kernels->sum_partials(
                launch.layer, launch.tiles[task / blocks], first, last, partials, parts, copy, grad_features);
          }};
}

}  // namespace

// ---------------------------------------------------------------- what the host functions call

Launch plan_forward(Capability capability, const Layer& layer, int64_t batch) {
  Launch launch = plan(capability, layer, batch, kMaxWidth);
  launch.layer.half_rows = true;
  return launch;
}

Launch plan_backward(Capability capability, const Layer& layer, int64_t batch) {
  return plan(capability, layer, batch, kSpilledWidth);
}

bool run_forward(
    const Threads& threads, const Launch& launch, const void* features, const void* bias, void* packed, void* result) {
  const Layer& layer = launch.layer;
  if (launch.batch == 0) {
    return layer.checked || launch.kernels->locations_valid(layer, 0, launch.connections());
  }
  std::atomic<bool> valid{true};
  const void* values = launch.needs_packing() ? packed : features;
  const std::vector<Launch> groups = cut_groups(launch);
  std::vector<Lane> lanes;
  for (const Launch& group : groups) {
    lanes.emplace_back();
    if (launch.needs_packing()) {
      lanes.back().push_back(pack_features(group, features, packed));
    }
    lanes.back().push_back(touch_pages(group, result));
    lanes.back().push_back(compute_results(group, values, bias, result, valid));
  }
  run_lanes(threads, launch.kernels->count_scratch(layer), lanes);
  return valid;
}

BackwardPlan plan_memory(const Launch& launch, bool wants_features) {
  const int64_t copies = wants_features ? count_copies(launch) : 0;
  const int64_t tiles = count_tiles(launch);
  const int64_t fitting = kExtraBytes / ((copies + 1) * launch.tile_bytes() + 1);
  const int64_t group = std::clamp<int64_t>(fitting, 1, tiles);
  const int64_t group_bytes = take_tiles(launch, 0, group).packed_bytes();
  const bool keeps_sums = launch.is_narrow() && group < tiles;
  const int64_t sums = launch.connections() + launch.layer.out_features;
  return {copies, group, launch.needs_packing() ? group_bytes : 0, copies * group_bytes,
          keeps_sums ? sums * static_cast<int64_t>(sizeof(float)) : 0};
}

// The steps of the backward pass for some of all tiles. The same tasks compute all gradients, so that connections and the
// output's gradient are read once; but where tiles take turns, the gradient of the features is a step of its own.
Lane plan_steps(
    const Launch& launch, const Launch& checked, int64_t copies, const BackwardTask& task, std::atomic<bool>& valid) {
  const int64_t tiles = count_tiles(launch);
  const int64_t parts = largest_power(std::min(kTasks, divide_up(launch.layer.out_features, kBlock)));
  if (!takes_turns(launch)) {
    return {add_products(launch, task, copies > 0 ? copies : parts, 1, valid)};
  }
  Lane steps;
  if (!launch.layer.checked) {
    steps.push_back(check_locations(launch, valid));
  }
  BackwardTask mine = task;
  if (task.grad_weights != nullptr || task.grad_bias != nullptr) {
    mine.partial = nullptr;
    steps.push_back(add_products(checked, mine, parts, 1, valid));
  }
  if (copies > 0) {
    mine = task;
    mine.grad_weights = nullptr;
    mine.grad_bias = nullptr;
    steps.push_back(add_products(checked, mine, copies, tiles, valid));
  }
  return steps;
}

bool run_backward(
    const Threads& threads, const Launch& launch, const BackwardPlan& plan, const void* grad_output,
    const void* features, const Gradients& gradients, void* packed, void* partials, void* sums) {
  BackwardTask task{};
  task.grad_output = grad_output;
  task.packed = launch.needs_packing() ? packed : features;
  task.partial = plan.copies > 0 ? partials : nullptr;
  task.grad_weights = gradients.weights;
  task.grad_bias = gradients.bias;
  task.weights_sums = gradients.weights;
  task.bias_sums = gradients.bias;
  task.prefetches = launch.batch * launch.layer.out_features * launch.value_bytes >= kStreamedBytes;
  if (launch.is_narrow()) {
    task.weights_sums = plan.sums_bytes > 0 ? sums : nullptr;
    task.bias_sums = plan.sums_bytes > 0 ? static_cast<float*>(sums) + launch.connections() : nullptr;
  }
  const int64_t tiles = count_tiles(launch);
  std::atomic<bool> valid{true};
  for (int64_t t = 0; t < tiles && valid; t += plan.group_tiles) {
    const Launch group = take_tiles(launch, t, std::min(t + plan.group_tiles, tiles));
    Launch checked = group;
    checked.layer.checked = true;
    task.starts = t == 0;
    task.ends = t + plan.group_tiles >= tiles;
    Lane steps = plan_steps(group, checked, plan.copies, task, valid);
    if (launch.needs_packing() && gradients.weights != nullptr) {
      steps.insert(steps.begin(), pack_features(group, features, packed));
    }
    if (plan.copies > 0) {
      steps.push_back(sum_partials(group, partials, plan.copies, gradients.features));
    }
    run_lanes(threads, launch.kernels->count_scratch(launch.layer), {steps});
  }
  return valid;
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
