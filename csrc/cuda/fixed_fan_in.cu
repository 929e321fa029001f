// Fixed fan-in operators on CUDA: the kernels for one type of values, compiled once per type for every architecture.
// cmake/CudaLibrary.cmake gives VALUE, the type, and TABLE, the name of the table in fixed_fan_in_launch.h. The formulas
// stand in ../fixed_fan_in.h, the host functions in fixed_fan_in.cpp.
//
// Bound. Every product needs a value of the features that no other product of the same output shares, so reads of features
// bound the time: from shared memory, 128 bytes a clock and multiprocessor, where a tile of them fits; else from the L2 cache.
// Connections are read once for each tile of the batch.
//
// Layout. features are packed into tiles [in_features][width] of `width` entries of the batch, padded with zeros: the values
// that one connection needs are then one contiguous row, read without bank conflicts by neighbouring lanes. A batch of one
// is a tile as it stands, and lanes read single values for 32 connections at once. fixed_fan_in_plan.cuh has the table of
// widths and the choice.
//
// forward    A block stays with a tile, in shared memory if it fits, and takes chunks of 64 outputs in turn. Weights and
//            locations come in quads of 16 bytes, the next step's while the present one is worked on, and are shared by the
//            warps, an output each. Results are collected in shared memory and leave as whole rows, with the bias.
// weights    The same walk with the gradients of the outputs, packed like the features, in place of the weights. A warp sums
//            the products of 32 connections over the batch by one exchange for each, and skips outputs whose gradients
//            are zero. Sums over several tiles stay with the thread that began them.
// features   Sums over the connections of each input, in the order of the transposed locations, which Python makes once and
//            keeps (_transposed.py): no atomics. 1 to 16 warps share an input and add up in a fixed order.
//            On request products are added atomically instead, which needs no transposed locations.
// bias       Sums of columns.
//
// Precision. Sums are kept in float, in double for double, and rounded once. Nothing but the atomic sums depends on the order
// in which blocks run, so the same input gives the same bits on the same kind of device.
//
// Locations are checked as they pass, by an assertion of the device: nothing may wait for the answer.

#include "fixed_fan_in_plan.cuh"

namespace torch_sparse_ops {
namespace {

int64_t count_forward_scratch(const Device& device, const Layer& layer, int64_t batch) {
  Scratch scratch(nullptr);
  take_packed<VALUE>(scratch, make_plan<VALUE>(device, layer, batch, Pass::forward), layer.in_features);
  return scratch.bytes();
}

void forward(
    const Device& device, const Layer& layer, int64_t batch, const void* features, const void* bias, void* scratch,
    cudaStream_t stream, void* result) {
  const Plan plan = make_plan<VALUE>(device, layer, batch, Pass::forward);
  run_forward<VALUE>(device, plan, layer, features, bias, scratch, stream, result);
}

int64_t count_backward_scratch(
    const Device& device, const Layer& layer, int64_t batch, bool atomic, const Gradients& gradients) {
  Scratch scratch(nullptr);
  take_backward<VALUE>(scratch, make_plan<VALUE>(device, layer, batch, Pass::backward), layer, atomic, gradients);
  return scratch.bytes();
}

void backward(
    const Device& device, const Layer& layer, int64_t batch, const void* grad_output, const void* features,
    const Transposed& transposed, void* scratch, cudaStream_t stream, const Gradients& gradients) {
  const Plan plan = make_plan<VALUE>(device, layer, batch, Pass::backward);
  run_backward<VALUE>(device, plan, layer, grad_output, features, transposed, scratch, stream, gradients);
}

}  // namespace

extern const FixedFanInLaunchers TABLE = {count_forward_scratch, forward, count_backward_scratch, backward};

}  // namespace torch_sparse_ops
