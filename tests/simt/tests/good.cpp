#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>

#include "simt/buffer.h"

__global__ void reduce(const float* values, int count, float* sums) {
  __shared__ float partial[8];
  float sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    sum += values[i];
  }
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(0xFFFFFFFF, sum, lanes);
  }
  if (threadIdx.x % 32 == 0) {
    partial[threadIdx.x / 32] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (unsigned i = 0; i < blockDim.x / 32; ++i) {
      total += partial[i];
    }
    sums[blockIdx.x] = total;
  }
}

__global__ void copy4(const float4* from, float4* to) {
  const float4 v = from[threadIdx.x];
  to[threadIdx.x] = make_float4(v.x + 1, v.y, v.z, v.w);
}

int main() {
  std::vector<float> v(5000);
  for (size_t i = 0; i < v.size(); ++i) v[i] = i;
  simt::Buffer<float> values("values", v);
  simt::Buffer<float> sums("sums", 3);
  simt::launch(reduce, 3, 256, 0, values.data(), 5000, sums.data());
  std::printf("%f %f %f\n", sums.values()[0], sums.values()[1], sums.values()[2]);
  auto t = values.loads();
  std::printf("%lu %lu %lu %lu\n", t.requested, t.moved, t.per_block, t.per_launch);
  simt::Buffer<float> copy("copy", 128);
  simt::launch(copy4, 1, 32, 0, (const float4*)values.data(), (float4*)copy.data());
  t = copy.stores();
  std::printf("%lu %lu %lu %lu\n", t.requested, t.moved, t.per_block, t.per_launch);
  try {
    simt::launch(reduce, 3, 256, 0, values.data(), 5001, sums.data());
  } catch (const simt::Failure& f) { std::printf("%s\n", f.what()); }
}
