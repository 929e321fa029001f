// How the work of the fixed fan-in operators is cut, as a table, and their launches: raw pointers, sizes and a stream.

#pragma once

#include "fixed_fan_in_gradients.cuh"

#include <algorithm>
#include <numeric>
#include <type_traits>

namespace torch_sparse_ops {

inline int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// ---------------------------------------------------------------- the table

// A way to lay the batch over the lanes of a warp.
struct Width {
  int lanes;
  int values;
  int shift;      // log2 of the width
  int64_t batch;  // up to which it is wide enough

  int64_t count() const { return int64_t{1} << shift; }
};

// A batch takes the first that is wide enough, or the last. Wider ones use each connection read for more products. Sixteen
// lanes do for the wide ones: a warp then serves two connections at once, which halves the reads of connections from shared
// memory, and the exchanges in the gradient of the weights.
constexpr Width kWidths[] = {{1, 1, 0, 1}, {4, 1, 2, 4}, {16, 1, 4, 16}, {16, 2, 5, 32}, {16, 4, 6, INT64_MAX}};
template <typename Value>
constexpr int kWidest = std::is_same<Value, double>::value ? 3 : 4;  // 64 doubles take too much shared memory
// Below this one, the connections would be read too often for what staging gains.
constexpr int kNarrowestStaged = 2;

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
      return work(integral_constant<int, 16>(), integral_constant<int, 2>());
    default:
      if constexpr (kWidest<Value> == 4) {
        return work(integral_constant<int, 16>(), integral_constant<int, 4>());
      }
  }
}

// ---------------------------------------------------------------- plans

constexpr int kRowsShift = 6, kFewRowsShift = 4;  // log2 of kRows, and of kWarps: one output for each warp

enum class Pass { forward, backward };

struct Plan {
  Width width;
  Cut cut;
  bool staged;  // whether a block brings its tile of features into shared memory
  int64_t blocks;
  int64_t shared_bytes;  // that the launch asks for
  int64_t tile_bytes;    // of one tile of packed features
};

// Shared memory of a block beside the tile.
template <typename Value>
int64_t count_own_bytes(Pass pass, const Width& width) {
  int64_t bytes = sizeof(uint32_t) * kRows * kSlots;
  if (pass == Pass::forward) {
    with_width<Value>(width, [&](auto lanes, auto values) { bytes = sizeof(ForwardMemory<Value, lanes * values>); });
  }
  return bytes;
}

// Blocks of this kind that are on the device at once, as far as threads, their registers and shared memory allow.
inline int64_t count_resident(const Device& device, int64_t threads, int64_t shared_bytes) {
  constexpr int64_t reserved = 1024;  // bytes that the system takes for every block
  const int64_t by_threads = std::min<int64_t>(device.resident_threads, kBlocks * kThreads) / threads;
  const int64_t by_memory = device.shared_bytes / (shared_bytes + reserved);
  return device.processors * std::max<int64_t>(1, std::min(by_threads, by_memory));
}

// Steps of an output whose row may begin anywhere between two multiples of `align`.
inline int64_t count_steps(const Layer& layer, int64_t align) {
  const int64_t before = align - std::gcd(layer.fan_in, align);
  return std::max<int64_t>(1, divide_up(layer.fan_in + before, kSlots));
}

template <typename Value>
Plan make_plan(const Device& device, const Layer& layer, int64_t batch, Pass pass, const Width& width, bool staged) {
  Plan plan{width, {batch, divide_up(batch, width.count()), kRowsShift, kQuad, 0, 0}, staged, 0, 0, 0};
  Cut& cut = plan.cut;
  // Backward keeps a chunk through all tiles: its sums over the batch have one owner.
  const int64_t tiles_at_once = pass == Pass::forward ? cut.tiles : 1;
  if (tiles_at_once * divide_up(layer.out_features, kRows) < 2 * device.processors) {
    cut.shift = kFewRowsShift;  // few outputs are cut finer, lest most multiprocessors have none
  }
  cut.chunks = divide_up(layer.out_features, cut.rows());
  cut.steps = count_steps(layer, kQuad);
  if (count_steps(layer, 2 * kQuad) == cut.steps) {
    cut.align = 2 * kQuad;  // whole sectors of memory
  }
  plan.tile_bytes = layer.in_features * width.count() * static_cast<int64_t>(sizeof(Value));
  const int64_t own_bytes = count_own_bytes<Value>(pass, width);
  const int64_t staged_bytes = staged ? plan.tile_bytes : 0;
  plan.shared_bytes = staged_bytes + (pass == Pass::forward ? own_bytes : 0);  // backward's own are not asked for
  const int64_t resident = count_resident(device, kThreads, own_bytes + staged_bytes);
  plan.blocks = tiles_at_once * std::min(cut.chunks, divide_up(resident, std::max<int64_t>(1, tiles_at_once)));
  return plan;
}

// Whether the tile fits, and is read often enough to be brought in.
template <typename Value>
bool is_worth_staging(const Device& device, const Layer& layer, const Plan& plan, Pass pass) {
  const int64_t tiles_at_once = pass == Pass::forward ? plan.cut.tiles : 1;
  const int64_t chunks = divide_up(plan.cut.chunks * tiles_at_once, std::max<int64_t>(1, plan.blocks));
  return plan.tile_bytes + count_own_bytes<Value>(pass, plan.width) <= device.block_bytes &&
      chunks * plan.cut.rows() * layer.fan_in >= 2 * layer.in_features;
}

// The widest tile that can be staged; if none can, the widest.
template <typename Value>
Plan make_plan(const Device& device, const Layer& layer, int64_t batch, Pass pass) {
  int widest = 0;
  while (widest < kWidest<Value> && kWidths[widest].batch < batch) {
    ++widest;
  }
  for (int w = widest; w >= std::min(widest, kNarrowestStaged); --w) {
    const Plan plan = make_plan<Value>(device, layer, batch, pass, kWidths[w], true);
    if (is_worth_staging<Value>(device, layer, plan, pass)) {
      return plan;
    }
  }
  return make_plan<Value>(device, layer, batch, pass, kWidths[widest], false);
}

// ---------------------------------------------------------------- scratch

// Arrays one behind the other. Without memory it counts only.
class Scratch {
 public:
  explicit Scratch(void* memory) : first_(static_cast<char*>(memory)) {}

  template <typename Element>
  Element* take(int64_t count) {
    char* taken = first_ == nullptr ? nullptr : first_ + bytes_;
    bytes_ += divide_up(count * static_cast<int64_t>(sizeof(Element)), 256) * 256;
    return reinterpret_cast<Element*>(taken);
  }

  int64_t bytes() const { return bytes_; }

 private:
  char* first_;
  int64_t bytes_ = 0;
};

// Room for rows [batch][columns] in tiles. A batch of one is packed as it stands.
template <typename Value>
Value* take_packed(Scratch& scratch, const Plan& plan, int64_t columns) {
  return scratch.take<Value>(plan.width.shift == 0 ? 0 : (plan.cut.tiles * columns) << plan.width.shift);
}

template <typename Value>
struct BackwardScratch {
  Value* features = nullptr;
  Value* grads = nullptr;
  Sum<Value>* weights_sums = nullptr;
  Sum<Value>* features_sums = nullptr;
};

// [tile][in_features][width]: where gradients of the features are added atomically.
inline int64_t count_features_sums(const Plan& plan, const Layer& layer) {
  return (plan.cut.tiles * layer.in_features) << plan.width.shift;
}

template <typename Value>
BackwardScratch<Value> take_backward(
    Scratch& scratch, const Plan& plan, const Layer& layer, bool atomic, const Gradients& gradients) {
  BackwardScratch<Value> taken;
  if (gradients.features != nullptr || gradients.weights != nullptr) {
    taken.grads = take_packed<Value>(scratch, plan, layer.out_features);
  }
  if (gradients.weights != nullptr) {
    taken.features = take_packed<Value>(scratch, plan, layer.in_features);
    taken.weights_sums = static_cast<Sum<Value>*>(gradients.weights);
    if (!std::is_same<Value, Sum<Value>>::value) {
      taken.weights_sums = scratch.take<Sum<Value>>(plan.cut.tiles > 1 ? layer.out_features * layer.fan_in : 0);
    }
  }
  if (gradients.features != nullptr && atomic) {
    taken.features_sums = scratch.take<Sum<Value>>(count_features_sums(plan, layer));
  }
  return taken;
}

// ---------------------------------------------------------------- launches

// Returns rows [batch][columns] as [tile][columns][width], in `packed` or as they are.
template <typename Value>
const Value* run_pack(
    const Device& device, const void* rows, int64_t columns, const Plan& plan, cudaStream_t stream, Value* packed) {
  using Bits = std::conditional_t<sizeof(Value) == 2, uint16_t, std::conditional_t<sizeof(Value) == 4, uint32_t, uint64_t>>;
  const int64_t units = plan.cut.tiles * divide_up(columns, kPackColumns);
  if (plan.width.shift == 0 || units == 0) {
    return static_cast<const Value*>(rows);
  }
  const int64_t shared_bytes = sizeof(Bits) * kMaxWidth * (kPackColumns + 1);
  launch(
      pack_rows<Bits>, std::min(units, count_resident(device, kPackThreads, shared_bytes)), kPackThreads, 0, stream,
      static_cast<const Bits*>(rows), plan.cut.batch, columns, plan.width.shift, plan.cut.tiles,
      reinterpret_cast<Bits*>(packed));
  return packed;
}

template <typename Value>
void run_forward(
    const Device& device, const Plan& plan, const Layer& layer, const void* features, const void* bias, void* memory,
    cudaStream_t stream, void* result) {
  if (plan.blocks == 0) {
    return;
  }
  Scratch scratch(memory);
  Value* room = take_packed<Value>(scratch, plan, layer.in_features);
  const Value* packed = run_pack(device, features, layer.in_features, plan, stream, room);
  with_width<Value>(plan.width, [&](auto lanes, auto values) {
    launch(
        plan.staged ? compute_forward<Value, lanes, values, true> : compute_forward<Value, lanes, values, false>,
        plan.blocks, kThreads, plan.shared_bytes, stream, layer, plan.cut, packed, static_cast<const Value*>(bias),
        static_cast<Value*>(result));
  });
}

// Warps that share an input: each takes 32 connections at a time, and two such times are enough.
inline int choose_sharing(const Layer& layer) {
  const int64_t connections = layer.out_features * layer.fan_in / std::max<int64_t>(1, layer.in_features);
  int shift = 0;
  while (kWarps >> shift > 1 && connections > int64_t{64} << shift) {
    ++shift;
  }
  return shift;
}

template <typename Value>
void run_grad_features(
    const Device& device, const Plan& plan, const Layer& layer, const Transposed& transposed, const Value* packed_grads,
    cudaStream_t stream, Value* grad_features) {
  const int shift = choose_sharing(layer);
  const int64_t units = plan.cut.tiles * divide_up(layer.in_features, kWarps >> shift);
  if (units == 0) {
    return;
  }
  with_width<Value>(plan.width, [&](auto lanes, auto values) {
    launch(
        compute_grad_features<Value, lanes, values>,
        std::min(units, 4 * count_resident(device, kThreads, sizeof(Sum<Value>) * kWarps * lanes * values)), kThreads, 0,
        stream, layer, plan.cut, transposed, shift, packed_grads, grad_features);
  });
}

template <typename Value>
void run_scatter_features(
    const Device& device, const Plan& plan, const Layer& layer, const Value* packed_grads, Sum<Value>* sums,
    cudaStream_t stream, Value* grad_features) {
  const int64_t count = count_features_sums(plan, layer);
  const int64_t units = plan.cut.tiles * divide_up(layer.in_features, kPackColumns);
  if (units == 0) {
    return;
  }
  const int64_t resident = count_resident(device, kPackThreads, sizeof(Sum<Value>) * kMaxWidth * (kPackColumns + 1));
  launch(
      clear_sums<Sum<Value>>, std::min(resident, divide_up(count, kPackThreads)), kPackThreads, 0, stream, sums, count);
  if (plan.cut.chunks > 0) {
    const int64_t groups = divide_up(count_resident(device, kThreads, 0), plan.cut.tiles);
    with_width<Value>(plan.width, [&](auto lanes, auto values) {
      launch(
          scatter_grad_features<Value, lanes, values>, plan.cut.tiles * std::min(plan.cut.chunks, groups), kThreads, 0,
          stream, layer, plan.cut, packed_grads, sums);
    });
  }
  launch(
      unpack_sums<Value>, std::min(units, resident), kPackThreads, 0, stream, sums, plan.cut.batch, layer.in_features,
      plan.width.shift, plan.cut.tiles, grad_features);
}

template <typename Value>
void run_grad_weights(
    const Plan& plan, const Layer& layer, const Value* packed, const WeightGradients<Value>& gradients,
    cudaStream_t stream) {
  if (plan.blocks == 0 || layer.fan_in == 0) {
    return;
  }
  with_width<Value>(plan.width, [&](auto lanes, auto values) {
    launch(
        plan.staged ? compute_grad_weights<Value, lanes, values, true>
                    : compute_grad_weights<Value, lanes, values, false>,
        plan.blocks, kThreads, plan.shared_bytes, stream, layer, plan.cut, packed, gradients);
  });
}

template <typename Value>
void run_grad_bias(
    const Device& device, const Value* grads, int64_t batch, int64_t columns, cudaStream_t stream, Value* grad_bias) {
  if (columns > 0) {
    const int64_t blocks = std::min(divide_up(columns, 32), count_resident(device, kThreads, sizeof(Sum<Value>) * kThreads));
    launch(compute_grad_bias<Value>, blocks, kThreads, 0, stream, grads, batch, columns, grad_bias);
  }
}

// The batch is not empty.
template <typename Value>
void run_backward(
    const Device& device, const Plan& plan, const Layer& layer, const void* grad_output, const void* features,
    const Transposed& transposed, void* memory, cudaStream_t stream, const Gradients& gradients) {
  Scratch scratch(memory);
  const bool atomic = transposed.offsets == nullptr;
  const BackwardScratch<Value> room = take_backward<Value>(scratch, plan, layer, atomic, gradients);
  const Value* grads = static_cast<const Value*>(grad_output);
  const Value* packed_grads = grads;
  if (gradients.features != nullptr || gradients.weights != nullptr) {
    packed_grads = run_pack(device, grad_output, layer.out_features, plan, stream, room.grads);
  }
  if (gradients.weights != nullptr) {
    const Value* packed = run_pack(device, features, layer.in_features, plan, stream, room.features);
    run_grad_weights<Value>(plan, layer, packed, {packed_grads, room.weights_sums, static_cast<Value*>(gradients.weights)}, stream);
  }
  Value* grad_features = static_cast<Value*>(gradients.features);
  if (grad_features != nullptr && atomic) {
    run_scatter_features(device, plan, layer, packed_grads, room.features_sums, stream, grad_features);
  } else if (grad_features != nullptr) {
    run_grad_features(device, plan, layer, transposed, packed_grads, stream, grad_features);
  }
  if (gradients.bias != nullptr) {
    run_grad_bias(device, grads, plan.cut.batch, layer.out_features, stream, static_cast<Value*>(gradients.bias));
  }
}

}  // namespace torch_sparse_ops
