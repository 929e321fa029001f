// A layer with its values and connections, as it should come out and as it lies in memory, for one type of values (VALUE).
#pragma once

#define TABLE launchers
#include "fixed_fan_in.cu"
#include "simt/buffer.h"
#include "simt/cases.h"

#include <cmath>
#include <random>

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

}  // namespace
