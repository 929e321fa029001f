// The CUDA kernels and launchers of the fixed fan-in operators, for one type of values (VALUE), against plain loops in
// double: batches of every width, tiles in and out of shared memory, sizes that are no multiple of anything, arrays that
// begin anywhere, every width of locations; and the bytes that forward moves.
#define TABLE launchers
#include "fixed_fan_in.cu"
#include "simt/buffer.h"
#include "simt/cases.h"

#include <cmath>
#include <random>
#include <set>

namespace {

using namespace torch_sparse_ops;
using simt::Buffer;
using simt::require;
using std::to_string;

using Values = std::vector<double>;

// Rounding of one result, relative to the sum of the magnitudes of its terms.
constexpr double kTolerance = std::is_same<VALUE, double>::value ? 1e-14 : std::is_same<VALUE, float>::value ? 2e-6
    : std::is_same<VALUE, __half>::value                                  ? 1e-3
                                                                          : 8e-3;

// Small ones, so that few blocks take several chunks each.
constexpr Device kRoomy{2, 1024, 228 << 10, 227 << 10};
constexpr Device kCramped{2, 1024, 64 << 10, 0};  // nothing can be staged

struct Shape {
  int64_t batch, inputs, outputs, fan_in;
};

std::string describe(const Shape& shape, const char* what) {
  return std::string(what) + " of batch " + to_string(shape.batch) + ", " + to_string(shape.inputs) + " inputs, " +
      to_string(shape.outputs) + " outputs, fan-in " + to_string(shape.fan_in);
}

// Values as they are once they are rounded to VALUE.
Values draw(std::mt19937& random, int64_t count) {
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& value : values) {
    value = static_cast<double>(widen(VALUE(normal(random))));
  }
  return values;
}

// An array on the device that begins `shift` elements behind a multiple of 16 bytes.
template <typename Element, typename Source>
Buffer<Element> upload(const char* name, const std::vector<Source>& source, int64_t shift = 0) {
  std::vector<Element> elements(shift, Element());
  for (const Source& value : source) {
    elements.push_back(Element(value));
  }
  return {name, elements};
}

struct Problem {
  Shape shape;
  Values features, weights, bias, grads;
  std::vector<int64_t> locations;

  explicit Problem(const Shape& shape) : shape(shape) {
    std::mt19937 random(static_cast<unsigned>(shape.outputs + shape.batch));
    features = draw(random, shape.batch * shape.inputs);
    weights = draw(random, shape.outputs * shape.fan_in);
    bias = draw(random, shape.outputs);
    grads = draw(random, shape.batch * shape.outputs);
    locations.resize(weights.size());
    for (int64_t& location : locations) {
      location = static_cast<int64_t>(random() % shape.inputs);
    }
    for (int64_t o = 2; o < shape.outputs; o += 5) {  // outputs without a gradient are passed over
      for (int64_t b = 0; b < shape.batch; ++b) {
        grads[b * shape.outputs + o] = 0;
      }
    }
  }

  // Calls visit(batch entry, output, connection, input) for every product.
  template <typename Visit>
  void for_products(const Visit& visit) const {
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t c = 0; c < static_cast<int64_t>(weights.size()); ++c) {
        visit(b, c / shape.fan_in, c, locations[c]);
      }
    }
  }
};

// A result as it should be, and the sum of the magnitudes of its terms.
struct Expected {
  Values sums, magnitudes;

  explicit Expected(int64_t count) : sums(count), magnitudes(count) {}

  void add(int64_t i, double term) {
    sums[i] += term;
    magnitudes[i] += std::fabs(term);
  }
};

void require_near(const Buffer<VALUE>& found, const Expected& expected, const std::string& what) {
  const std::vector<VALUE> values = found.values();
  require(values.size() == expected.sums.size(), what + ": the size");
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = widen(values[i]);
    const double bound = kTolerance * expected.magnitudes[i] + 1e-7 * (sizeof(VALUE) == 2);
    require(std::fabs(value - expected.sums[i]) <= bound,
            what + ": element " + to_string(i) + " is " + to_string(value) + " instead of " + to_string(expected.sums[i]));
  }
}

// ---------------------------------------------------------------- one call

// How a problem lies in memory, and on which device.
struct Setting {
  Device device;
  int location_bytes;
  int64_t shift;      // elements between a multiple of 16 bytes and the beginning of weights and locations
  bool with_bias;
  bool wide;          // whether the transposed locations are int64
};

struct Memory {
  Buffer<VALUE> features, weights, bias, grads;
  Buffer<uint16_t> locations2;
  Buffer<int32_t> locations4;
  Buffer<int64_t> locations8;
  Layer layer;

  Memory(const Problem& problem, const Setting& setting)
      : features(upload<VALUE>("features", problem.features)),
        weights(upload<VALUE>("weights", problem.weights, setting.shift)),
        bias(upload<VALUE>("bias", problem.bias)),
        grads(upload<VALUE>("grad_output", problem.grads)),
        locations2(upload<uint16_t>("locations", problem.locations, setting.shift)),
        locations4(upload<int32_t>("locations", problem.locations, setting.shift)),
        locations8(upload<int64_t>("locations", problem.locations, setting.shift)) {
    const void* locations = setting.location_bytes == 2 ? static_cast<const void*>(locations2.data() + setting.shift)
        : setting.location_bytes == 4                   ? static_cast<const void*>(locations4.data() + setting.shift)
                                                        : static_cast<const void*>(locations8.data() + setting.shift);
    const Shape& shape = problem.shape;
    layer = {weights.data() + setting.shift, locations, shape.inputs, shape.outputs, shape.fan_in,
             static_cast<uint64_t>(shape.inputs), setting.location_bytes, setting.shift == 0};
  }
};

Buffer<VALUE> allocate_scratch(int64_t bytes) { return {"scratch", static_cast<size_t>(bytes) / sizeof(VALUE)}; }

void run_forward_call(
    const Problem& problem, const Setting& setting, const Memory& memory, const Buffer<VALUE>& scratch,
    const Buffer<VALUE>& result) {
  launchers.forward(
      setting.device, memory.layer, problem.shape.batch, memory.features.data(),
      setting.with_bias ? memory.bias.data() : nullptr, scratch.data(), nullptr, result.data());
}

int64_t count_forward(const Problem& problem, const Setting& setting, const Memory& memory) {
  return launchers.count_forward_scratch(setting.device, memory.layer, problem.shape.batch);
}

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

// The connections of each input, in ascending order.
struct Order {
  std::vector<int64_t> offsets, connections;

  explicit Order(const Problem& problem) : offsets(problem.shape.inputs + 1) {
    for (int64_t i = 0; i < problem.shape.inputs; ++i) {
      for (size_t c = 0; c < problem.locations.size(); ++c) {
        if (problem.locations[c] == i) {
          connections.push_back(static_cast<int64_t>(c));
        }
      }
      offsets[i + 1] = static_cast<int64_t>(connections.size());
    }
  }
};

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

// ---------------------------------------------------------------- bytes

struct Traffic {
  Shape shape;
  Device device;
};

int64_t round_to_sectors(int64_t bytes) { return divide_up(bytes, 32) * 32; }

// The least that forward moves in its regime: features once to pack them, unless they are packed as they stand, and once
// for each block that stages them, or a row for every product; connections and bias once for each tile; results once.
int64_t count_least_bytes(const Plan& plan, const Shape& shape, int location_bytes) {
  const int64_t size = sizeof(VALUE), width = plan.width.count(), tiles = plan.cut.tiles;
  const int64_t packing = width == 1 ? 0 : shape.batch * shape.inputs * size + tiles * plan.tile_bytes;
  const int64_t products = tiles * shape.outputs * shape.fan_in;
  const int64_t reading = plan.staged ? plan.blocks * plan.tile_bytes : products * round_to_sectors(width * size);
  const int64_t connections = products * (size + location_bytes);
  return packing + reading + connections + tiles * shape.outputs * size + shape.batch * shape.outputs * size;
}

// Sectors, once for each instruction of a warp. Four doubles take two instructions, the second of which finds its sectors in
// the L1 cache: there, once for each block.
template <typename Element>
int64_t count_moved(const Buffer<Element>& buffer) {
  const simt::Traffic loads = buffer.loads(), stores = buffer.stores();
  return sizeof(Element) == 8 ? loads.per_block + stores.per_block : loads.moved + stores.moved;
}

void moves_few_bytes() {
  const Shape shapes[] = {{1, 96, 640, 32}, {4, 96, 640, 32}, {16, 96, 640, 32}, {32, 64, 320, 32}, {64, 64, 320, 32},
                          {1, 96, 640, 50}, {64, 64, 320, 50}, {32, 64, 317, 24}};
  for (const Shape& shape : shapes) {
    const Problem problem(shape);
    for (const Device& device : {kRoomy, kCramped}) {
      const Setting setting{device, 4, 0, true, false};
      const Memory memory(problem, setting);
      const Buffer<VALUE> scratch = allocate_scratch(count_forward(problem, setting, memory));
      const Buffer<VALUE> result("result", shape.batch * shape.outputs);
      run_forward_call(problem, setting, memory, scratch, result);
      const Plan plan = make_plan<VALUE>(device, memory.layer, shape.batch, Pass::forward);
      const double least = count_least_bytes(plan, shape, 4);
      const double moved = count_moved(memory.features) + count_moved(memory.weights) + count_moved(memory.bias) +
          count_moved(scratch) + count_moved(result) + count_moved(memory.locations4);
      require(!simt::watched || moved <= 1.25 * least,
              describe(shape, plan.staged ? "staged forward" : "forward") + " moves " + to_string(moved / least) +
                  " times the least bytes");
    }
  }
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
       {"moves_few_bytes", moves_few_bytes}});
}
