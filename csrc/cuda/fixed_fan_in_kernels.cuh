// The kernels of ffi_forward, and those that pack rows into tiles; fixed_fan_in.cu says how they work and why so. `lanes` of a
// warp hold neighbouring entries of the batch, `values` of them each; the other lanes hold other connections. `width` of a
// tile is lanes * values.

#pragma once

#include "fixed_fan_in_parts.cuh"

namespace torch_sparse_ops {

// ---------------------------------------------------------------- packing

constexpr int kPackColumns = 64;
constexpr int kPackThreads = 256;
constexpr int kMaxWidth = 64;

// rows [batch][columns] to packed [tile][columns][width], the batch filled up with zeros. `shift` is log2(width), Bits an
// unsigned integer of the size of the values.
template <typename Bits>
__global__ void __launch_bounds__(kPackThreads) pack_rows(
    const Bits* __restrict__ rows, int64_t batch, int64_t columns, int shift, int64_t tiles, Bits* __restrict__ packed) {
  __shared__ Bits block[kMaxWidth][kPackColumns + 1];  // the odd row length keeps columns in different banks
  const int width = 1 << shift;
  const int64_t strips = (columns + kPackColumns - 1) / kPackColumns;
  for (int64_t unit = blockIdx.x; unit < strips * tiles; unit += gridDim.x) {
    const int64_t tile = unit / strips, first = unit % strips * kPackColumns;
#pragma unroll 4
    for (int i = threadIdx.x; i < width * kPackColumns; i += kPackThreads) {
      const int b = i / kPackColumns, c = i % kPackColumns;
      const int64_t row = (tile << shift) + b;
      block[b][c] = row < batch && first + c < columns ? rows[row * columns + first + c] : 0;
    }
    __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < width * kPackColumns; i += kPackThreads) {
      const int b = i & (width - 1), c = i >> shift;
      if (first + c < columns) {
        packed[((tile * columns + first + c) << shift) + b] = block[b][c];
      }
    }
    __syncthreads();
  }
}

// ---------------------------------------------------------------- forward

// Shared memory of forward.
template <typename Value, int width>
struct ForwardMemory {
  alignas(16) Sum<Value> weights[kRows][kSlots];
  alignas(16) uint32_t locations[kRows][kSlots];
  alignas(16) Sum<Value> results[width][kRows + 1];  // the odd row length keeps columns in different banks
  alignas(16) Sum<Value> bias[kRows];
};

template <typename Value>
__device__ inline void keep_quad(
    const Quad<Value>& quad, const Layer& layer, Sum<Value>* all_weights, uint32_t* all_locations) {
  Vector<Sum<Value>, kQuad> weights;
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    weights.at[j] = widen(quad.weights[j]);
  }
  store(all_weights + threadIdx.x * kQuad, weights);
  store(all_locations + threadIdx.x * kQuad, quad.check_locations(layer));
}

// Adds the products of one output's step to the sums of a lane's batch entries. Lanes that hold the same entries share the
// slots, kRun<lanes> neighbouring ones each.
template <int lanes, int values, typename Value>
__device__ inline void add_products(
    const Value* features, const uint32_t* locations, const Sum<Value>* weights, const Span& span,
    Sum<Value> (&sums)[values]) {
  constexpr int run = kRun<lanes>;
  const Value* column = features + threadIdx.x % lanes * values;
#pragma unroll 1
  for (int slot = threadIdx.x % 32 / lanes * run; slot < span.end; slot += 32 / lanes * run) {
    const Vector<uint32_t, run> rows = load<run>(locations + slot);
    const Vector<Sum<Value>, run> factors = load<run>(weights + slot);
#pragma unroll
    for (int j = 0; j < run; ++j) {
      if (span.holds(slot + j)) {
        const Vector<Value, values> row = load<values>(column + static_cast<int64_t>(rows.at[j]) * (lanes * values));
#pragma unroll
        for (int v = 0; v < values; ++v) {
          sums[v] += factors.at[j] * widen(row.at[v]);
        }
      }
    }
  }
}

// Adds a step of all outputs of a chunk to the results, which the first step begins with the bias.
template <int lanes, int values, typename Value>
__device__ inline void work_off_step(
    const Layer& layer, const Cut& cut, const Place& place, const Value* features,
    ForwardMemory<Value, lanes * values>& memory) {
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < cut.rows(); row += kWarps) {
    const Span span = find_span(layer, cut, place, row);
    Sum<Value> sums[values] = {};
    add_products<lanes>(features, memory.locations[row], memory.weights[row], span, sums);
#pragma unroll
    for (int v = 0; v < values; ++v) {
      const Sum<Value> sum = add_lanes<lanes>(sums[v]);
      if (threadIdx.x % 32 < lanes) {
        Sum<Value>& result = memory.results[threadIdx.x % lanes * values + v][row];
        result = sum + (place.step == 0 ? memory.bias[row] : result);
      }
    }
  }
}

// Writes the results of a chunk, whole rows of its outputs at a time.
template <typename Value, int width>
__device__ inline void write_results(
    const Layer& layer, const Cut& cut, int64_t tile, int64_t chunk, const ForwardMemory<Value, width>& memory,
    Value* result) {
#pragma unroll 4
  for (int i = threadIdx.x; i < width << cut.shift; i += kThreads) {
    const int row = i & (cut.rows() - 1), b = i >> cut.shift;
    const int64_t entry = tile * width + b, output = (chunk << cut.shift) + row;
    if (entry < cut.batch && output < layer.out_features) {
      narrow(memory.results[b][row], result[entry * layer.out_features + output]);
    }
  }
}

// Block g of a tile's takes chunks g, g + groups, ... of the outputs. `staged`: the tile is brought into shared memory.
template <typename Value, int lanes, int values, bool staged>
__global__ void __launch_bounds__(kThreads, kBlocks) compute_forward(
    Layer layer, Cut cut, const Value* __restrict__ packed, const Value* __restrict__ bias, Value* __restrict__ result) {
  constexpr int width = lanes * values;
  using Memory = ForwardMemory<Value, width>;
  Memory& memory = *dynamic_shared<Memory>();
  const unsigned tiles = static_cast<unsigned>(cut.tiles);
  const int64_t tile = blockIdx.x % tiles, groups = gridDim.x / tiles;
  const Value* features = packed + tile * layer.in_features * width;
  if (staged) {
    Value* copy = reinterpret_cast<Value*>(&memory + 1);
    copy_tile(features, layer.in_features * width, copy);
    features = copy;
  }
  Place place{-1, 0}, next{blockIdx.x / tiles, 0};
  Quad<Value> quad;
  while (true) {
    quad.find(layer, cut, next);
    quad.fetch_locations(layer);
    quad.fetch_weights(layer);
    const Sum<Value> next_bias = fetch_bias(layer, cut, next, bias);
    if (place.chunk >= 0) {
      work_off_step<lanes, values>(layer, cut, place, features, memory);
      __syncthreads();
      if (next.chunk != place.chunk) {
        write_results(layer, cut, tile, place.chunk, memory, result);
      }
    }
    if (next.chunk >= cut.chunks) {
      return;
    }
    keep_quad(quad, layer, &memory.weights[0][0], &memory.locations[0][0]);
    if (next.step == 0 && threadIdx.x < kRows) {
      memory.bias[threadIdx.x] = next_bias;
    }
    __syncthreads();
    place = next;
    next = advance(place, cut, groups);
  }
}

}  // namespace torch_sparse_ops
