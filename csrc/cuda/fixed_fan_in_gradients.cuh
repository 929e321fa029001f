// The kernels of ffi_backward; fixed_fan_in.cu says how they work and why so, fixed_fan_in_kernels.cuh what the template
// arguments mean.

#pragma once

#include "fixed_fan_in_kernels.cuh"

namespace torch_sparse_ops {

// ---------------------------------------------------------------- gradient of the weights

// Products of an output's gradients with the features of one step, summed over the tile's entries: each lane gets the sum
// of one slot.
template <int lanes, int values, typename Value>
__device__ inline Sum<Value> sum_over_batch(
    const Value* features, const uint32_t* locations, const Span& span, const Vector<Value, values>& grads) {
  constexpr int run = kRun<lanes>;
  const Value* column = features + threadIdx.x % lanes * values;
  Sum<Value> sums[lanes] = {};
#pragma unroll
  for (int i = 0; i < lanes; i += run) {
    const int slot = find_slot<lanes>(i);
    const Vector<uint32_t, run> rows = load<run>(locations + slot);
#pragma unroll
    for (int j = 0; j < run; ++j) {
      if (span.holds(slot + j)) {
        const Vector<Value, values> row = load<values>(column + static_cast<int64_t>(rows.at[j]) * (lanes * values));
#pragma unroll
        for (int v = 0; v < values; ++v) {
          sums[i + j] += widen(grads.at[v]) * widen(row.at[v]);
        }
      }
    }
  }
  return add_transposed<lanes>(sums);
}

template <typename Value>
struct WeightGradients {
  const Value* packed_grads;  // [tile][out_features][width]
  Sum<Value>* sums;           // [out_features][fan_in], over the tiles so far; grad_weights itself where it is of that type
  Value* grad_weights;        // [out_features][fan_in]
};

// Outputs whose gradients are all zero in this tile are passed over.
template <int lanes, int values, typename Value>
__device__ inline void work_off_gradients(
    const Layer& layer, const Cut& cut, const Place& place, int64_t tile, const Value* features,
    const uint32_t (&locations)[kRows][kSlots], const WeightGradients<Value>& gradients) {
#pragma unroll 1
  for (int row = threadIdx.x / 32; row < cut.rows(); row += kWarps) {
    const Span span = find_span(layer, cut, place, row);
    if (span.begin == span.end) {
      continue;
    }
    const int64_t output = (place.chunk << cut.shift) + row;
    const Vector<Value, values> grads = load<values>(
        gradients.packed_grads + ((tile * layer.out_features + output) * lanes + threadIdx.x % lanes) * values);
    bool any = false;
#pragma unroll
    for (int v = 0; v < values; ++v) {
      any = any || widen(grads.at[v]) != 0;
    }
    Sum<Value> sum = 0;
    if (__any_sync(kAllLanes, any)) {
      sum = sum_over_batch<lanes>(features, locations[row], span, grads);
    }
    const int slot = find_slot<lanes>(threadIdx.x % lanes);
    if (span.holds(slot)) {
      const int64_t connection = span.first + slot;
      sum += tile == 0 ? 0 : gradients.sums[connection];
      if (tile + 1 < cut.tiles) {
        gradients.sums[connection] = sum;
      } else {
        narrow(sum, gradients.grad_weights[connection]);
      }
    }
  }
}

// Blocks that the registers of a multiprocessor allow for: a sum for each lane that shares a slot takes many.
template <typename Value, int lanes, int values, bool staged>
constexpr int kGradWeightsBlocks = sizeof(Sum<Value>) * lanes > 64 || (values == 4 && !staged) ? 1 : 2;

// Each block keeps its chunks through all tiles, in order, so every sum belongs to one thread.
template <typename Value, int lanes, int values, bool staged>
__global__ void __launch_bounds__(kThreads, (kGradWeightsBlocks<Value, lanes, values, staged>)) compute_grad_weights(
    Layer layer, Cut cut, const Value* __restrict__ packed, WeightGradients<Value> gradients) {
  __shared__ __align__(16) uint32_t locations[kRows][kSlots];
  Quad<Value> quad;
  for (int64_t tile = 0; tile < cut.tiles; ++tile) {
    const Value* features = packed + tile * layer.in_features * lanes * values;
    if (staged) {
      copy_tile(features, layer.in_features * lanes * values, dynamic_shared<Value>());
      features = dynamic_shared<Value>();
    }
    Place place{-1, 0}, next{blockIdx.x, 0};
    while (true) {
      quad.find(layer, cut, next);
      quad.fetch_locations(layer);
      if (place.chunk >= 0) {
        work_off_gradients<lanes, values>(layer, cut, place, tile, features, locations, gradients);
        __syncthreads();
      }
      if (next.chunk >= cut.chunks) {
        break;
      }
      store(&locations[0][0] + threadIdx.x * kQuad, quad.check_locations(layer));
      __syncthreads();
      place = next;
      next = advance(place, cut, gridDim.x);
    }
  }
}

// ---------------------------------------------------------------- gradient of the features

// The output of a connection, by the cheaper division where numbers are small.
__device__ inline int64_t find_output(int64_t connection, const Layer& layer, bool wide) {
  return wide ? connection / layer.fan_in : static_cast<uint32_t>(connection) / static_cast<uint32_t>(layer.fan_in);
}

// Adds what one warp's share of an input's connections contributes.
template <int lanes, int values, typename Value>
__device__ inline void add_connections(
    const Layer& layer, const Transposed& transposed, int64_t begin, int64_t end, int64_t stride, const Value* grads,
    Sum<Value> (&sums)[values]) {
  constexpr int groups = 32 / lanes;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (; begin < end; begin += stride) {
    const int count = static_cast<int>(end - begin < 32 ? end - begin : 32);
    int64_t own_output = 0;
    Sum<Value> own_weight = 0;
    if (lane < count) {
      const int64_t connection = transposed.wide ? static_cast<const int64_t*>(transposed.order)[begin + lane]
                                             : static_cast<const int32_t*>(transposed.order)[begin + lane];
      own_output = find_output(connection, layer, transposed.wide);
      own_weight = widen(static_cast<const Value*>(layer.weights)[connection]);
    }
#pragma unroll 4
    for (int first = 0; first < count; first += groups) {
      const int source = first + lane / lanes;
      const int64_t output = __shfl_sync(kAllLanes, own_output, source);
      const Sum<Value> weight = __shfl_sync(kAllLanes, own_weight, source);
      if (source < count) {
        const Vector<Value, values> row = load<values>(grads + (output * lanes + lane % lanes) * values);
#pragma unroll
        for (int v = 0; v < values; ++v) {
          sums[v] += weight * widen(row.at[v]);
        }
      }
    }
  }
}

// 2^shift warps share an input. Units of work are (tile, some inputs), those of one tile next to each other, so that its gradients stay in the L2 cache.
template <typename Value, int lanes, int values>
__global__ void __launch_bounds__(kThreads, kBlocks) compute_grad_features(
    Layer layer, Cut cut, Transposed transposed, int shift, const Value* __restrict__ packed_grads, Value* __restrict__ grad_features) {
  constexpr int width = lanes * values;
  __shared__ Sum<Value> partials[kWarps][width];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int warps = 1 << shift, count = kWarps >> shift;
  const int64_t strips = (layer.in_features + count - 1) / count;
  for (int64_t unit = blockIdx.x; unit < strips * cut.tiles; unit += gridDim.x) {
    const int64_t tile = unit / strips, first = unit % strips * count;
    const int64_t input = first + (warp >> shift);
    Sum<Value> sums[values] = {};
    if (input < layer.in_features) {
      add_connections<lanes>(
          layer, transposed, transposed.offsets[input] + (warp & (warps - 1)) * 32, transposed.offsets[input + 1], warps * 32,
          packed_grads + tile * layer.out_features * width, sums);
    }
#pragma unroll
    for (int v = 0; v < values; ++v) {
      const Sum<Value> sum = add_lanes<lanes>(sums[v]);
      if (lane < lanes) {
        partials[warp][lane * values + v] = sum;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < count * width; i += kThreads) {
      const int n = i & (count - 1), b = i / count;
      Sum<Value> sum = 0;
#pragma unroll 1
      for (int part = 0; part < warps; ++part) {
        sum += partials[(n << shift) + part][b];
      }
      const int64_t entry = tile * width + b;
      if (entry < cut.batch && first + n < layer.in_features) {
        narrow(sum, grad_features[entry * layer.in_features + first + n]);
      }
    }
    __syncthreads();
  }
}

// ---------------------------------------------------------------- gradient of the features, added atomically

// Adds the products of one output's step to packed sums. The order in which they are added, and so the rounding, is left to
// the hardware.
template <int lanes, int values, typename Value>
__device__ inline void scatter_products(
    const uint32_t* locations, const Sum<Value>* weights, const Span& span, const Vector<Value, values>& grads,
    Sum<Value>* sums) {
#pragma unroll 1
  for (int slot = threadIdx.x % 32 / lanes; slot < span.end; slot += 32 / lanes) {
    if (slot >= span.begin) {
      Sum<Value>* column = sums + (static_cast<int64_t>(locations[slot]) * lanes + threadIdx.x % lanes) * values;
#pragma unroll
      for (int v = 0; v < values; ++v) {
        atomicAdd(column + v, weights[slot] * widen(grads.at[v]));
      }
    }
  }
}

// Units of work are chunks, as in forward. `sums` is [tile][in_features][width] and begins with zeros.
template <typename Value, int lanes, int values>
__global__ void __launch_bounds__(kThreads, kBlocks) scatter_grad_features(
    Layer layer, Cut cut, const Value* __restrict__ packed_grads, Sum<Value>* sums) {
  constexpr int width = lanes * values;
  __shared__ __align__(16) Sum<Value> weights[kRows][kSlots];
  __shared__ __align__(16) uint32_t locations[kRows][kSlots];
  const unsigned tiles = static_cast<unsigned>(cut.tiles);
  const int64_t tile = blockIdx.x % tiles, groups = gridDim.x / tiles;
  Quad<Value> quad;
  for (Place place{blockIdx.x / tiles, 0}; place.chunk < cut.chunks; place = advance(place, cut, groups)) {
    quad.find(layer, cut, place);
    quad.fetch_locations(layer);
    quad.fetch_weights(layer);
    keep_quad(quad, layer, &weights[0][0], &locations[0][0]);
    __syncthreads();
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < cut.rows(); row += kWarps) {
      const Span span = find_span(layer, cut, place, row);
      if (span.begin < span.end) {
        const int64_t output = (place.chunk << cut.shift) + row;
        const Vector<Value, values> grads = load<values>(
            packed_grads + ((tile * layer.out_features + output) * lanes + threadIdx.x % lanes) * values);
        scatter_products<lanes>(locations[row], weights[row], span, grads, sums + tile * layer.in_features * width);
      }
    }
    __syncthreads();
  }
}

template <typename Number>
__global__ void __launch_bounds__(kPackThreads) clear_sums(Number* sums, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{kPackThreads} + threadIdx.x; i < count; i += gridDim.x * int64_t{kPackThreads}) {
    sums[i] = 0;
  }
}

// Packed sums [tile][columns][width] to rows [batch][columns].
template <typename Value>
__global__ void __launch_bounds__(kPackThreads) unpack_sums(
    const Sum<Value>* __restrict__ packed, int64_t batch, int64_t columns, int shift, int64_t tiles,
    Value* __restrict__ rows) {
  __shared__ Sum<Value> block[kMaxWidth][kPackColumns + 1];
  const int width = 1 << shift;
  const int64_t strips = (columns + kPackColumns - 1) / kPackColumns;
  for (int64_t unit = blockIdx.x; unit < strips * tiles; unit += gridDim.x) {
    const int64_t tile = unit / strips, first = unit % strips * kPackColumns;
    for (int i = threadIdx.x; i < width * kPackColumns; i += kPackThreads) {
      const int b = i & (width - 1), c = i >> shift;
      block[b][c] = first + c < columns ? packed[((tile * columns + first + c) << shift) + b] : 0;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width * kPackColumns; i += kPackThreads) {
      const int b = i / kPackColumns, c = i % kPackColumns;
      const int64_t row = (tile << shift) + b;
      if (row < batch && first + c < columns) {
        narrow(block[b][c], rows[row * columns + first + c]);
      }
    }
    __syncthreads();
  }
}

// ---------------------------------------------------------------- gradient of the bias

// Sums of the columns of grads [batch][columns]: a lane for a column, warps for every kWarps-th entry of the batch.
template <typename Value>
__global__ void __launch_bounds__(kThreads, kBlocks) compute_grad_bias(
    const Value* __restrict__ grads, int64_t batch, int64_t columns, Value* __restrict__ grad_bias) {
  __shared__ Sum<Value> partials[kWarps][32];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t first = blockIdx.x * int64_t{32}; first < columns; first += gridDim.x * int64_t{32}) {
    Sum<Value> sum = 0;
    if (first + lane < columns) {
#pragma unroll 4
      for (int64_t b = warp; b < batch; b += kWarps) {
        sum += widen(grads[b * columns + first + lane]);
      }
    }
    partials[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && first + lane < columns) {
      for (int part = 1; part < kWarps; ++part) {
        sum += partials[part][lane];
      }
      narrow(sum, grad_bias[first + lane]);
    }
    __syncthreads();
  }
}

}  // namespace torch_sparse_ops
