// Kernels that each do one thing wrong, races aside.
#include "faults.h"

namespace {

constexpr unsigned full = 0xFFFFFFFF;

// ---------------------------------------------------------------- barriers and shuffles

__global__ void half_the_block_waits(const float* in, float* out) {
  if (threadIdx.x < 32) {
    out[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
  }
}

__global__ void leave_while_others_wait(const float* in, float* out) {
  if (threadIdx.x == 63) {
    return;
  }
  __syncthreads();
  out[threadIdx.x] = in[threadIdx.x];
}

__global__ void two_barriers(const float* in, float* out) {
  if (threadIdx.x < 32) {
    out[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
  } else {
    out[threadIdx.x] = -in[threadIdx.x];
    __syncthreads();
  }
}

__global__ void shuffle_in_half_a_warp(const float* in, float* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_xor_sync(full, in[threadIdx.x], 1);
  }
}

__global__ void shuffle_against_barrier(const float* in, float* out) {
  if (threadIdx.x == 3) {
    __syncthreads();
  } else {
    out[threadIdx.x] = __shfl_xor_sync(full, in[threadIdx.x], 1);
    __syncthreads();
  }
}

__global__ void shuffle_with_two_masks(const float* in, float* out) {
  out[threadIdx.x] = __shfl_xor_sync(threadIdx.x == 9 ? 0x0000FF00 : 0x0000FFFF, in[threadIdx.x], 1);
}

__global__ void shuffle_from_outside_the_mask(const float* in, float* out) {
  if (threadIdx.x < 16) {
    out[threadIdx.x] = __shfl_down_sync(0x0000FFFF, in[threadIdx.x], 1);
  }
}

__global__ void shuffle_without_oneself(const float* in, float* out) {
  out[threadIdx.x] = __shfl_sync(0x0000FFFF, in[threadIdx.x], 0);
}

__global__ void shuffle_beyond_the_block(const float* in, float* out) {
  out[threadIdx.x] = __shfl_sync(full, in[threadIdx.x], 0);
}

__global__ void shuffle_in_threes(const float* in, float* out) {
  out[threadIdx.x] = __shfl_down_sync(full, in[threadIdx.x], 1, 3);
}

__global__ void wait_in_a_loop(const float* in, float* out) {
  __shared__ unsigned ready[2];
  if (threadIdx.x < 2) {
    ready[threadIdx.x] = 0;
  }
  __syncthreads();
  atomicExch(&ready[threadIdx.x % 2], 1u);
  while (atomicAdd(&ready[1 - threadIdx.x % 2], 0u) == 0) {
  }
  out[threadIdx.x] = in[threadIdx.x];
}

__global__ void trap(const float* in, float* out) {
  out[threadIdx.x] = in[threadIdx.x];
  if (threadIdx.x == 7) {
    __trap();
  }
}

// ---------------------------------------------------------------- bounds and initialisation

__global__ void read_past_the_end(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x + 1]; }

__global__ void read_before_the_start(const float* in, float* out) {
  out[threadIdx.x] = in[static_cast<int>(threadIdx.x) - 1];
}

__global__ void write_past_the_end(const float* in, float* out) { out[threadIdx.x + 1] = in[threadIdx.x]; }

__global__ void read_half_past_the_end(const float* in, float* out) {
  out[threadIdx.x] = static_cast<float>(*reinterpret_cast<const double*>(in + 62));
}

void read_double_of_63_floats() {
  const simt::Buffer<float> in("in", count_to(63)), out("out", 64);
  simt::launch(read_half_past_the_end, 1, 64, 0, in.data(), out.data());
}

__global__ void write_past_shared_variable(const float* in, float* out) {
  __shared__ float tile[63];
  float* at = tile;
  at[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = at[threadIdx.x];
}

__global__ void read_past_shared_variable(const float* in, float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  const float* at = tile;
  out[threadIdx.x] = at[threadIdx.x + 1];
}

__global__ void write_past_dynamic_shared(const float* in, float* out) {
  float* tile = simt::dynamic_shared<float>();
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void write_to_host(const float* in, float* out) {
  static float seen[64];
  seen[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = seen[threadIdx.x];
}

__global__ void read_the_stack_of_another(const float* in, float* out) {
  __shared__ float* place;
  float own[2] = {in[threadIdx.x], 0};
  if (threadIdx.x == 0) {
    place = own;
  }
  __syncthreads();
  out[threadIdx.x] = *place;
}

__global__ void read_misaligned(const float* in, float* out) {
  const float4 four = *reinterpret_cast<const float4*>(in + 4 * (threadIdx.x % 8) + 1);
  out[threadIdx.x] = four.x + four.w;
}

__global__ void read_unwritten_shared(const float* in, float* out) {
  __shared__ float tile[64];
  if (threadIdx.x < 63) {
    tile[threadIdx.x] = in[threadIdx.x];
  }
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void read_shared_of_last_block(const float* in, float* out) {
  float* tile = simt::dynamic_shared<float>();
  if (blockIdx.x == 0) {
    tile[threadIdx.x] = in[threadIdx.x];
  }
  out[32 * blockIdx.x + threadIdx.x] = tile[threadIdx.x];
}

__global__ void read_unwritten_result(const float* in, float* out) { out[threadIdx.x] += in[threadIdx.x]; }

__global__ void add_to_unwritten_result(const float* in, float* out) { atomicAdd(out, in[threadIdx.x]); }

__global__ void write_every_second(const float* in, float* out) {
  if (threadIdx.x % 2 == 0) {
    out[threadIdx.x] = in[threadIdx.x];
  }
}

void read_result_of_every_second() {
  const simt::Buffer<float> in("in", count_to(64)), out("out", 64);
  simt::launch(write_every_second, 1, 64, 0, in.data(), out.data());
  out.values();
}

// ---------------------------------------------------------------- launches

__global__ void copy(const float* in, float* out) { out[threadIdx.x] = in[threadIdx.x]; }

void allow_too_much_shared() {
  cudaFuncSetAttribute(copy, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1);
}

const std::vector<simt::Case> cases = {
    {"half_the_block_waits", [] { run(half_the_block_waits); }},
    {"leave_while_others_wait", [] { run(leave_while_others_wait); }},
    {"two_barriers", [] { run(two_barriers); }},
    {"shuffle_in_half_a_warp", [] { run(shuffle_in_half_a_warp, 1, 32); }},
    {"shuffle_against_barrier", [] { run(shuffle_against_barrier, 1, 32); }},
    {"shuffle_with_two_masks", [] { run(shuffle_with_two_masks, 1, 16); }},
    {"shuffle_from_outside_the_mask", [] { run(shuffle_from_outside_the_mask, 1, 32); }},
    {"shuffle_without_oneself", [] { run(shuffle_without_oneself, 1, 32); }},
    {"shuffle_beyond_the_block", [] { run(shuffle_beyond_the_block, 1, 48); }},
    {"shuffle_in_threes", [] { run(shuffle_in_threes, 1, 32); }},
    {"wait_in_a_loop", [] { run(wait_in_a_loop, 1, 2); }},
    {"trap", [] { run(trap); }},
    {"read_past_the_end", [] { run(read_past_the_end); }},
    {"read_before_the_start", [] { run(read_before_the_start); }},
    {"write_past_the_end", [] { run(write_past_the_end); }},
    {"read_half_past_the_end", read_double_of_63_floats},
    {"write_past_shared_variable", [] { run(write_past_shared_variable); }},
    {"read_past_shared_variable", [] { run(read_past_shared_variable); }},
    {"write_past_dynamic_shared", [] { run(write_past_dynamic_shared, 1, 64, 252); }},
    {"write_to_host", [] { run(write_to_host); }},
    {"read_the_stack_of_another", [] { run(read_the_stack_of_another); }},
    {"read_misaligned", [] { run(read_misaligned); }},
    {"read_unwritten_shared", [] { run(read_unwritten_shared); }},
    {"read_shared_of_last_block", [] { run(read_shared_of_last_block, 2, 32, 128); }},
    {"read_unwritten_result", [] { run(read_unwritten_result); }},
    {"add_to_unwritten_result", [] { run(add_to_unwritten_result); }},
    {"read_result_of_every_second", read_result_of_every_second},
    {"block_too_large", [] { run(copy, 1, dim3(32, 33)); }},
    {"grid_of_nothing", [] { run(copy, 0); }},
    {"grid_too_high", [] { run(copy, dim3(1, 65536)); }},
    {"too_much_shared", [] { run(copy, 1, 64, (48 << 10) + 1); }},
    {"allow_too_much_shared", allow_too_much_shared},
};

}  // namespace

int main(int count, char** words) { return simt::run_cases(count, words, cases); }
