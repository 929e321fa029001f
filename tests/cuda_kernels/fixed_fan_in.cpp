// The CUDA kernels and launchers of the fixed fan-in operators, for one type of values (VALUE), against plain loops in
// double: batches of every width, tiles in and out of shared memory, sizes that are no multiple of anything, arrays that
// begin anywhere, every width of locations; and the bytes that forward moves.
#include "bytes.h"
#include "problem.h"

#include <set>

namespace {

void check_forward(const Problem& problem, const Setting& setting) {
  const Memory memory(problem, setting);
  const Buffer<VALUE> scratch = allocate_scratch(count_forward(problem, setting, memory));
  const Buffer<VALUE> result("result", problem.shape.batch * problem.shape.outputs);
  run_forward_call(problem, setting, memory, scratch, result);
  Expected expected(result.size());
  for (size_t i = 0; i < result.size() && setting.with_bias; ++i) {
    expected.add(i, problem.bias[i % problem.shape.outputs]);
  }
  problem.for_products([&](int64_t b, int64_t o, int64_t c, int64_t i) {
    expected.add(b * problem.shape.outputs + o, problem.weights[c] * problem.features[b * problem.shape.inputs + i]);
  });
  require_near(result, expected, describe(problem.shape, "forward"));
}

void check_gradients(const Problem& problem, const Buffer<VALUE>& features, const Buffer<VALUE>& weights, const Buffer<VALUE>& bias) {
  const Shape& shape = problem.shape;
  Expected of_features(problem.features.size()), of_weights(problem.weights.size()), of_bias(problem.bias.size());
  problem.for_products([&](int64_t b, int64_t o, int64_t c, int64_t i) {
    const double grad = problem.grads[b * shape.outputs + o];
    of_features.add(b * shape.inputs + i, grad * problem.weights[c]);
    of_weights.add(c, grad * problem.features[b * shape.inputs + i]);
  });
  for (size_t i = 0; i < problem.grads.size(); ++i) {
    of_bias.add(i % shape.outputs, problem.grads[i]);
  }
  require_near(features, of_features, describe(shape, "gradient of the features"));
  require_near(weights, of_weights, describe(shape, "gradient of the weights"));
  require_near(bias, of_bias, describe(shape, "gradient of the bias"));
}

// All gradients in one call, then that of the features alone, which must give the same bits unless the order of sums is free.
void check_backward(const Problem& problem, const Setting& setting, bool atomic) {
  const Memory memory(problem, setting);
  const Order order(problem);
  const Buffer<int64_t> offsets("offsets", order.offsets), wide("order", order.connections);
  const Buffer<int32_t> narrow = upload<int32_t>("order", order.connections);
  const Transposed transposed{
      atomic ? nullptr : offsets.data(), setting.wide ? static_cast<const void*>(wide.data()) : narrow.data(), setting.wide};
  const Buffer<VALUE> features("grad_features", problem.features.size());
  const Buffer<VALUE> weights("grad_weights", problem.weights.size()), bias("grad_bias", problem.bias.size());
  const auto run = [&](const Gradients& gradients) {
    const Buffer<VALUE> scratch = allocate_scratch(
        launchers.count_backward_scratch(setting.device, memory.layer, problem.shape.batch, atomic, gradients));
    launchers.backward(
        setting.device, memory.layer, problem.shape.batch, memory.grads.data(), memory.features.data(), transposed,
        scratch.data(), nullptr, gradients);
  };
  run({features.data(), weights.data(), bias.data()});
  check_gradients(problem, features, weights, bias);
  const Buffer<VALUE> again("grad_features", features.size());
  run({again.data(), nullptr, nullptr});
  require(
      atomic || std::memcmp(again.data(), features.data(), features.size() * sizeof(VALUE)) == 0,
      describe(problem.shape, "gradient of the features alone"));
}

// ---------------------------------------------------------------- cases

// Each width of tiles, full and not; few and many steps; several chunks for a block.
const Shape kShapes[] = {
    {1, 7, 5, 3},    {1, 50, 300, 40}, {2, 9, 64, 4},    {4, 30, 65, 9},   {5, 60, 130, 17}, {16, 33, 7, 8},
    {17, 103, 3, 1}, {32, 20, 150, 30}, {33, 40, 40, 31}, {40, 2, 70, 33}, {70, 5, 2, 5},    {100, 64, 90, 70},
};
const Shape kEmptyShapes[] = {{3, 7, 5, 0}, {3, 7, 0, 3}, {1, 7, 5, 0}};

template <typename Check>
void for_settings(const Check& check) {
  int turn = 0;
  for (const Shape& shape : kShapes) {
    const Problem problem(shape);
    for (const Device& device : {kRoomy, kCramped}) {
      constexpr int bytes[] = {4, 2, 8};
      check(problem, Setting{device, bytes[turn % 3], turn % 4 == 3, turn % 5 != 4, turn % 2 == 1});
      ++turn;
    }
  }
  for (const Shape& shape : kEmptyShapes) {
    check(Problem(shape), Setting{kRoomy, 4, 0, true, false});
  }
}

void computes_forward() { for_settings(check_forward); }
void computes_backward() {
  for_settings([](const Problem& problem, const Setting& setting) { check_backward(problem, setting, false); });
}
void adds_atomically_on_request() {
  for_settings([](const Problem& problem, const Setting& setting) { check_backward(problem, setting, true); });
}

// An empty batch launches nothing.
void leaves_an_empty_batch() {
  const Problem problem({0, 7, 5, 3});
  check_forward(problem, {kRoomy, 4, 0, true, false});
}

// The shapes above meet every kernel: each width, staged and not, in both passes.
void meets_every_kernel() {
  for (const Pass pass : {Pass::forward, Pass::backward}) {
    std::set<std::pair<int, bool>> met;
    for_settings([&](const Problem& problem, const Setting& setting) {
      const Memory memory(problem, setting);
      const Plan plan = make_plan<VALUE>(setting.device, memory.layer, problem.shape.batch, pass);
      met.insert({plan.width.shift, plan.staged});
    });
    for (int w = 0; w <= kWidest<VALUE>; ++w) {
      for (const bool staged : {false, true}) {
        require(met.count({kWidths[w].shift, staged}) == 1,
                "width " + to_string(kWidths[w].count()) + (staged ? ", staged" : "") + " is met by no shape, pass " +
                    to_string(static_cast<int>(pass)));
      }
    }
  }
}

template <typename Work>
void require_trap(const Work& work, const char* what) {
  bool trapped = false;
  try {
    work();
  } catch (const simt::Failure& failure) {
    trapped = std::string(failure.what()).find("trap") != std::string::npos;
  }
  require(trapped, what);
}

void refuses_locations_out_of_range() {
  for (const int bytes : {2, 4, 8}) {
    Problem problem({4, 10, 70, 5});
    problem.locations[333] = 9;
    check_forward(problem, {kRoomy, bytes, 0, false, false});
    problem.locations[333] = 10;
    require_trap([&] { check_forward(problem, {kRoomy, bytes, 0, false, false}); }, "a location that is too large");
    problem.locations[333] = -1;
    require_trap([&] { check_forward(problem, {kRoomy, bytes, 0, false, false}); }, "a negative location");
    require_trap([&] { check_backward(problem, {kRoomy, bytes, 0, false, false}, false); }, "a negative location, backward");
  }
}

// What the environment trusts is not looked at: here, inputs beyond those that the layer says it has.
void trusts_locations_on_request() {
  const Problem problem({1, 10, 70, 5});
  const Setting setting{kCramped, 4, 0, false, false};
  Memory memory(problem, setting);
  memory.layer.in_features = 5;
  memory.layer.limit = UINT64_MAX;
  const Buffer<VALUE> scratch = allocate_scratch(count_forward(problem, setting, memory));
  const Buffer<VALUE> result("result", problem.bias.size());
  run_forward_call(problem, setting, memory, scratch, result);
  result.values();
}

}  // namespace

int main(int count, char** words) {
  return simt::run_cases(
      count, words,
      {{"computes_forward", computes_forward},
       {"computes_backward", computes_backward},
       {"adds_atomically_on_request", adds_atomically_on_request},
       {"leaves_an_empty_batch", leaves_an_empty_batch},
       {"meets_every_kernel", meets_every_kernel},
       {"refuses_locations_out_of_range", refuses_locations_out_of_range},
       {"trusts_locations_on_request", trusts_locations_on_request},
       {"forward_moves_few_bytes", forward_moves_few_bytes},
       {"backward_moves_few_bytes", backward_moves_few_bytes}});
}
