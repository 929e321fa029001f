// The CPU kernels and launchers in a plain program, so that sanitizers and emulators can run them without torch.
//
// Every instruction set of this machine, every type of values and locations, batches of every tile width, compared with
// plain loops in double. Buffers have exactly the size they need, so that AddressSanitizer sees a step beyond them.
// Prints one line per failure and a summary; the exit status is 0 if there was none.

#include "../../csrc/cpu/fixed_fan_in_launch.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace torch_sparse_ops;

namespace {

int checks = 0;
int failures = 0;

void check(bool passed, const std::string& what) {
  ++checks;
  if (!passed) {
    ++failures;
    std::printf("FAILED %s\n", what.c_str());
  }
}

// ---------------------------------------------------------------- values as bytes

int64_t size_of(Value value) { return value == Value::float64 ? 8 : value == Value::float32 ? 4 : 2; }
int64_t size_of(Index index) { return index == Index::int64 ? 8 : index == Index::int32 ? 4 : 2; }

// `number` has to be zero or normal, and exactly representable.
uint16_t encode_half(float number) {
  uint32_t bits;
  std::memcpy(&bits, &number, sizeof(bits));
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (magnitude == 0 ? 0 : (magnitude - 0x38000000) >> 13));
}

double decode_half(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits & 0x8000 ? -magnitude : magnitude;
}

struct Array {
  Value value;
  std::vector<char> bytes;

  Array(Value value, int64_t count) : value(value), bytes(count * size_of(value)) {}
  int64_t size() const { return static_cast<int64_t>(bytes.size()) / size_of(value); }

  void set(int64_t i, float number) {
    char* target = bytes.data() + i * size_of(value);
    if (value == Value::float64) {
      const double wide = number;
      std::memcpy(target, &wide, 8);
    } else if (value == Value::float32) {
      std::memcpy(target, &number, 4);
    } else if (value == Value::bfloat16) {
      std::memcpy(target, reinterpret_cast<const char*>(&number) + 2, 2);
    } else {
      const uint16_t half = encode_half(number);
      std::memcpy(target, &half, 2);
    }
  }

  double get(int64_t i) const {
    const char* source = bytes.data() + i * size_of(value);
    double wide = 0;
    float single = 0;
    uint16_t half = 0;
    switch (value) {
      case Value::float64:
        std::memcpy(&wide, source, 8);
        return wide;
      case Value::float32:
        std::memcpy(&single, source, 4);
        return single;
      case Value::bfloat16:
        std::memcpy(reinterpret_cast<char*>(&single) + 2, source, 2);
        return single;
      default:
        std::memcpy(&half, source, 2);
        return decode_half(half);
    }
  }
};

// ---------------------------------------------------------------- a problem and its solution by plain loops

struct Case {
  int64_t batch, in_features, out_features, fan_in;
  Value value;
  Index index;
  Capability capability;

  std::string name() const {
    std::string text;
    for (int64_t number : {batch, in_features, out_features, fan_in, int64_t(value), int64_t(index), int64_t(capability)}) {
      text += " " + std::to_string(number);
    }
    return "batch, in, out, fan-in, value, index, capability:" + text;
  }
};

struct Problem {
  Case shape;
  Array features, weights, bias, grad_output;
  std::vector<int64_t> locations;
  std::vector<char> location_bytes;

  explicit Problem(const Case& shape)
      : shape(shape), features(shape.value, shape.batch * shape.in_features),
        weights(shape.value, shape.out_features * shape.fan_in), bias(shape.value, shape.out_features),
        grad_output(shape.value, shape.batch * shape.out_features) {
    std::mt19937 random(1);
    for (Array* array : {&features, &weights, &bias, &grad_output}) {
      for (int64_t i = 0; i < array->size(); ++i) {
        array->set(i, (static_cast<int>(random() % 33) - 16) / 8.0f);  // exact in every type
      }
    }
    for (int64_t b = 0; b < shape.batch; ++b) {  // one output without a gradient
      grad_output.set(b * shape.out_features + shape.out_features / 2, 0);
    }
    location_bytes.resize(weights.size() * size_of(shape.index));
    for (int64_t c = 0; c < weights.size(); ++c) {
      locations.push_back(random() % shape.in_features);
      set_location(c, locations.back());
    }
  }

  void set_location(int64_t connection, int64_t location) {  // little-endian, as all machines that this runs on
    std::memcpy(location_bytes.data() + connection * size_of(shape.index), &location, size_of(shape.index));
  }

  Layer layer() const {
    return {weights.bytes.data(), location_bytes.data(), shape.in_features, shape.out_features, shape.fan_in,
            shape.value, shape.index, false, false};
  }
};

struct Sums {
  std::vector<double> sum, magnitude;
  explicit Sums(int64_t count) : sum(count), magnitude(count) {}
  void add(int64_t i, double term) {
    sum[i] += term;
    magnitude[i] += std::fabs(term);
  }
};

struct Solution {
  Sums result, features, weights, bias;

  explicit Solution(const Problem& p)
      : result(p.grad_output.size()), features(p.features.size()), weights(p.weights.size()), bias(p.bias.size()) {
    const Case& s = p.shape;
    for (int64_t b = 0; b < s.batch; ++b) {
      for (int64_t o = 0; o < s.out_features; ++o) {
        const double grad = p.grad_output.get(b * s.out_features + o);
        result.add(b * s.out_features + o, p.bias.get(o));
        bias.add(o, grad);
        for (int64_t c = o * s.fan_in; c < (o + 1) * s.fan_in; ++c) {
          const int64_t from = b * s.in_features + p.locations[c];
          result.add(b * s.out_features + o, p.weights.get(c) * p.features.get(from));
          features.add(from, grad * p.weights.get(c));
          weights.add(c, grad * p.features.get(from));
        }
      }
    }
  }
};

void compare(const Array& actual, const Sums& expected, const std::string& what) {
  const double tolerance = actual.value == Value::float64 ? 1e-14
      : actual.value == Value::float32                    ? 1e-5
      : actual.value == Value::float16                    ? 1e-3
                                                          : 8e-3;
  int64_t wrong = -1;
  for (int64_t i = 0; i < actual.size(); ++i) {
    if (!(std::fabs(actual.get(i) - expected.sum[i]) <= tolerance * expected.magnitude[i])) {
      wrong = i;
    }
  }
  check(wrong < 0, what + ", entry " + std::to_string(wrong));
}

// ---------------------------------------------------------------- runs

Threads use_threads(int64_t most) {
  return {most, [](int64_t count, void (*work)(void*), void* context) {
            std::vector<std::thread> others;
            for (int64_t t = 1; t < count; ++t) {
              others.emplace_back(work, context);
            }
            work(context);
            for (std::thread& other : others) {
              other.join();
            }
          }};
}

// An exact amount of memory, which is what sanitizers watch.
std::vector<double> make_buffer(int64_t bytes) { return std::vector<double>((bytes + 7) / 8, NAN); }

Array compute_forward(const Problem& p, int64_t threads, bool& valid) {
  const Launch launch = plan_forward(p.shape.capability, p.layer(), p.shape.batch);
  std::vector<double> packed = make_buffer(launch.needs_packing() ? launch.packed_bytes() : 0);
  Array result(p.shape.value, p.grad_output.size());
  valid = run_forward(
      use_threads(threads), launch, p.features.bytes.data(), p.bias.bytes.data(), packed.data(), result.bytes.data());
  return result;
}

struct GradientArrays {
  Array features, weights, bias;
  explicit GradientArrays(const Problem& p)
      : features(p.shape.value, p.features.size()), weights(p.shape.value, p.weights.size()),
        bias(p.shape.value, p.bias.size()) {}
};

// `group_tiles` of 0 leaves the plan as it is.
GradientArrays compute_backward(const Problem& p, int64_t threads, int64_t group_tiles, int mask, bool& valid) {
  const Launch launch = plan_backward(p.shape.capability, p.layer(), p.shape.batch);
  BackwardPlan plan = plan_memory(launch, mask & 1);
  if (group_tiles > 0) {
    plan.group_tiles = group_tiles;
    plan.sums_bytes = launch.is_narrow() ? (p.weights.size() + p.bias.size()) * 4 : 0;
  }
  std::vector<double> packed = make_buffer(plan.packed_bytes);
  std::vector<double> partials = make_buffer(plan.partial_bytes);
  std::vector<double> sums = make_buffer(plan.sums_bytes);
  GradientArrays arrays(p);
  const Gradients gradients{
      mask & 1 ? arrays.features.bytes.data() : nullptr, mask & 2 ? arrays.weights.bytes.data() : nullptr,
      mask & 4 ? arrays.bias.bytes.data() : nullptr};
  valid = run_backward(
      use_threads(threads), launch, plan, p.grad_output.bytes.data(), p.features.bytes.data(), gradients, packed.data(),
      partials.data(), sums.data());
  return arrays;
}

void check_case(const Case& shape) {
  const Problem p(shape);
  const Solution solution(p);
  bool valid = false;
  const Array result = compute_forward(p, 1, valid);
  check(valid, "forward valid, " + shape.name());
  compare(result, solution.result, "forward, " + shape.name());
  check(compute_forward(p, 3, valid).bytes == result.bytes, "forward on threads, " + shape.name());
  const GradientArrays whole = compute_backward(p, 1, 0, 7, valid);
  check(valid, "backward valid, " + shape.name());
  const GradientArrays threaded = compute_backward(p, 3, 0, 7, valid);
  check(threaded.features.bytes == whole.features.bytes, "features on threads, " + shape.name());
  check(threaded.weights.bytes == whole.weights.bytes, "weights on threads, " + shape.name());
  for (const auto& [group_tiles, mask] : {std::pair{0, 7}, {0, 1}, {0, 2}, {0, 4}, {1, 7}}) {
    const GradientArrays arrays = compute_backward(p, 1, group_tiles, mask, valid);
    const std::string what = " with mask " + std::to_string(mask) + ", " + shape.name();
    if (mask & 1) {
      compare(arrays.features, solution.features, "gradient of features" + what);
    }
    if (mask & 2) {
      compare(arrays.weights, solution.weights, "gradient of weights" + what);
    }
    if (mask & 4) {
      compare(arrays.bias, solution.bias, "gradient of bias" + what);
    }
  }
}

void check_invalid_location(const Case& shape) {
  Problem p(shape);
  const int64_t connection = p.weights.size() * 2 / 3;
  p.set_location(connection, shape.in_features);
  bool valid = true;
  compute_forward(p, 3, valid);
  check(!valid, "forward refuses, " + shape.name());
  compute_backward(p, 3, 0, 7, valid);
  check(!valid, "backward refuses, " + shape.name());
  const Launch launch = plan_forward(shape.capability, p.layer(), shape.batch);
  check(find_invalid_location(launch) == connection, "invalid location found, " + shape.name());
}

}  // namespace

int main() {
  const int64_t sizes[][4] = {  // batch, in_features, out_features, fan_in
      {1, 50, 300, 20},  {1, 9, 5, 3},     {3, 50, 70, 17},   {7, 40, 65, 16},   {13, 600, 130, 33},
      {30, 33, 200, 5},  {33, 70, 64, 64}, {70, 520, 129, 9}, {200, 40, 500, 40}, {36, 12, 30000, 3},
      {40, 2100, 6000, 15}, {20, 17000, 70, 5},  // tiles that take turns, and tiles beyond the cache
      {1, 50, 40000, 28}};                       // gradients that are written past the caches
  for (int64_t capability = 0; capability <= static_cast<int64_t>(cpu_capability()); ++capability) {
    for (Value value : {Value::float32, Value::float64, Value::float16, Value::bfloat16}) {
      for (Index index : {Index::int16, Index::uint16, Index::int32, Index::int64}) {
        for (const auto& s : sizes) {
          if (index != Index::int32 && s[2] > 1000) {
            continue;  // large ones are there for the threads
          }
          const Case shape{s[0], s[1], s[2], s[3], value, index, static_cast<Capability>(capability)};
          check_case(shape);
          check_invalid_location(shape);
        }
      }
    }
  }
  std::printf("%d of %d checks passed\n", checks - failures, checks);
  return failures == 0 ? 0 : 1;
}
