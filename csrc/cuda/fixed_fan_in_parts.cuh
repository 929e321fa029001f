// What the kernels of the fixed fan-in operators share: numbers, vectors, and the way of connections into shared memory.
//
// A block works on a chunk of outputs, `rows` of them, and in each on kSlots neighbouring connections at a time: a step.
// Connections pass through registers: those of the next step are read from memory while the present ones are worked on.
//
// Rows of fan_in connections need not begin where four of them can be read at once. So the slots of a step are laid out
// from the multiple of four at or before the row's beginning, and each row knows which of its slots are its own (a Span).

#pragma once

#include "fixed_fan_in_launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace torch_sparse_ops {

constexpr int kThreads = 512;  // of a block
constexpr int kWarps = kThreads / 32;
constexpr int kSlots = 32;     // connections of one output in a step
constexpr int kRows = 64;      // outputs of a chunk, at most
constexpr int kQuad = 4;       // connections that a thread brings in a step
constexpr int kWarpRows = kRows / kWarps;  // outputs of a warp
constexpr unsigned kAllLanes = 0xffffffff;

static_assert(kRows * kSlots == kThreads * kQuad, "each thread brings one quad a step");

// ---------------------------------------------------------------- numbers

template <typename Value>
struct SumOf {
  using type = float;
};
template <>
struct SumOf<double> {
  using type = double;
};
template <typename Value>
using Sum = typename SumOf<Value>::type;

__device__ inline float widen(float value) { return value; }
__device__ inline double widen(double value) { return value; }
__device__ inline float widen(__half value) { return __half2float(value); }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ inline void narrow(float sum, float& value) { value = sum; }
__device__ inline void narrow(double sum, double& value) { value = sum; }
__device__ inline void narrow(float sum, __half& value) { value = __float2half_rn(sum); }
__device__ inline void narrow(float sum, __nv_bfloat16& value) { value = __float2bfloat16_rn(sum); }

// Elements that are read and written together.
template <typename Element, int count>
struct alignas(sizeof(Element) * count < 16 ? sizeof(Element) * count : 16) Vector {
  Element at[count];
};

template <int count, typename Element>
__device__ inline Vector<Element, count> load(const Element* source) {
  return *reinterpret_cast<const Vector<Element, count>*>(source);
}

template <int count, typename Element>
__device__ inline void store(Element* target, const Vector<Element, count>& vector) {
  *reinterpret_cast<Vector<Element, count>*>(target) = vector;
}

// ---------------------------------------------------------------- the cut of the work

struct Cut {
  int64_t batch;
  int64_t tiles;   // of the batch, each of the kernel's width
  int64_t rows;    // outputs of a chunk, a power of two
  int64_t chunks;  // of outputs
  int64_t steps;   // of an output, at least one
};

// Where a block is in its walk over its connections.
struct Place {
  int64_t chunk;
  int64_t step;
};

__device__ inline Place advance(const Place& place, const Cut& cut, int64_t stride) {
  return place.step + 1 < cut.steps ? Place{place.chunk, place.step + 1} : Place{place.chunk + stride, 0};
}

// Slots [begin, end) of a step belong to an output; slot 0 is connection `first`.
struct Span {
  int64_t first;
  int begin;
  int end;
};

__device__ inline int clamp_slot(int64_t slot) { return static_cast<int>(slot < 0 ? 0 : slot > kSlots ? kSlots : slot); }

__device__ inline Span find_span(const Layer& layer, const Cut& cut, const Place& place, int row) {
  const int64_t output = place.chunk * cut.rows + row;
  if (row >= cut.rows || output >= layer.out_features) {
    return {0, 0, 0};
  }
  const int64_t begin = output * layer.fan_in;
  const int64_t first = begin / kQuad * kQuad + place.step * kSlots;
  return {first, clamp_slot(begin - first), clamp_slot(begin + layer.fan_in - first)};
}

// ---------------------------------------------------------------- connections on their way

// The message appears on stderr, and the next call that synchronises raises torch's "device-side assert triggered".
__device__ inline void refuse_location() {
#if defined(__CUDA_ARCH__)
  __assert_fail(
      "ffi_forward, ffi_backward: locations: accepted is 0 to in_features - 1", "csrc/cuda/fixed_fan_in_parts.cuh",
      __LINE__, "refuse_location");
#elif defined(SIMT_HARNESS)
  __trap();
#endif
}

template <typename Element>
__device__ inline void load_quad(const Element* source, int begin, int end, bool aligned, Element (&quad)[kQuad]) {
  if (aligned && begin <= 0 && end >= kQuad) {
    const Vector<Element, kQuad> vector = load<kQuad>(source);
    for (int j = 0; j < kQuad; ++j) {
      quad[j] = vector.at[j];
    }
  } else {
    for (int j = 0; j < kQuad; ++j) {
      if (begin <= j && j < end) {
        quad[j] = source[j];
      }
    }
  }
}

// The slots of a step that a thread brings: a quad of one row. Slots outside the row's span are zero. fetch_... read them
// from memory without looking at them, so that nothing waits for them before they are needed.
template <typename Value>
struct Quad {
  uint64_t words[kQuad];  // locations; two-byte ones lie together in the first
  Value weights[kQuad];
  Value bias;  // of the output that the thread's number counts, in the first step
  int begin;   // the slots of the quad that belong to the output
  int end;

  // The width of locations is a number, not a type: the branch is taken once for four connections, far from the inner
  // loops, and saves two thirds of the kernels.
  __device__ void fetch_locations(const Layer& layer, const Cut& cut, const Place& place) {
    const int64_t first = find(layer, cut, place);
    for (int j = 0; j < kQuad; ++j) {
      words[j] = 0;
    }
    if (layer.location_bytes == 4) {
      uint32_t halves[kQuad] = {};
      load_quad(static_cast<const uint32_t*>(layer.locations) + first, begin, end, layer.aligned, halves);
      for (int j = 0; j < kQuad; ++j) {
        words[j] = halves[j];
      }
    } else if (layer.location_bytes == 8) {
      load_quad(static_cast<const uint64_t*>(layer.locations) + first, begin, end, layer.aligned, words);
    } else if (layer.aligned && begin <= 0 && end >= kQuad) {
      words[0] = *reinterpret_cast<const uint64_t*>(static_cast<const uint16_t*>(layer.locations) + first);
    } else {
      for (int j = begin < 0 ? 0 : begin; j < (end < kQuad ? end : kQuad); ++j) {
        words[0] |= static_cast<uint64_t>(static_cast<const uint16_t*>(layer.locations)[first + j]) << (16 * j);
      }
    }
  }

  __device__ Vector<uint32_t, kQuad> check_locations(const Layer& layer) const {
    Vector<uint32_t, kQuad> checked;
    for (int j = 0; j < kQuad; ++j) {
      const uint64_t location = layer.location_bytes == 2 ? words[0] >> (16 * j) & 0xffff : words[j];
      if (begin <= j && j < end && location >= layer.limit) {
        refuse_location();
      }
      checked.at[j] = static_cast<uint32_t>(location);
    }
    return checked;
  }

  __device__ void fetch_weights(const Layer& layer, const Cut& cut, const Place& place) {
    const int64_t first = find(layer, cut, place);
    for (int j = 0; j < kQuad; ++j) {
      narrow(Sum<Value>(0), weights[j]);
    }
    load_quad(static_cast<const Value*>(layer.weights) + first, begin, end, layer.aligned, weights);
  }

  __device__ void fetch_bias(const Layer& layer, const Cut& cut, const Place& place, const Value* source) {
    const int64_t output = place.chunk * cut.rows + threadIdx.x;
    if (place.step == 0 && source != nullptr && threadIdx.x < cut.rows && output < layer.out_features) {
      bias = source[output];
    }
  }

 private:
  // Returns the connection of the quad's first slot.
  __device__ int64_t find(const Layer& layer, const Cut& cut, const Place& place) {
    const int slot = threadIdx.x * kQuad % kSlots;
    const Span span = find_span(layer, cut, place, threadIdx.x * kQuad / kSlots);
    begin = span.begin - slot;
    end = span.end - slot;
    return span.first + slot;
  }
};

// ---------------------------------------------------------------- sums over lanes

// Adds what lanes `first`, 2 * first, ... apart hold: every lane gets the sum.
template <int first, typename Number>
__device__ inline Number add_lanes(Number sum) {
  for (int apart = first; apart < 32; apart *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, apart);
  }
  return sum;
}

// Adds sums[i] over `lanes` neighbouring lanes; lane i of them gets sum i. One exchange for each sum, not one for each sum
// and each halving: every exchange serves two sums.
template <int lanes, typename Number>
__device__ inline Number add_transposed(Number (&sums)[lanes]) {
  const int lane = threadIdx.x % lanes;
#pragma unroll
  for (int half = lanes / 2; half > 0; half /= 2) {
    const bool upper = lane & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const Number given = upper ? sums[i] : sums[i + half];
      const Number kept = upper ? sums[i + half] : sums[i];
      sums[i] = kept + __shfl_xor_sync(kAllLanes, given, half);
    }
  }
  return sums[0];
}

// Brings a tile of features into shared memory.
template <typename Value>
__device__ inline void copy_tile(const Value* source, int64_t elements, Value* target) {
  constexpr int count = 16 / sizeof(Value);
  if (reinterpret_cast<uintptr_t>(source) % 16 == 0 && elements % count == 0) {
    for (int64_t i = threadIdx.x; i < elements / count; i += kThreads) {
      store<count>(target + i * count, load<count>(source + i * count));
    }
  } else {
    for (int64_t i = threadIdx.x; i < elements; i += kThreads) {
      target[i] = source[i];
    }
  }
}

}  // namespace torch_sparse_ops
