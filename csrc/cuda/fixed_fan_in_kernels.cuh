// The kernels of the fixed fan-in operators; fixed_fan_in.cu says how they work and why so. `lanes` of a warp hold
// neighbouring entries of the batch, `values` of them each; the other lanes hold other connections. `width` of a tile is
// lanes * values.

#pragma once

#include "fixed_fan_in_parts.cuh"

namespace torch_sparse_ops {

// ---------------------------------------------------------------- packing

constexpr int kPackColumns = 64;
constexpr int kPackThreads = 256;
constexpr int kMaxWidth = 64;

// rows [batch][columns] to packed [tile][columns][width], the batch filled up with zeros. `shift` is log2(width).
template <typename Value>
__global__ void __launch_bounds__(kPackThreads) pack_rows(
    const Value* __restrict__ rows, int64_t batch, int64_t columns, int shift, int64_t tiles, Value* __restrict__ packed) {
  __shared__ Value block[kMaxWidth][kPackColumns + 1];
  const int width = 1 << shift;
  const int64_t strips = (columns + kPackColumns - 1) / kPackColumns;
  for (int64_t unit = blockIdx.x; unit < strips * tiles; unit += gridDim.x) {
    const int64_t tile = unit / strips, first = unit % strips * kPackColumns;
    for (int i = threadIdx.x; i < width * kPackColumns; i += kPackThreads) {
      const int b = i / kPackColumns, c = i % kPackColumns;
      const int64_t row = (tile << shift) + b;
      narrow(Sum<Value>(0), block[b][c]);
      if (row < batch && first + c < columns) {
        block[b][c] = rows[row * columns + first + c];
      }
    }
    __syncthreads();
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

template <typename Value, int width>
__device__ inline void keep(const Quad<Value>& quad, const Layer& layer, bool first_step, ForwardMemory<Value, width>& memory) {
  Vector<Sum<Value>, kQuad> weights;
  for (int j = 0; j < kQuad; ++j) {
    weights.at[j] = widen(quad.weights[j]);
  }
  store(&memory.weights[0][0] + threadIdx.x * kQuad, weights);
  store(&memory.locations[0][0] + threadIdx.x * kQuad, quad.check_locations(layer));
  if (first_step && threadIdx.x < kRows) {
    memory.bias[threadIdx.x] = widen(quad.bias);
  }
}

// Adds the products of one output's step to the sums of a lane's batch entries. Neighbouring lanes, but for those that
// share a connection, take `run` neighbouring slots each.
template <int lanes, int values, typename Value>
__device__ inline void add_products(
    const Value* features, const uint32_t* locations, const Sum<Value>* weights, const Span& span,
    Sum<Value> (&sums)[values]) {
  constexpr int groups = 32 / lanes, run = lanes < kQuad ? lanes : kQuad;
  const int group = threadIdx.x % 32 / lanes;
  const Value* column = features + threadIdx.x % lanes * values;
  for (int slot = group * run; slot < span.end; slot += groups * run) {
    const Vector<uint32_t, run> rows = load<run>(locations + slot);
    const Vector<Sum<Value>, run> factors = load<run>(weights + slot);
    const bool whole = slot >= span.begin && slot + run <= span.end;
#pragma unroll
    for (int j = 0; j < run; ++j) {
      if (whole || (slot + j >= span.begin && slot + j < span.end)) {
        const Vector<Value, values> row = load<values>(column + static_cast<int64_t>(rows.at[j]) * (lanes * values));
#pragma unroll
        for (int v = 0; v < values; ++v) {
          sums[v] += factors.at[j] * widen(row.at[v]);
        }
      }
    }
  }
}

// Writes the results of a chunk, whole rows of its outputs at a time.
template <typename Value, int width>
__device__ inline void write_results(
    const Layer& layer, const Cut& cut, int64_t tile, int64_t chunk, const ForwardMemory<Value, width>& memory,
    Value* result) {
  const int rows = static_cast<int>(cut.rows);
  for (int i = threadIdx.x; i < width * rows; i += kThreads) {
    const int row = i & (rows - 1), b = i / rows;
    const int64_t entry = tile * width + b, output = chunk * rows + row;
    if (entry < cut.batch && output < layer.out_features) {
      narrow(memory.results[b][row], result[entry * layer.out_features + output]);
    }
  }
}

// Block g of a tile's takes chunks g, g + groups, ... of the outputs. `staged`: the tile fits into shared memory.
template <typename Value, int lanes, int values, bool staged>
__global__ void __launch_bounds__(kThreads) ffi_forward(
    Layer layer, Cut cut, const Value* __restrict__ packed, const Value* __restrict__ bias, Value* __restrict__ result) {
  constexpr int width = lanes * values;
  using Memory = ForwardMemory<Value, width>;
  Memory& memory = *dynamic_shared<Memory>();
  const int warp = threadIdx.x / 32;
  const int64_t tile = blockIdx.x % cut.tiles, groups = gridDim.x / cut.tiles;
  const Value* features = packed + tile * layer.in_features * width;
  if (staged) {
    Value* copy = reinterpret_cast<Value*>(&memory + 1);
    copy_tile(features, layer.in_features * width, copy);
    features = copy;
  }
  Place place{static_cast<int64_t>(blockIdx.x / cut.tiles), 0};
  Quad<Value> quad;
  narrow(Sum<Value>(0), quad.bias);
  quad.fetch_locations(layer, cut, place);
  quad.fetch_weights(layer, cut, place);
  quad.fetch_bias(layer, cut, place, bias);
  Sum<Value> sums[kWarpRows][values] = {};
  while (place.chunk < cut.chunks) {
    keep(quad, layer, place.step == 0, memory);
    __syncthreads();
    const Place next = advance(place, cut, groups);
    quad.fetch_locations(layer, cut, next);
    quad.fetch_weights(layer, cut, next);
    quad.fetch_bias(layer, cut, next, bias);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const int row = r * kWarps + warp;
      const Span span = find_span(layer, cut, place, row);
      add_products<lanes>(features, memory.locations[row], memory.weights[row], span, sums[r]);
    }
    if (next.chunk != place.chunk) {
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        const int row = r * kWarps + warp;
#pragma unroll
        for (int v = 0; v < values; ++v) {
          const Sum<Value> sum = add_lanes<lanes>(sums[r][v]);
          if (threadIdx.x % 32 < lanes) {
            memory.results[threadIdx.x % lanes * values + v][row] = sum + memory.bias[row];
          }
          sums[r][v] = 0;
        }
      }
    }
    __syncthreads();
    if (next.chunk != place.chunk) {
      write_results(layer, cut, tile, place.chunk, memory, result);
    }
    place = next;
  }
}

}  // namespace torch_sparse_ops
