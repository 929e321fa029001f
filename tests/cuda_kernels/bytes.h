// Models of the bytes that each kernel must move, and calls whose loads and stores are counted.
#pragma once

#include "problem.h"

namespace {

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

// Sums over buffers of different types.
template <typename... Buffers>
double count_all_moved(const Buffers&... buffers) {
  return static_cast<double>((count_moved(buffers) + ...));
}

void require_few(double moved, int64_t least, const Shape& shape, const Plan& plan, const char* what) {
  const double ratio = moved / static_cast<double>(least);
  require(!simt::watched || (ratio >= 0.2 && ratio <= 1.25),  // lanes share sectors; far fewer were not read
          describe(shape, what) + (plan.staged ? ", staged," : "") + " moves " + to_string(ratio) + " times the least bytes");
}

template <typename Check>
void for_measured(const Check& check) {
  const Shape shapes[] = {{1, 96, 640, 32}, {4, 96, 640, 32}, {16, 96, 640, 32}, {32, 64, 320, 32}, {64, 64, 320, 32},
                          {1, 96, 640, 50}, {64, 64, 320, 50}, {32, 64, 317, 24}, {128, 64, 320, 32}};
  for (const Shape& shape : shapes) {
    const Problem problem(shape);
    for (const Device& device : {kRoomy, kCramped}) {
      check(problem, Setting{device, 4, 0, true, false});
    }
  }
}

void forward_moves_few_bytes() {
  for_measured([](const Problem& problem, const Setting& setting) {
    const Memory memory(problem, setting);
    const Buffer<VALUE> scratch = allocate_scratch(count_forward(problem, setting, memory));
    const Buffer<VALUE> result("result", problem.shape.batch * problem.shape.outputs);
    run_forward_call(problem, setting, memory, scratch, result);
    const Plan plan = make_plan<VALUE>(setting.device, memory.layer, problem.shape.batch, Pass::forward);
    require_few(
        count_all_moved(memory.features, memory.weights, memory.bias, scratch, result, memory.locations4),
        count_least_bytes(plan, problem.shape, 4), problem.shape, plan, "forward");
  });
}

// Rows [batch][columns] read and written once, but for a batch of one.
int64_t count_packing(const Plan& plan, int64_t columns) {
  const int64_t size = sizeof(VALUE);
  return plan.width.shift == 0 ? 0 : (plan.cut.batch + (plan.cut.tiles << plan.width.shift)) * columns * size;
}

// As in forward, with gradients once for each step of an output, and sums over the tiles so far read and written.
int64_t count_least_of_weights(const Plan& plan, const Shape& shape) {
  const int64_t size = sizeof(VALUE), width = plan.width.count(), tiles = plan.cut.tiles;
  const int64_t connections = shape.outputs * shape.fan_in;
  const int64_t reading = plan.staged ? tiles * plan.blocks * plan.tile_bytes
                                      : tiles * connections * round_to_sectors(width * size);
  const int64_t grads = tiles * shape.outputs * plan.cut.steps * round_to_sectors(width * size);
  const int64_t sums = (tiles - 1) * connections * 2 * static_cast<int64_t>(sizeof(Sum<VALUE>));
  return count_packing(plan, shape.inputs) + count_packing(plan, shape.outputs) + reading + grads + sums +
      tiles * connections * 4 + connections * size;
}

// For each connection and tile its number, a row of gradients and, in a sector of its own, a weight; two offsets for each warp
// of an input; results in runs of the inputs of a block.
int64_t count_least_of_features(const Plan& plan, const Shape& shape, int shift) {
  const int64_t size = sizeof(VALUE), tiles = plan.cut.tiles, run = kWarps >> shift;
  const int64_t row = round_to_sectors(plan.width.count() * size);
  const int64_t results = shape.batch * divide_up(shape.inputs, run) * round_to_sectors(run * size);
  return count_packing(plan, shape.outputs) + tiles * shape.outputs * shape.fan_in * (4 + 32 + row) +
      tiles * (shape.inputs << shift) * 2 * 32 + results;
}

struct Wanted {
  bool features = false, weights = false, bias = false;
};

void backward_moves_few_bytes() {
  for_measured([](const Problem& problem, const Setting& setting) {
    const Shape& shape = problem.shape;
    const Order order(problem);
    const Plan plan = make_plan<VALUE>(setting.device, Memory(problem, setting).layer, shape.batch, Pass::backward);
    for (bool Wanted::*which : {&Wanted::features, &Wanted::weights, &Wanted::bias}) {
      const Memory memory(problem, setting);
      const Buffer<int64_t> offsets("offsets", order.offsets);
      const Buffer<int32_t> numbers = upload<int32_t>("order", order.connections);
      const Buffer<VALUE> features("grad_features", problem.features.size());
      const Buffer<VALUE> weights("grad_weights", problem.weights.size()), bias("grad_bias", problem.bias.size());
      Wanted wanted;
      wanted.*which = true;
      const Gradients gradients{
          wanted.features ? features.data() : nullptr, wanted.weights ? weights.data() : nullptr,
          wanted.bias ? bias.data() : nullptr};
      const Buffer<VALUE> scratch = allocate_scratch(
          launchers.count_backward_scratch(setting.device, memory.layer, shape.batch, false, gradients));
      launchers.backward(
          setting.device, memory.layer, shape.batch, memory.grads.data(), memory.features.data(),
          {offsets.data(), numbers.data(), false}, scratch.data(), nullptr, gradients);
      const int64_t size = sizeof(VALUE);
      const int64_t least = wanted.weights ? count_least_of_weights(plan, shape)
          : wanted.features                ? count_least_of_features(plan, shape, choose_sharing(memory.layer))
                                           : (shape.batch + 1) * shape.outputs * size;
      require_few(
          count_all_moved(
              memory.features, memory.weights, memory.grads, scratch, features, weights, bias, memory.locations4,
              offsets, numbers),
          least, shape, plan,
          wanted.weights ? "gradient of the weights" : wanted.features ? "gradient of the features" : "gradient of the bias");
    }
  });
}

}  // namespace
