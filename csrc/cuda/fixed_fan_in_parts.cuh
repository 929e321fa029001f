// What the kernels of the fixed fan-in operators share: numbers, vectors, and the way of connections into shared memory.
//
// A block works on a chunk of outputs, `rows` of them, and in each on kSlots neighbouring connections at a time: a step.
// Connections pass through registers: those of the next step are read from memory while the present ones are worked on.
//
// Rows of fan_in connections need not begin where four of them can be read at once. So the slots of a step are laid out
// from the multiple of four, or of eight, at or before the row's beginning, and each row knows which of its slots are its
// own (a Span).

#pragma once

#include "fixed_fan_in_launch.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace torch_sparse_ops {

constexpr int kThreads = 512;  // of a block
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = 2;     // that the registers of a multiprocessor allow for: 64 for each thread
constexpr int kSlots = 32;     // connections of one output in a step
constexpr int kRows = 64;      // outputs of a chunk, at most
constexpr int kQuad = 4;       // connections that a thread brings in a step
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

// How many of `count` elements one instruction moves.
template <typename Element, int count>
constexpr int kPiece = sizeof(Element) * count <= 16 ? count : 16 / static_cast<int>(sizeof(Element));

template <int count, typename Element>
__device__ inline Vector<Element, count> load(const Element* source) {
  constexpr int piece = kPiece<Element, count>;
  Vector<Element, count> vector;
#pragma unroll
  for (int i = 0; i < count; i += piece) {
    *reinterpret_cast<Vector<Element, piece>*>(vector.at + i) = *reinterpret_cast<const Vector<Element, piece>*>(source + i);
  }
  return vector;
}

template <int count, typename Element>
__device__ inline void store(Element* target, const Vector<Element, count>& vector) {
  constexpr int piece = kPiece<Element, count>;
#pragma unroll
  for (int i = 0; i < count; i += piece) {
    *reinterpret_cast<Vector<Element, piece>*>(target + i) = *reinterpret_cast<const Vector<Element, piece>*>(vector.at + i);
  }
}

// ---------------------------------------------------------------- the cut of the work

struct Cut {
  int64_t batch;
  int64_t tiles;   // of the batch, each of the kernel's width
  int shift;       // log2 of the outputs of a chunk
  int align;       // multiples of so many connections at which the steps of an output may begin
  int64_t chunks;  // of outputs
  int64_t steps;   // of an output, at least one

  __host__ __device__ int rows() const { return 1 << shift; }
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

  __device__ bool holds(int slot) const { return begin <= slot && slot < end; }
};

__device__ inline int clamp_slot(int64_t slot) { return static_cast<int>(slot < 0 ? 0 : slot > kSlots ? kSlots : slot); }

__device__ inline Span find_span(const Layer& layer, const Cut& cut, const Place& place, int row) {
  const int64_t output = (place.chunk << cut.shift) + row;
  if (row >= cut.rows() || output >= layer.out_features) {
    return {0, 0, 0};
  }
  const int64_t begin = output * layer.fan_in;
  const int64_t first = (begin & -static_cast<int64_t>(cut.align)) + place.step * kSlots;
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

// The slots of a step that a thread brings: a quad of one row. Slots outside the row's span hold anything: they are
// neighbours that were read along, so that one instruction serves. fetch_... read from memory without looking at what they
// read, so that nothing waits for it before it is needed.
template <typename Value>
struct Quad {
  uint64_t words[kQuad];  // locations; two-byte ones lie together in the first
  Value weights[kQuad];
  int64_t first;  // connection of the quad's first slot
  int begin;      // the slots of the quad that belong to the output
  int end;
  bool whole;     // whether the quad can be read at once

  __device__ void find(const Layer& layer, const Cut& cut, const Place& place) {
    const int slot = threadIdx.x * kQuad % kSlots;
    const Span span = find_span(layer, cut, place, threadIdx.x * kQuad / kSlots);
    first = span.first + slot;
    begin = span.begin - slot < 0 ? 0 : span.begin - slot;
    end = span.end - slot > kQuad ? kQuad : span.end - slot;
    whole = layer.aligned && begin < end && first + kQuad <= layer.out_features * layer.fan_in;
  }

  // The width of locations is a number, not a type: the branch is taken once for four connections, far from the inner
  // loops, and saves two thirds of the kernels.
  __device__ void fetch_locations(const Layer& layer) {
    if (layer.location_bytes == 4) {
      uint32_t halves[kQuad];
      fetch(layer.locations, halves);
      for (int j = 0; j < kQuad; ++j) {
        words[j] = halves[j];
      }
    } else if (layer.location_bytes == 8) {
      fetch(layer.locations, words);
    } else if (whole) {
      words[0] = *reinterpret_cast<const uint64_t*>(static_cast<const uint16_t*>(layer.locations) + first);
    } else {
      words[0] = 0;
#pragma unroll 1
      for (int j = begin; j < end; ++j) {
        words[0] |= static_cast<uint64_t>(static_cast<const uint16_t*>(layer.locations)[first + j]) << (16 * j);
      }
    }
  }

  __device__ void fetch_weights(const Layer& layer) { fetch(layer.weights, weights); }

  __device__ Vector<uint32_t, kQuad> check_locations(const Layer& layer) const {
    Vector<uint32_t, kQuad> checked;
    bool valid = true;
    for (int j = 0; j < kQuad; ++j) {
      const uint64_t location = layer.location_bytes == 2 ? words[0] >> (16 * j) & 0xffff : words[j];
      valid = valid && (location < layer.limit || j < begin || j >= end);
      checked.at[j] = static_cast<uint32_t>(location);
    }
    if (!valid) {
      refuse_location();
    }
    return checked;
  }

 private:
  template <typename Element>
  __device__ void fetch(const void* array, Element (&quad)[kQuad]) const {
    const Element* source = static_cast<const Element*>(array) + first;
    if (whole) {
      const Vector<Element, kQuad> vector = load<kQuad>(source);
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        quad[j] = vector.at[j];
      }
    } else {
#pragma unroll
      for (int j = 0; j < kQuad; ++j) {
        quad[j] = Element();
        if (begin <= j && j < end) {
          quad[j] = source[j];
        }
      }
    }
  }
};

// What is added to the output of a chunk that the thread's number counts; the first step begins with it.
template <typename Value>
__device__ inline Sum<Value> fetch_bias(const Layer& layer, const Cut& cut, const Place& place, const Value* bias) {
  const int64_t output = (place.chunk << cut.shift) + threadIdx.x;
  const bool wanted = bias != nullptr && place.step == 0 && static_cast<int>(threadIdx.x) < cut.rows() && output < layer.out_features;
  return wanted ? widen(bias[output]) : 0;
}

// ---------------------------------------------------------------- slots and lanes

// Neighbouring slots that a lane reads together, where 32 / lanes lanes with the same batch entries share all slots.
template <int lanes>
constexpr int kRun = lanes < kQuad ? lanes : kQuad;

// The i-th of the `lanes` slots that fall to a lane.
template <int lanes>
__device__ inline int find_slot(int i) {
  constexpr int run = kRun<lanes>;
  return (i / run * (32 / lanes) + threadIdx.x % 32 / lanes) * run + i % run;
}


// Adds what lanes `first`, 2 * first, ... apart hold: every lane gets the sum.
template <int first, typename Number>
__device__ inline Number add_lanes(Number sum) {
  for (int apart = first; apart < 32; apart *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, apart);
  }
  return sum;
}

// Adds sums[i] over `lanes` neighbouring lanes; lane i of them gets sum i. Every exchange serves two sums, so there is one
// for each sum rather than one for each sum and each halving.
template <int lanes, typename Number>
__device__ inline Number add_transposed(Number (&sums)[lanes]) {
  if constexpr (lanes == 1) {
    return sums[0];
  } else {
    constexpr int half = lanes / 2;
    const bool upper = threadIdx.x & half;
    Number halves[half];
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const Number given = upper ? sums[i] : sums[i + half];
      const Number kept = upper ? sums[i + half] : sums[i];
      halves[i] = kept + __shfl_xor_sync(kAllLanes, given, half);
    }
    return add_transposed<half>(halves);
  }
}

// Brings a tile of features into shared memory.
template <typename Value>
__device__ inline void copy_tile(const Value* source, int64_t elements, Value* target) {
  constexpr int count = 16 / sizeof(Value);
  if (reinterpret_cast<uintptr_t>(source) % 16 == 0 && elements % count == 0) {
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < elements / count; i += kThreads) {
      store<count>(target + i * count, load<count>(source + i * count));
    }
  } else {
#pragma unroll 1
    for (int64_t i = threadIdx.x; i < elements; i += kThreads) {
      target[i] = source[i];
    }
  }
}

}  // namespace torch_sparse_ops
