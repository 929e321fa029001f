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
//   forward    groups of tiles, each packed and then met by chunks of outputs; consecutive tiles of a group meet the same
//              chunk, whose weights stay in the cache, and threads begin with groups of their own, which they have packed
//   backward   parts of the outputs, each over all tiles in order, with its own copy of the gradient of the features
//   then       the copies are added in order, while the sum is brought back to batch-major
// Tiles of which two do not fit the L2 cache take turns: each is a group of its own, and the gradient of the features, which
// then needs fewer copies, a step of its own. All steps of a call run on threads that are woken once. Copies may take
// 64 MiB; beyond it the batch is worked off in groups of tiles.
//
// Locations are checked by the task that is about to use them, while it brings them into the cache, or in a step before
// where two steps of the backward pass use them: that costs little, no access depends on an earlier call, and nothing may
// throw inside a parallel region, so tasks return what they found.
//
// The kernels, which know neither threads nor tensors, stand in fixed_fan_in_kernels.cpp; how the work is cut in
// fixed_fan_in_launch.cpp, how it is spread over threads in steps.h. Here follow the host functions and the registration.

#include "../fixed_fan_in.h"
#include "../settings.h"

#include "fixed_fan_in_launch.h"

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <initializer_list>
#include <memory>
#include <tuple>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace torch_sparse_ops {
namespace {

Value value_of(ScalarType dtype) {
  return dtype == ScalarType::Double  ? Value::float64
      : dtype == ScalarType::Half     ? Value::float16
      : dtype == ScalarType::BFloat16 ? Value::bfloat16
                                      : Value::float32;
}

Index index_of(ScalarType dtype) {
  return dtype == ScalarType::Long  ? Index::int64
      : dtype == ScalarType::Short  ? Index::int16
      : dtype == ScalarType::UInt16 ? Index::uint16
                                    : Index::int32;
}

Layer describe_layer(const FixedFanInShape& shape, const Tensor& weights, const Tensor& locations) {
  return {weights.const_data_ptr(), locations.const_data_ptr(), shape.in_features, shape.out_features, shape.fan_in,
          value_of(weights.scalar_type()), index_of(locations.scalar_type()), trusts_locations(), false};
}

Threads use_torch_threads() {
  return {torch::stable::get_num_threads(), [](int64_t count, void (*work)(void*), void* context) {
            torch::stable::parallel_for(0, count, 1, [=](int64_t, int64_t) { work(context); });
          }};
}

Tensor make_contiguous(const Tensor& tensor) { return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor); }

// The C library gives large blocks back to the system and maps them anew: with small pages, the faults of the first touch
// take longer than the products. This is advice only; failing costs nothing but time.
void prefer_huge_pages(const Tensor& tensor, int64_t bytes) {
#if defined(__linux__)
  constexpr int64_t page = kHugePageBytes;
  if (bytes >= 2 * page) {
    const auto first = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
    const uintptr_t begin = (first + page - 1) / page * page;
    madvise(reinterpret_cast<void*>(begin), (first + bytes - begin) / page * page, MADV_HUGEPAGE);
  }
#endif
}

// Uninitialised memory for one call, in parts that begin at cache lines. A small amount a thread keeps for its next calls:
// the C library would give it back to the system, and every call would begin with the faults of new pages.
class Scratch {
 public:
  Scratch(const Tensor& like, std::initializer_list<int64_t> parts) {
    int64_t bytes = kLine;
    for (const int64_t part : parts) {
      bytes += divide_up(part, kLine) * kLine;
    }
    if (bytes <= kKeptBytes) {
      thread_local const std::unique_ptr<char[]> kept(new char[kKeptBytes]);
      next_ = kept.get();
    } else {
      tensor_ = torch::stable::new_empty(like, std::array<int64_t, 1>{bytes}, ScalarType::Byte);
      prefer_huge_pages(tensor_, bytes);
      next_ = static_cast<char*>(tensor_.mutable_data_ptr());
    }
    next_ += -reinterpret_cast<uintptr_t>(next_) % kLine;
  }

  // The next part, as they were announced.
  void* take(int64_t part) {
    char* const taken = next_;
    next_ += divide_up(part, kLine) * kLine;
    return taken;
  }

 private:
  static constexpr int64_t kLine = 64;
  static constexpr int64_t kKeptBytes = 4 << 20;
  Tensor tensor_;  // owns what is not kept
  char* next_;
};

[[noreturn]] void refuse_invalid_location(const char* op, const FixedFanInShape& shape, const Launch& launch) {
  const int64_t connection = find_invalid_location(launch);
  const void* locations = launch.layer.locations;
  switch (launch.layer.index) {
    case Index::int16:
      refuse_location(op, shape, connection, static_cast<const int16_t*>(locations)[connection]);
    case Index::uint16:
      refuse_location(op, shape, connection, static_cast<const uint16_t*>(locations)[connection]);
    case Index::int32:
      refuse_location(op, shape, connection, static_cast<const int32_t*>(locations)[connection]);
    default:
      refuse_location(op, shape, connection, static_cast<const int64_t*>(locations)[connection]);
  }
}

Tensor ffi_forward(
    const Tensor& features, const Tensor& weights, const Tensor& locations, const std::optional<Tensor>& bias) {
  constexpr const char* op = "ffi_forward";
  const FixedFanInShape shape = check_ffi_forward(features, weights, locations, bias);
  const Tensor rows = make_contiguous(features);
  const Tensor values = make_contiguous(weights);
  const Tensor indices = make_contiguous(locations);
  const Tensor offsets = bias.has_value() ? make_contiguous(*bias) : rows;
  const Tensor result = torch::stable::new_empty(features, result_sizes(features, weights));
  const Launch launch = plan_forward(cpu_capability(), describe_layer(shape, values, indices), shape.batch);
  prefer_huge_pages(result, result.numel() * rows.element_size());
  const int64_t packed_bytes = launch.needs_packing() ? launch.packed_bytes() : 0;
  Scratch scratch(features, {packed_bytes});
  const void* bias_data = bias.has_value() ? offsets.const_data_ptr() : nullptr;
  if (!run_forward(
          use_torch_threads(), launch, rows.const_data_ptr(), bias_data, scratch.take(packed_bytes),
          result.mutable_data_ptr())) {
    refuse_invalid_location(op, shape, launch);
  }
  return result;
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
    const Tensor gradient = torch::stable::new_empty(features, wanted ? sizes : std::vector<int64_t>{0});
    prefer_huge_pages(gradient, gradient.numel() * gradient.element_size());
    return gradient;
  };
  const auto data_if = [](bool wanted, const Tensor& tensor) { return wanted ? tensor.mutable_data_ptr() : nullptr; };
  const auto sizes = features.sizes();
  const Tensor grad_features = make_gradient(output_mask[0], {sizes.begin(), sizes.end()});
  const Tensor grad_weights = make_gradient(output_mask[1], {shape.out_features, shape.fan_in});
  const Tensor grad_bias = make_gradient(output_mask[2], {shape.out_features});
  const Launch launch = plan_backward(cpu_capability(), describe_layer(shape, values, indices), shape.batch);
  const BackwardPlan plan = plan_memory(launch, output_mask[0]);
  Scratch scratch(features, {plan.packed_bytes, plan.partial_bytes, plan.sums_bytes});
  void* const packed = scratch.take(plan.packed_bytes);
  void* const partials = scratch.take(plan.partial_bytes);
  void* const sums = scratch.take(plan.sums_bytes);
  const Gradients gradients{
      data_if(output_mask[0], grad_features), data_if(output_mask[1], grad_weights), data_if(output_mask[2], grad_bias)};
  if (!run_backward(
          use_torch_threads(), launch, plan, grads.const_data_ptr(), rows.const_data_ptr(), gradients,
          packed, partials, sums)) {
    refuse_invalid_location(op, shape, launch);
  }
  return {grad_features, grad_weights, grad_bias};
}

int64_t report_cpu_capability() { return static_cast<int64_t>(cpu_capability()); }

}  // namespace

// ---------------------------------------------------------------- registration

STABLE_TORCH_LIBRARY_IMPL(torch_sparse_ops, CPU, library) {
  library.impl("ffi_forward", TORCH_BOX(&ffi_forward));
  library.impl("ffi_backward", TORCH_BOX(&ffi_backward));
}

STABLE_TORCH_LIBRARY_IMPL(torch_sparse_ops, CompositeExplicitAutograd, library) {
  library.impl("_cpu_capability", TORCH_BOX(&report_cpu_capability));
}

}  // namespace torch_sparse_ops
