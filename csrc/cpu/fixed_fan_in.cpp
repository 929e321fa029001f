// Fixed fan-in operators on the CPU. The formulas stand in ../fixed_fan_in.h.
//
// Layout. features is batch-major, so one output would gather single values from all over a row. They are packed first
// into tiles [in_features][width] of `width` batch entries each, padded with zeros: the value of one connection is then one
// contiguous row of a tile, used by `width` products at once with plain vector instructions. A batch of one is a tile as it
// stands. Packing costs a few percent of the products, so the backward pass packs again rather than keep a copy.
//
// Precision. Sums are kept in float for float and narrower types, in double for double.
//
// Threads. Work is cut by the shape alone, never by the number of threads, and every partial sum has one owner; partial
// sums are added in a fixed order. So results carry the same bits for any number of threads, and there are no atomics.
//   forward    (chunk of outputs) x (some tiles); consecutive tiles meet the same chunk, whose weights stay in the cache
//   backward   parts of the outputs, each over all tiles in order, with its own copy of the gradient of the features
//   then       the copies are added in order, while the sum is brought back to batch-major
// Copies may take kExtraBytes; beyond it the batch is worked off in groups of tiles.
//
// The kernels, which know neither threads nor tensors, stand in fixed_fan_in_kernels.cpp. Here follow the cutting of the
// work, launchers (raw pointers, sizes and threads), host functions (tensors) and the registration.

#include "../fixed_fan_in.h"

#include "capability.h"
#include "fixed_fan_in_kernels.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <tuple>
#include <vector>

namespace torch_sparse_ops {
namespace {

constexpr int64_t kLanes = 16;                          // values in a vector, for estimates of the work
constexpr int64_t kBackwardWidth = 32;                  // of a tile in backward, where a row takes more registers
constexpr int64_t kTileBytes = 512 << 10;               // of a tile that stays in the L2 cache
constexpr int64_t kPackColumns = 512;                   // columns of features packed by one task
constexpr int64_t kForwardConnections = 16384;          // of a chunk: they stay in the L2 cache
constexpr int64_t kTasks = 32;                          // tasks wanted, to occupy many threads
constexpr int64_t kSerialOperations = 1 << 17;          // vector operations that take about 50 microseconds
constexpr int64_t kStreamedBytes = 4 << 20;             // results of this size are written past the caches
constexpr int64_t kExtraBytes = int64_t{64} << 20;      // bound on what backward takes beside its results

int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// ---------------------------------------------------------------- cutting the work

Value value_of(ScalarType dtype) {
  return dtype == ScalarType::Double ? Value::float64
      : dtype == ScalarType::Half    ? Value::float16
      : dtype == ScalarType::BFloat16 ? Value::bfloat16
                                      : Value::float32;
}

Index index_of(ScalarType dtype) {
  return dtype == ScalarType::Long  ? Index::int64
      : dtype == ScalarType::Short  ? Index::int16
      : dtype == ScalarType::UInt16 ? Index::uint16
                                    : Index::int32;
}

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
std::vector<Tile> cut_batch(const FixedFanInShape& shape, int64_t value_bytes, int64_t most) {
  const int64_t fitting = kTileBytes / (shape.in_features * value_bytes + 1);
  const int64_t widest = fitting >= most || fitting < 16 ? most : fitting >= 32 ? 32 : 16;
  std::vector<Tile> tiles;
  for (int64_t row = 0, width; row < shape.batch || tiles.empty(); row += width) {
    width = choose_width(shape.batch - row, widest);
    tiles.push_back({row, std::min(width, shape.batch - row), width, row});
  }
  return tiles;
}

// What a launcher needs.
struct Launch {
  const FixedFanInKernels* kernels;
  FixedFanInShape shape;
  Layer layer;
  std::vector<Tile> tiles;
  int64_t value_bytes;  // of a value in a tile

  int64_t padded_batch() const { return tiles.back().place + tiles.back().width; }
  int64_t packed_bytes() const { return padded_batch() * shape.in_features * value_bytes; }
  // A batch of one, of values as they are summed, is a tile as it stands.
  bool needs_packing() const { return shape.batch > 1 || layer.value == Value::float16 || layer.value == Value::bfloat16; }
};

const FixedFanInKernels* find_kernels(Value value) {
  const bool is_double = value == Value::float64;
#if defined(__x86_64__)
  switch (cpu_capability()) {
    case Capability::avx512:
      return &fixed_fan_in_avx512[is_double];
    case Capability::avx2:
      return &fixed_fan_in_avx2[is_double];
    default:
      break;
  }
#endif
  return &fixed_fan_in_baseline[is_double];
}

// ---------------------------------------------------------------- launchers

// Calls task(t, scratch) once for every t < tasks. Threads take the next task when they are done with one, so that a
// thread that is held up by other work on the machine does not hold up the rest; which thread runs a task has no influence
// on the result. Little work is not worth waking a thread.
template <typename Task>
void run_tasks(int64_t tasks, int64_t operations_per_task, int64_t scratch_bytes, const Task& task) {
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t, int64_t) {
    std::vector<char> scratch(scratch_bytes);
    for (int64_t t = next++; t < tasks; t = next++) {
      task(t, scratch.data());
    }
  };
  const int64_t worthwhile = tasks * operations_per_task / kSerialOperations;
  const int64_t threads = std::min({worthwhile, tasks, int64_t{torch::stable::get_num_threads()}});
  if (threads <= 1) {
    work(0, 1);
  } else {
    torch::stable::parallel_for(0, threads, 1, work);
  }
}

[[noreturn]] void refuse_locations(const char* op, const Launch& launch) {
  int64_t first = 0;
  int64_t last = launch.shape.connections();
  while (last - first > 1) {  // the first invalid one lies in [first, last)
    const int64_t middle = first + (last - first) / 2;
    (launch.kernels->locations_valid(launch.layer, first, middle) ? first : last) = middle;
  }
  const char* at = static_cast<const char*>(launch.layer.locations);
  switch (launch.layer.index) {
    case Index::int16:
      refuse_location(op, launch.shape, first, reinterpret_cast<const int16_t*>(at)[first]);
    case Index::uint16:
      refuse_location(op, launch.shape, first, reinterpret_cast<const uint16_t*>(at)[first]);
    case Index::int32:
      refuse_location(op, launch.shape, first, reinterpret_cast<const int32_t*>(at)[first]);
    default:
      refuse_location(op, launch.shape, first, reinterpret_cast<const int64_t*>(at)[first]);
  }
}

void launch_pack(const Launch& launch, const void* features, void* packed) {
  const int64_t blocks = divide_up(launch.shape.in_features, kPackColumns);
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  run_tasks(tiles * blocks, kPackColumns * launch.tiles[0].width / 4, 0, [&](int64_t task, void*) {
    const int64_t first = task % blocks * kPackColumns;
    const int64_t last = std::min(first + kPackColumns, launch.shape.in_features);
    launch.kernels->pack(launch.layer, launch.tiles[task / blocks], features, first, last, packed);
  });
}

// Returns whether all locations were in range.
bool launch_forward(const Launch& launch, const void* packed, const void* bias, void* result) {
  const FixedFanInShape& shape = launch.shape;
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  const int64_t blocks = divide_up(shape.out_features, kBlock);
  const int64_t fitting = std::max<int64_t>(1, kForwardConnections / (kBlock * shape.fan_in + 1));
  const int64_t chunk = kBlock * std::clamp<int64_t>(blocks / kTasks, 1, fitting);
  const int64_t chunks = divide_up(shape.out_features, chunk);
  const int64_t groups = std::min(tiles, divide_up(kTasks, std::max<int64_t>(1, chunks)));
  const int64_t operations = chunk * (shape.fan_in + 1) * divide_up(launch.padded_batch(), kLanes) / groups;
  const bool streaming = shape.batch * shape.out_features * launch.value_bytes >= kStreamedBytes;
  std::atomic<bool> valid{true};
  run_tasks(chunks * groups, operations, launch.kernels->count_scratch(launch.layer), [&](int64_t t, void* scratch) {
    const int64_t first = t / groups * chunk;
    const int64_t group = t % groups;
    const ForwardTask task{
        packed, bias, result, &launch.tiles[tiles * group / groups], launch.tiles.data() + tiles * (group + 1) / groups,
        first, std::min(first + chunk, shape.out_features), streaming};
    if (!launch.kernels->forward(launch.layer, task, scratch)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  return valid;
}

// Into how many parts the outputs are cut: enough to occupy many threads, but clearing and adding the copies of the
// gradient of the features may not outweigh the products, and the copies of one tile have to stay within bounds.
int64_t count_parts(const Launch& launch, bool copies) {
  const FixedFanInShape& shape = launch.shape;
  int64_t most = std::min(kTasks, divide_up(shape.out_features, kBlock));
  if (copies) {
    const int64_t tile_bytes = launch.tiles[0].width * shape.in_features * launch.value_bytes;
    most = std::min({most, std::max<int64_t>(2, shape.connections() / (16 * shape.in_features + 1)),
                     kExtraBytes / (tile_bytes + 1) - 1});
  }
  int64_t parts = 1;
  while (2 * parts <= most) {
    parts *= 2;
  }
  return parts;
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

// How many tiles are worked off together: as many as kExtraBytes hold with one copy of the features and `copies` of their
// gradient, and at least one.
int64_t count_group_tiles(const Launch& launch, int64_t copies) {
  const int64_t tile_bytes = launch.tiles[0].width * launch.shape.in_features * launch.value_bytes;
  const int64_t fitting = kExtraBytes / ((copies + 1) * tile_bytes + 1);
  return std::clamp<int64_t>(fitting, 1, static_cast<int64_t>(launch.tiles.size()));
}

// Returns whether all locations were in range. `task` says what to compute; its tiles, outputs and copy are set here.
bool launch_backward(const Launch& launch, const BackwardTask& task, int64_t parts, void* partials) {
  const FixedFanInShape& shape = launch.shape;
  const int64_t operations = 3 * (shape.connections() / parts + 1) * divide_up(launch.padded_batch(), kLanes);
  const int64_t copy = launch.packed_bytes();
  std::atomic<bool> valid{true};
  run_tasks(parts, operations, launch.kernels->count_scratch(launch.layer), [&](int64_t part, void* scratch) {
    BackwardTask mine = task;
    mine.partial = partials == nullptr ? nullptr : static_cast<char*>(partials) + part * copy;
    mine.first_tile = launch.tiles.data();
    mine.last_tile = launch.tiles.data() + launch.tiles.size();
    mine.first = shape.out_features * part / parts;
    mine.last = shape.out_features * (part + 1) / parts;
    if (!launch.kernels->backward(launch.layer, mine, scratch)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  return valid;
}

void launch_sum_partials(const Launch& launch, void* partials, int64_t parts, void* grad_features) {
  const int64_t blocks = divide_up(launch.shape.in_features, kPackColumns);
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  const int64_t copy = launch.padded_batch() * launch.shape.in_features;
  run_tasks(tiles * blocks, kPackColumns * launch.tiles[0].width / 8 * parts, 0, [&](int64_t task, void*) {
    const int64_t first = task % blocks * kPackColumns;
    const int64_t last = std::min(first + kPackColumns, launch.shape.in_features);
    launch.kernels->sum_partials(
        launch.layer, launch.tiles[task / blocks], first, last, partials, parts, copy, grad_features);
  });
}

// ---------------------------------------------------------------- host functions

Tensor make_contiguous(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

Launch prepare_launch(const FixedFanInShape& shape, const Tensor& weights, const Tensor& locations, int64_t most_width) {
  const Value value = value_of(weights.scalar_type());
  const int64_t value_bytes = value == Value::float64 ? 8 : 4;
  const Layer layer{weights.const_data_ptr(), locations.const_data_ptr(), shape.in_features, shape.out_features,
                    shape.fan_in, value, index_of(locations.scalar_type()), false};
  return {find_kernels(value), shape, layer, cut_batch(shape, value_bytes, most_width), value_bytes};
}

// An uninitialised vector.
Tensor make_scratch(const Tensor& like, int64_t bytes) {
  const std::array<int64_t, 1> sizes{divide_up(bytes, sizeof(double))};
  return torch::stable::new_empty(like, sizes, ScalarType::Double);
}

// The values of features as tiles of the launch: themselves if they are that already, else packed into the scratch.
const void* pack_features(const Launch& launch, const Tensor& features, const Tensor& scratch) {
  if (!launch.needs_packing()) {
    return features.const_data_ptr();
  }
  launch_pack(launch, features.const_data_ptr(), scratch.mutable_data_ptr());
  return scratch.const_data_ptr();
}

Tensor ffi_forward(
    const Tensor& features, const Tensor& weights, const Tensor& locations, const std::optional<Tensor>& bias) {
  constexpr const char* op = "ffi_forward";
  const FixedFanInShape shape = check_ffi_forward(features, weights, locations, bias);
  const Tensor rows = make_contiguous(features);
  const Tensor values = make_contiguous(weights);
  const Tensor indices = make_contiguous(locations);
  const Tensor offsets = bias.has_value() ? make_contiguous(*bias) : Tensor();
  const Tensor result = torch::stable::new_empty(features, result_sizes(features, weights));
  const Launch launch = prepare_launch(shape, values, indices, kMaxWidth);
  const Tensor packed = make_scratch(features, launch.needs_packing() ? launch.packed_bytes() : 0);
  const bool valid = shape.batch == 0
      ? launch.kernels->locations_valid(launch.layer, 0, shape.connections())
      : launch_forward(
            launch, pack_features(launch, rows, packed), bias.has_value() ? offsets.const_data_ptr() : nullptr,
            result.mutable_data_ptr());
  if (!valid) {
    refuse_locations(op, launch);
  }
  return result;
}

// Runs the launch group by group of tiles. Returns whether all locations were in range.
bool compute_gradients(const Launch& launch, const Tensor& features, BackwardTask task, void* grad_features) {
  const int64_t parts = count_parts(launch, grad_features != nullptr);
  const int64_t copies = grad_features == nullptr ? 0 : parts;
  const int64_t tiles = static_cast<int64_t>(launch.tiles.size());
  const int64_t step = count_group_tiles(launch, copies);
  const bool is_narrow = launch.layer.value == Value::float16 || launch.layer.value == Value::bfloat16;
  const bool keeps_sums = is_narrow && step < tiles;
  const int64_t group_bytes = take_tiles(launch, 0, step).packed_bytes();
  const Tensor packed = make_scratch(features, launch.needs_packing() ? group_bytes : 0);
  const Tensor partials = make_scratch(features, copies * group_bytes);
  const FixedFanInShape& shape = launch.shape;
  const Tensor sums = make_scratch(features, keeps_sums ? (shape.connections() + shape.out_features) * 4 : 0);
  float* kept = keeps_sums ? static_cast<float*>(sums.mutable_data_ptr()) : nullptr;
  task.weights_sums = is_narrow ? kept : task.grad_weights;
  task.bias_sums = !is_narrow ? task.grad_bias : keeps_sums ? kept + shape.connections() : nullptr;
  for (int64_t t = 0; t < tiles; t += step) {
    const Launch group = take_tiles(launch, t, std::min(t + step, tiles));
    task.starts = t == 0;
    task.ends = t + step >= tiles;
    task.packed = task.grad_weights == nullptr ? nullptr : pack_features(group, features, packed);
    if (!launch_backward(group, task, parts, copies == 0 ? nullptr : partials.mutable_data_ptr())) {
      return false;
    }
    if (copies > 0) {
      launch_sum_partials(group, partials.mutable_data_ptr(), parts, grad_features);
    }
  }
  return true;
}

// The gradients that output_mask asks for; each other one is a tensor of shape [0], since the schema has no absent result.
std::tuple<Tensor, Tensor, Tensor> ffi_backward(
    const Tensor& grad_output, const Tensor& features, const Tensor& weights, const Tensor& locations,
    const std::vector<bool>& output_mask) {
  constexpr const char* op = "ffi_backward";
  const FixedFanInShape shape = check_ffi_backward(grad_output, features, weights, locations, output_mask);
  const Tensor grads = make_contiguous(grad_output);
  const Tensor rows = make_contiguous(features);
  const Tensor values = make_contiguous(weights);
  const Tensor indices = make_contiguous(locations);
  const auto make_gradient = [&](bool wanted, std::vector<int64_t> sizes) {
    return torch::stable::new_empty(features, wanted ? sizes : std::vector<int64_t>{0});
  };
  const auto data_if = [](bool wanted, const Tensor& tensor) { return wanted ? tensor.mutable_data_ptr() : nullptr; };
  const auto sizes = features.sizes();
  const Tensor grad_features = make_gradient(output_mask[0], {sizes.begin(), sizes.end()});
  const Tensor grad_weights = make_gradient(output_mask[1], {shape.out_features, shape.fan_in});
  const Tensor grad_bias = make_gradient(output_mask[2], {shape.out_features});
  const Launch launch = prepare_launch(shape, values, indices, kBackwardWidth);
  BackwardTask task{};
  task.grad_output = grads.const_data_ptr();
  task.grad_weights = data_if(output_mask[1], grad_weights);
  task.grad_bias = data_if(output_mask[2], grad_bias);
  if (!compute_gradients(launch, rows, task, data_if(output_mask[0], grad_features))) {
    refuse_locations(op, launch);
  }
  return {grad_features, grad_weights, grad_bias};
}

}  // namespace

// ---------------------------------------------------------------- registration

STABLE_TORCH_LIBRARY_IMPL(torch_sparse_ops, CPU, library) {
  library.impl("ffi_forward", TORCH_BOX(&ffi_forward));
  library.impl("ffi_backward", TORCH_BOX(&ffi_backward));
}

}  // namespace torch_sparse_ops
