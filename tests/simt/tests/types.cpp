// The types of CUDA, the places of threads, and memory beyond 32 bits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <limits>

#include "simt/buffer.h"
#include "simt/cases.h"

namespace {

using simt::Buffer;
using simt::require;

__global__ void note_places(uint3* places) {
  const unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned of_block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  places[of_block * threads + in_block] = {threadIdx.x + 10 * blockIdx.x, threadIdx.y + 10 * blockIdx.y,
                                           threadIdx.z + 10 * blockIdx.z};
}

void three_dimensions() {
  const Buffer<uint3> places("places", 4 * 3 * 2 * 2 * 3 * 5);
  simt::launch(note_places, dim3(2, 3, 5), dim3(4, 3, 2), 0, places.data());
  const std::vector<uint3> found = places.values();
  const uint3 last = found.back(), second = found[1], next_block = found[24];
  require(last.x == 13 && last.y == 22 && last.z == 41, "last");
  require(second.x == 1 && second.y == 0 && second.z == 0, "second");
  require(next_block.x == 10 && next_block.y == 0 && next_block.z == 0, "next block");
}

__device__ float2 widen(__half2 pair) { return __half22float2(pair); }
__device__ float2 widen(__nv_bfloat162 pair) { return __bfloat1622float2(pair); }
__device__ __half2 narrow(float2 pair, __half2) { return __float22half2_rn(pair); }
__device__ __nv_bfloat162 narrow(float2 pair, __nv_bfloat162) { return __float22bfloat162_rn(pair); }

template <typename Pair>
__global__ void halve(const Pair* from, Pair* to) {
  const float2 pair = widen(from[threadIdx.x]);
  to[threadIdx.x] = narrow(make_float2(pair.x / 2, pair.y / 2), Pair());
}

template <typename Pair>
void pairs() {
  std::vector<Pair> pairs;
  for (int i = 0; i < 32; ++i) {
    pairs.emplace_back(static_cast<float>(i), -static_cast<float>(i));
  }
  const Buffer<Pair> from("from", pairs), to("to", 32);
  simt::launch(halve<Pair>, 1, 32, 0, from.data(), to.data());
  require(!simt::watched || from.loads().requested == 128, "bytes of all pairs");
  const std::vector<Pair> found = to.values();
  for (int i = 0; i < 32; ++i) {
    require(widen(found[i]).x == i / 2.0f && widen(found[i]).y == -i / 2.0f, "pair " + std::to_string(i));
  }
}

void conversions() {
  const float third = 1.0f / 3, infinity = std::numeric_limits<float>::infinity();
  require(__half2float(third) == 0.333251953125f, "float16 has 11 bits");
  require(__half2float(1 + 3 / 2048.0f) == 1 + 4 / 2048.0f, "float16: to nearest, ties to even");
  require(__half2float(65520.0f) == infinity && __half2float(5.9604645e-8f) > 0, "float16: range");
  require(__bfloat162float(third) == 0.333984375f, "bfloat16 has 8 bits");
  require(__bfloat162float(1 + 1 / 256.0f) == 1, "bfloat16: ties to even, down");
  require(__bfloat162float(1 + 3 / 256.0f) == 1 + 4 / 256.0f, "bfloat16: ties to even, up");
  require(__bfloat162float(1 + 1 / 256.0 + 1e-12) == 1 + 2 / 256.0f, "float64 to bfloat16: rounded once");
  require(__bfloat162float(3.4e38f) == infinity, "bfloat16: overflow");
  require(std::isnan(__bfloat162float(NAN)) && std::isnan(__half2float(NAN)), "not a number");
}

__global__ void copy_one(const char* from, char* to, int64_t at) { to[at] = from[at]; }

void beyond_32_bits() {
  if (!simt::watched) {
    return;                            // the sanitizers' allocator takes memory for all of it
  }
  constexpr int64_t size = (int64_t(1) << 32) + 5;
  Buffer<char> from("from", size), to("to", size);
  from.set(size - 1, 42);
  simt::launch(copy_one, 1, 1, 0, from.data(), to.data(), size - 1);
  require(to.data()[size - 1] == 42, "the last byte");
}

const std::vector<simt::Case> cases = {
    {"three_dimensions", three_dimensions},
    {"pairs_half", pairs<__half2>},
    {"pairs_bfloat16", pairs<__nv_bfloat162>},
    {"conversions", conversions},
    {"beyond_32_bits", beyond_32_bits},
};

}  // namespace

int main(int count, char** words) { return simt::run_cases(count, words, cases); }
