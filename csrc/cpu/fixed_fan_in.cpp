// Fixed fan-in operators on the CPU. The formulas stand in ../fixed_fan_in.h.
//
// Layout. features is batch-major, so one output would gather single values from all over a row. They are packed first
// into tiles [in_features][width] of `width` batch entries each, padded with zeros: the value of one connection is then one
// contiguous row of a tile, used by `width` products at once with plain vector instructions. Results are collected in a
// block [outputs][width] that stays in the first-level cache and leave it transposed, as whole rows of the result.
//
// Precision. Everything between packing and storing is in accumulate_t: float for float and narrower, double for double.
//
// Threads. Work is cut by the shape alone, never by the number of threads, and every partial sum has one owner; partial
// sums are added in a fixed order. So results carry the same bits for any number of threads, and there are no atomics.
//   forward            (chunk of outputs) x (tile); consecutive tiles meet the same chunk, whose weights stay in the cache
//   gradient: weights  blocks of outputs, each over all tiles in order
//   gradient: features (tile) x (part of the outputs), each part with its own copy of the tile's gradient, added in order
//   gradient: bias     blocks of outputs, each over all rows in order
//
// The kernels, which know neither threads nor tensors, stand in fixed_fan_in_kernels.h. Here follow launchers (raw pointers,
// sizes and threads), host functions (tensors) and the registration.

#include "../fixed_fan_in.h"

#include "fixed_fan_in_kernels.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/Dispatch_v2.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <tuple>
#include <type_traits>

namespace torch_sparse_ops {
namespace {

constexpr int64_t kBlock = 64;                       // outputs per block
constexpr int64_t kPackColumns = 512;                // columns of features packed by one task
constexpr int64_t kChunkBytes = 128 << 10;           // weights and locations of one chunk: half of a small L2 cache
constexpr int64_t kTaskOperations = 32768;           // fewer products than this are not worth another thread
constexpr int64_t kParts = 32;                       // tasks wanted for the gradient of features
constexpr int64_t kPartialBytes = int64_t{64} << 20;  // bound on the copies of the gradient of features

int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// ---------------------------------------------------------------- launchers

template <typename Task>
void run_tasks(int64_t tasks, int64_t operations_per_task, const Task& task) {
  const int64_t grain = std::max<int64_t>(1, kTaskOperations / std::max<int64_t>(1, operations_per_task));
  torch::stable::parallel_for(0, tasks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      task(t);
    }
  });
}

// Throws for the first location out of range. The parallel scan only sets a flag: nothing may throw inside it.
template <typename index_t>
void check_locations(const char* op, const index_t* locations, const FixedFanInShape& shape) {
  const int64_t count = shape.connections();
  std::atomic<bool> valid{true};
  run_tasks(divide_up(count, kTaskOperations), kTaskOperations, [&](int64_t task) {
    const int64_t begin = task * kTaskOperations;
    const int64_t length = std::min(kTaskOperations, count - begin);
    if (!locations_valid(locations + begin, length, shape.in_features)) {
      valid.store(false, std::memory_order_relaxed);
    }
  });
  for (int64_t c = 0; !valid && c < count; ++c) {
    if (!locations_valid(locations + c, 1, shape.in_features)) {
      refuse_location(op, shape, c, static_cast<int64_t>(locations[c]));
    }
  }
}

// packed[tiles][in_features][width] from features[batch][in_features].
template <int64_t width, typename value_t>
void pack_features(const value_t* features, const FixedFanInShape& shape, accumulate_t<value_t>* packed) {
  const int64_t tiles = divide_up(shape.batch, width);
  const int64_t blocks = divide_up(shape.in_features, kPackColumns);
  run_tasks(tiles * blocks, kPackColumns * width, [&](int64_t task) {
    const int64_t row = task / blocks * width;
    const int64_t column = task % blocks * kPackColumns;
    load_transposed<width>(
        features + row * shape.in_features + column, shape.in_features, std::min(width, shape.batch - row),
        std::min(kPackColumns, shape.in_features - column), packed + row * shape.in_features + column * width);
  });
}

// result[batch][out_features]; packed as pack_features leaves it; bias may be null.
template <int64_t width, typename value_t, typename index_t>
void launch_forward(
    const accumulate_t<value_t>* packed, const value_t* weights, const index_t* locations, const value_t* bias,
    const FixedFanInShape& shape, value_t* result) {
  const int64_t bytes_per_output = shape.fan_in * static_cast<int64_t>(sizeof(value_t) + sizeof(index_t));
  const int64_t chunk = kBlock * std::clamp<int64_t>(kChunkBytes / (kBlock * bytes_per_output + 1), 1, 16);
  const int64_t tiles = divide_up(shape.batch, width);
  run_tasks(tiles * divide_up(shape.out_features, chunk), chunk * (shape.fan_in + 1) * width, [&](int64_t task) {
    const int64_t row = task % tiles * width;
    const int64_t first = task / tiles * chunk;
    const int64_t last = std::min(first + chunk, shape.out_features);
    accumulate_t<value_t> block[kBlock * width];
    for (int64_t o = first; o < last; o += kBlock) {
      const int64_t outputs = std::min(kBlock, last - o);
      forward_block<width>(
          packed + row * shape.in_features, weights + o * shape.fan_in, locations + o * shape.fan_in,
          bias == nullptr ? nullptr : bias + o, shape.fan_in, outputs, block);
      store_transposed<width>(
          block, shape.out_features, std::min(width, shape.batch - row), outputs, result + row * shape.out_features + o);
    }
  });
}

// grad_weights[out_features][fan_in].
template <int64_t width, typename value_t, typename index_t>
void launch_weights_gradient(
    const value_t* grad_output, const accumulate_t<value_t>* packed, const index_t* locations,
    const FixedFanInShape& shape, value_t* grad_weights) {
  using sum_t = accumulate_t<value_t>;
  const int64_t tasks = divide_up(shape.out_features, kBlock);
  run_tasks(tasks, kBlock * shape.fan_in * shape.batch, [&](int64_t task) {
    const int64_t o = task * kBlock;
    const int64_t outputs = std::min(kBlock, shape.out_features - o);
    std::vector<sum_t> sums(outputs * shape.fan_in);
    sum_t grads[kBlock * width];
    for (int64_t row = 0; row < shape.batch; row += width) {
      load_transposed<width>(
          grad_output + row * shape.out_features + o, shape.out_features, std::min(width, shape.batch - row), outputs,
          grads);
      weights_gradient_block<width>(
          packed + row * shape.in_features, grads, locations + o * shape.fan_in, shape.fan_in, outputs, sums.data());
    }
    std::transform(sums.begin(), sums.end(), grad_weights + o * shape.fan_in, [](sum_t sum) {
      return static_cast<value_t>(sum);
    });
  });
}

// Into how many parts the outputs are cut for the gradient of features: enough to occupy many threads, but none so small
// that clearing and adding its copy of the gradient outweighs its products, and all copies within kPartialBytes.
template <int64_t width, typename value_t>
int64_t count_parts(const FixedFanInShape& shape) {
  const int64_t tiles = std::max<int64_t>(1, divide_up(shape.batch, width));
  const int64_t copy_bytes = tiles * width * shape.in_features * static_cast<int64_t>(sizeof(accumulate_t<value_t>));
  const int64_t worthwhile = shape.connections() / (4 * std::max<int64_t>(1, shape.in_features));
  const int64_t affordable = kPartialBytes / std::max<int64_t>(1, copy_bytes);
  return std::max<int64_t>(1, std::min({divide_up(kParts, tiles), worthwhile, affordable, shape.out_features}));
}

// partials[tiles][parts][in_features][width].
template <int64_t width, typename value_t, typename index_t>
void launch_partial_features_gradients(
    const value_t* grad_output, const value_t* weights, const index_t* locations, const FixedFanInShape& shape,
    int64_t parts, accumulate_t<value_t>* partials) {
  const int64_t copy = shape.in_features * width;
  const int64_t operations = shape.connections() * width / parts + copy;
  run_tasks(divide_up(shape.batch, width) * parts, operations, [&](int64_t task) {
    const int64_t row = task / parts * width;
    const int64_t first = shape.out_features * (task % parts) / parts;
    const int64_t last = shape.out_features * (task % parts + 1) / parts;
    accumulate_t<value_t>* partial = partials + task * copy;
    std::fill(partial, partial + copy, 0);
    accumulate_t<value_t> grads[kBlock * width];
    for (int64_t o = first; o < last; o += kBlock) {
      const int64_t outputs = std::min(kBlock, last - o);
      load_transposed<width>(
          grad_output + row * shape.out_features + o, shape.out_features, std::min(width, shape.batch - row), outputs,
          grads);
      features_gradient_block<width>(
          grads, weights + o * shape.fan_in, locations + o * shape.fan_in, shape.fan_in, outputs, partial);
    }
  });
}

// grad_features[batch][in_features] from the partial sums of its parts, added in their order.
template <int64_t width, typename value_t>
void launch_sum_partials(
    accumulate_t<value_t>* partials, const FixedFanInShape& shape, int64_t parts, value_t* grad_features) {
  const int64_t blocks = divide_up(shape.in_features, kPackColumns);
  const int64_t copy = shape.in_features * width;
  run_tasks(divide_up(shape.batch, width) * blocks, kPackColumns * width * parts, [&](int64_t task) {
    const int64_t row = task / blocks * width;
    const int64_t column = task % blocks * kPackColumns;
    const int64_t columns = std::min(kPackColumns, shape.in_features - column);
    accumulate_t<value_t>* total = partials + task / blocks * parts * copy + column * width;
    for (int64_t part = 1; part < parts; ++part) {
      const accumulate_t<value_t>* partial = total + part * copy;
      for (int64_t v = 0; v < columns * width; ++v) {
        total[v] += partial[v];
      }
    }
    store_transposed<width>(
        total, shape.in_features, std::min(width, shape.batch - row), columns,
        grad_features + row * shape.in_features + column);
  });
}

// grad_bias[out_features].
template <typename value_t>
void launch_bias_gradient(const value_t* grad_output, const FixedFanInShape& shape, value_t* grad_bias) {
  using sum_t = accumulate_t<value_t>;
  run_tasks(divide_up(shape.out_features, kBlock), kBlock * shape.batch, [&](int64_t task) {
    const int64_t o = task * kBlock;
    const int64_t outputs = std::min(kBlock, shape.out_features - o);
    sum_t sums[kBlock] = {};
    for (int64_t row = 0; row < shape.batch; ++row) {
      for (int64_t j = 0; j < outputs; ++j) {
        sums[j] += static_cast<sum_t>(grad_output[row * shape.out_features + o + j]);
      }
    }
    for (int64_t j = 0; j < outputs; ++j) {
      grad_bias[o + j] = static_cast<value_t>(sums[j]);
    }
  });
}

// ---------------------------------------------------------------- host functions

template <typename value_t>
struct Type {
  using type = value_t;
};

// Calls function(Type<value_t>{}, Type<index_t>{}) for the dtypes of the two tensors, which the checks have admitted.
template <typename Function>
void dispatch_types(const Tensor& features, const Tensor& locations, const Function& function) {
  THO_DISPATCH_V2(features.scalar_type(), "fixed_fan_in", AT_WRAP([&] {
    using value_t = scalar_t;
    THO_DISPATCH_V2(locations.scalar_type(), "fixed_fan_in", AT_WRAP([&] {
      function(Type<value_t>{}, Type<scalar_t>{});
    }), ScalarType::Int, ScalarType::Long);
  }), ScalarType::Float, ScalarType::Double, ScalarType::Half, ScalarType::BFloat16);
}

// Calls function(std::integral_constant<int64_t, width>{}) for the tile width that suits the batch.
template <typename Function>
void dispatch_width(int64_t batch, const Function& function) {
  if (batch == 1) {
    function(std::integral_constant<int64_t, 1>{});
  } else if (batch <= 4) {
    function(std::integral_constant<int64_t, 4>{});
  } else {
    function(std::integral_constant<int64_t, 16>{});
  }
}

Tensor make_contiguous(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

// An uninitialised vector of accumulate_t, aligned for the widest loads.
template <typename value_t>
Tensor make_scratch(const Tensor& features, int64_t count) {
  constexpr bool is_double = std::is_same_v<accumulate_t<value_t>, double>;
  const std::array<int64_t, 1> sizes{count};
  return torch::stable::new_empty(features, sizes, is_double ? ScalarType::Double : ScalarType::Float);
}

template <int64_t width, typename value_t>
Tensor make_packed_features(const Tensor& features, const FixedFanInShape& shape) {
  using sum_t = accumulate_t<value_t>;
  const Tensor packed = make_scratch<value_t>(features, divide_up(shape.batch, width) * width * shape.in_features);
  pack_features<width>(features.const_data_ptr<value_t>(), shape, packed.mutable_data_ptr<sum_t>());
  return packed;
}

template <typename value_t>
const value_t* data_or_null(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? tensor->const_data_ptr<value_t>() : nullptr;
}

Tensor ffi_forward(
    const Tensor& features, const Tensor& weights, const Tensor& locations, const std::optional<Tensor>& bias) {
  const FixedFanInShape shape = check_ffi_forward(features, weights, locations, bias);
  const Tensor rows = make_contiguous(features);
  const Tensor values = make_contiguous(weights);
  const Tensor indices = make_contiguous(locations);
  const std::optional<Tensor> offsets = bias.has_value() ? std::optional(make_contiguous(*bias)) : std::nullopt;
  const Tensor result = torch::stable::new_empty(features, result_sizes(features, weights));
  dispatch_types(rows, indices, [&](auto value_type, auto index_type) {
    using value_t = typename decltype(value_type)::type;
    using index_t = typename decltype(index_type)::type;
    check_locations("ffi_forward", indices.const_data_ptr<index_t>(), shape);
    dispatch_width(shape.batch, [&](auto width) {
      const Tensor packed = make_packed_features<width, value_t>(rows, shape);
      launch_forward<width>(
          packed.const_data_ptr<accumulate_t<value_t>>(), values.const_data_ptr<value_t>(),
          indices.const_data_ptr<index_t>(), data_or_null<value_t>(offsets), shape,
          result.mutable_data_ptr<value_t>());
    });
  });
  return result;
}

template <int64_t width, typename value_t, typename index_t>
void compute_features_gradient(
    const Tensor& grads, const Tensor& weights, const Tensor& locations, const FixedFanInShape& shape,
    const Tensor& grad_features) {
  using sum_t = accumulate_t<value_t>;
  const int64_t parts = count_parts<width, value_t>(shape);
  const Tensor partials =
      make_scratch<value_t>(grads, divide_up(shape.batch, width) * parts * shape.in_features * width);
  launch_partial_features_gradients<width>(
      grads.const_data_ptr<value_t>(), weights.const_data_ptr<value_t>(), locations.const_data_ptr<index_t>(), shape,
      parts, partials.mutable_data_ptr<sum_t>());
  launch_sum_partials<width>(partials.mutable_data_ptr<sum_t>(), shape, parts, grad_features.mutable_data_ptr<value_t>());
}

// The gradients that output_mask asks for; each other one is a tensor of shape [0], since the schema has no absent result.
std::tuple<Tensor, Tensor, Tensor> ffi_backward(
    const Tensor& grad_output, const Tensor& features, const Tensor& weights, const Tensor& locations,
    const std::vector<bool>& output_mask) {
  const FixedFanInShape shape = check_ffi_backward(grad_output, features, weights, locations, output_mask);
  const Tensor grads = make_contiguous(grad_output);
  const Tensor values = make_contiguous(weights);
  const Tensor indices = make_contiguous(locations);
  const auto make_gradient = [&](bool wanted, std::vector<int64_t> sizes) {
    return torch::stable::new_empty(features, wanted ? sizes : std::vector<int64_t>{0});
  };
  const auto sizes = features.sizes();
  const Tensor grad_features = make_gradient(output_mask[0], {sizes.begin(), sizes.end()});
  const Tensor grad_weights = make_gradient(output_mask[1], {shape.out_features, shape.fan_in});
  const Tensor grad_bias = make_gradient(output_mask[2], {shape.out_features});
  dispatch_types(features, indices, [&](auto value_type, auto index_type) {
    using value_t = typename decltype(value_type)::type;
    using index_t = typename decltype(index_type)::type;
    check_locations("ffi_backward", indices.const_data_ptr<index_t>(), shape);
    dispatch_width(shape.batch, [&](auto width) {
      if (output_mask[0]) {
        compute_features_gradient<width, value_t, index_t>(grads, values, indices, shape, grad_features);
      }
      if (output_mask[1]) {
        const Tensor packed = make_packed_features<width, value_t>(make_contiguous(features), shape);
        launch_weights_gradient<width>(
            grads.const_data_ptr<value_t>(), packed.const_data_ptr<accumulate_t<value_t>>(),
            indices.const_data_ptr<index_t>(), shape, grad_weights.mutable_data_ptr<value_t>());
      }
    });
    if (output_mask[2]) {
      launch_bias_gradient(grads.const_data_ptr<value_t>(), shape, grad_bias.mutable_data_ptr<value_t>());
    }
  });
  return {grad_features, grad_weights, grad_bias};
}

}  // namespace

// ---------------------------------------------------------------- registration

STABLE_TORCH_LIBRARY_IMPL(torch_sparse_ops, CPU, library) {
  library.impl("ffi_forward", TORCH_BOX(&ffi_forward));
  library.impl("ffi_backward", TORCH_BOX(&ffi_backward));
}

}  // namespace torch_sparse_ops
