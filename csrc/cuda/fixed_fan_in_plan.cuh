// How the work of the fixed fan-in operators is cut, as a table, and their launches: raw pointers, sizes and a stream.

#pragma once

#include "fixed_fan_in_kernels.cuh"

#include <algorithm>
#include <type_traits>

namespace torch_sparse_ops {

inline int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// A way to lay the batch over the lanes of a warp.
struct Width {
  int lanes;
  int values;
  int shift;      // log2 of the width
  int64_t batch;  // up to which it is wide enough

  int64_t count() const { return int64_t{1} << shift; }
};

// A batch takes the first that is wide enough, or the last. Wider ones use each connection read for more products.
constexpr Width kWidths[] = {{1, 1, 0, 1}, {4, 1, 2, 4}, {16, 1, 4, 16}, {32, 1, 5, 32}, {32, 2, 6, INT64_MAX}};
template <typename Value>
constexpr int kWidest = std::is_same<Value, double>::value ? 3 : 4;  // pairs of doubles would take too much shared memory

// Calls work(lanes, values), both as types, for a row of the table.
template <typename Value, typename Work>
void with_width(const Width& width, const Work& work) {
  using std::integral_constant;
  switch (width.shift) {
    case 0:
      return work(integral_constant<int, 1>(), integral_constant<int, 1>());
    case 2:
      return work(integral_constant<int, 4>(), integral_constant<int, 1>());
    case 4:
      return work(integral_constant<int, 16>(), integral_constant<int, 1>());
    case 5:
      return work(integral_constant<int, 32>(), integral_constant<int, 1>());
    default:
      if constexpr (!std::is_same<Value, double>::value) {
        return work(integral_constant<int, 32>(), integral_constant<int, 2>());
      }
  }
}

struct Plan {
  Width width;
  Cut cut;
  bool staged;           // whether each block brings its tile of features into shared memory
  int64_t blocks;
  int64_t shared_bytes;
  int64_t packed_bytes;  // scratch for the packed features; nothing for a batch of one, which is packed as it stands
};

inline Cut cut_work(const Device& device, const Layer& layer, int64_t batch, int64_t width) {
  Cut cut{batch, divide_up(batch, width), kRows, 0, 0};
  // Few outputs are cut finer, lest most multiprocessors have none.
  if (cut.tiles * divide_up(layer.out_features, kRows) < 2 * device.processors) {
    cut.rows = kWarps;
  }
  cut.chunks = divide_up(layer.out_features, cut.rows);
  const int64_t begins = layer.fan_in % kQuad == 0 ? 0 : kQuad - 1;  // slots before a row's first, at most
  cut.steps = std::max<int64_t>(1, divide_up(layer.fan_in + begins, kSlots));
  return cut;
}

// Shared memory for everything but the tile.
template <typename Value>
int64_t count_forward_bytes(const Width& width) {
  int64_t bytes = 0;
  with_width<Value>(width, [&](auto lanes, auto values) { bytes = sizeof(ForwardMemory<Value, lanes * values>); });
  return bytes;
}

// Blocks of one tile: as many as are resident at once, each of which then works off several chunks.
inline int64_t count_groups(const Device& device, const Cut& cut, int64_t shared_bytes) {
  const int64_t by_threads = device.resident_threads / kThreads;
  const int64_t by_memory = device.shared_bytes / (shared_bytes + 1024);  // of which the system takes one KiB a block
  const int64_t resident = device.processors * std::max<int64_t>(1, std::min(by_threads, by_memory));
  return std::min(cut.chunks, divide_up(resident, cut.tiles));
}

template <typename Value>
Plan make_forward_plan(const Device& device, const Layer& layer, int64_t batch, const Width& width, bool staged) {
  Plan plan{width, cut_work(device, layer, batch, width.count()), staged, 0, 0, 0};
  const int64_t tile_bytes = layer.in_features * width.count() * static_cast<int64_t>(sizeof(Value));
  plan.packed_bytes = width.shift == 0 ? 0 : plan.cut.tiles * tile_bytes;
  plan.shared_bytes = count_forward_bytes<Value>(width) + (staged ? tile_bytes : 0);
  plan.blocks = plan.cut.tiles * count_groups(device, plan.cut, plan.shared_bytes);
  return plan;
}

// Whether the tile fits, and is read often enough to be brought in.
inline bool is_worth_staging(const Device& device, const Layer& layer, const Plan& plan) {
  const int64_t chunks_of_block = divide_up(plan.cut.chunks * plan.cut.tiles, std::max<int64_t>(1, plan.blocks));
  return plan.shared_bytes <= device.block_bytes &&
      chunks_of_block * plan.cut.rows * layer.fan_in >= 2 * layer.in_features;
}

// The widest tile that can be staged; if none can, the widest.
template <typename Value>
Plan plan_forward(const Device& device, const Layer& layer, int64_t batch) {
  int widest = 0;
  while (widest < kWidest<Value> && kWidths[widest].batch < batch) {
    ++widest;
  }
  constexpr int narrowest = 2;  // that replaces a wider one: below it, connections are read too often
  for (int w = widest; w >= std::min(widest, narrowest); --w) {
    const Plan plan = make_forward_plan<Value>(device, layer, batch, kWidths[w], true);
    if (is_worth_staging(device, layer, plan)) {
      return plan;
    }
  }
  return make_forward_plan<Value>(device, layer, batch, kWidths[widest], false);
}

// rows [batch][columns] to [tile][columns][width].
template <typename Value>
void run_pack(
    const Device& device, const Value* rows, int64_t columns, const Plan& plan, cudaStream_t stream, Value* packed) {
  const int64_t units = plan.cut.tiles * divide_up(columns, kPackColumns);
  const int64_t blocks = std::min(units, device.processors * (device.resident_threads / kPackThreads));
  launch(
      pack_rows<Value>, blocks, kPackThreads, 0, stream, rows, plan.cut.batch, columns, plan.width.shift, plan.cut.tiles,
      packed);
}

// `packed` holds plan.packed_bytes. Nothing is launched where there is nothing to write.
template <typename Value>
void run_forward(
    const Device& device, const Plan& plan, const Layer& layer, const Value* features, const Value* bias,
    Value* packed, cudaStream_t stream, Value* result) {
  if (plan.blocks == 0) {
    return;
  }
  if (plan.packed_bytes > 0) {
    run_pack(device, features, layer.in_features, plan, stream, packed);
    features = packed;
  }
  with_width<Value>(plan.width, [&](auto lanes, auto values) {
    launch(
        plan.staged ? ffi_forward<Value, lanes, values, true> : ffi_forward<Value, lanes, values, false>, plan.blocks,
        kThreads, plan.shared_bytes, stream, layer, plan.cut, features, bias, result);
  });
}

}  // namespace torch_sparse_ops
