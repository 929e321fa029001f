// Kernels whose accesses race: each leaves out, or misplaces, what would order them.
#include "faults.h"

namespace {

__global__ void reverse_without_barrier(const float* in, float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[63 - threadIdx.x];
}

__global__ void overwrite_without_barrier(const float* in, float* out) {
  __shared__ float tile[64];
  for (int round = 0; round < 2; ++round) {
    tile[threadIdx.x] = in[threadIdx.x] + round;
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x];        // the next round's writes may come first
  }
}

__global__ void overwrite_what_all_read(const float* in, float* out) {
  __shared__ float first;
  if (threadIdx.x == 0) {
    first = in[0];
  }
  __syncthreads();
  out[threadIdx.x] = first;
  if (threadIdx.x == 40) {
    first = 0;
  }
}

__global__ void overwrite_what_warps_have_read(const float* in, float* out) {
  __shared__ float first;
  if (threadIdx.x == 0) {
    first = in[0];
  }
  float sum = 0;
  for (int round = 0; round < 2; ++round) {
    __syncthreads();
    sum += first;
  }
  __syncwarp();
  if (threadIdx.x == 0) {
    first = sum;                       // the other warp may not have read it
  }
  out[threadIdx.x] = sum;
}

__global__ void rotate_without_syncwarp(const float* in, float* out) {
  float* tile = simt::dynamic_shared<float>();
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = tile[(threadIdx.x + 1) % 32];
}

__global__ void rotate_after_shuffle(const float* in, float* out) {
  float* tile = simt::dynamic_shared<float>();
  tile[threadIdx.x] = in[threadIdx.x];
  const float own = __shfl_sync(0xFFFFFFFF, in[threadIdx.x], threadIdx.x);
  out[threadIdx.x] = own + tile[(threadIdx.x + 1) % 32];
}

__global__ void rotate_after_half_a_syncwarp(const float* in, float* out) {
  float* tile = simt::dynamic_shared<float>();
  tile[threadIdx.x] = in[threadIdx.x];
  __syncwarp(threadIdx.x < 16 ? 0x0000FFFF : 0xFFFF0000);
  out[threadIdx.x] = tile[(threadIdx.x + 1) % 32];
}

__global__ void exchange_between_warps_with_syncwarp(const float* in, float* out) {
  __shared__ float tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncwarp();
  out[threadIdx.x] = tile[63 - threadIdx.x];
}

__global__ void blocks_write_one_element(const float* in, float* out) { out[threadIdx.x] = in[blockIdx.x]; }

__global__ void blocks_hand_over(const float* in, float* out) {
  if (blockIdx.x == 0) {
    out[threadIdx.x] = in[threadIdx.x];
  } else {
    out[threadIdx.x + 32] = out[threadIdx.x];
  }
}

__global__ void blocks_read_what_one_writes(const float* in, float* out) {
  float* changed = const_cast<float*>(in);
  out[4 * blockIdx.x + threadIdx.x] = in[threadIdx.x];
  if (blockIdx.x == 2 && threadIdx.x == 1) {
    changed[1] = 0;
  }
}

__global__ void add_without_atomic(const float* in, float* out) {
  if (threadIdx.x == 0) {
    out[0] = 0;
  }
  __syncthreads();
  out[0] += in[threadIdx.x];
}

__global__ void add_and_read(const float* in, float* out) {
  if (threadIdx.x == 0) {
    out[0] = 0;
  }
  __syncthreads();
  atomicAdd(out, in[threadIdx.x]);
  out[1 + threadIdx.x / 2] = out[0];
}

__global__ void add_before_it_is_set(const float* in, float* out) {
  float* sum = const_cast<float*>(in);
  if (threadIdx.x == 0) {
    *sum = 0;
  }
  out[threadIdx.x] = atomicAdd(sum, 1.0f);
}

__global__ void read_while_a_warp_adds(const float* in, float* out) {
  __shared__ float sum;
  if (threadIdx.x == 40) {
    sum = 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    atomicAdd(&sum, in[threadIdx.x]);
  } else if (threadIdx.x == 40) {
    out[0] = sum;
  }
}

__global__ void read_when_the_own_warp_has_added(const float* in, float* out) {
  __shared__ float sum;
  if (threadIdx.x == 0) {
    sum = 0;
  }
  __syncthreads();
  atomicAdd(&sum, in[threadIdx.x]);
  __syncwarp();
  if (threadIdx.x == 0) {
    out[0] = sum;
  }
}

__global__ void set_while_others_add(const float* in, float* out) {
  out[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x == 40) {
    out[0] = 1;
  } else {
    atomicAdd(out, in[threadIdx.x]);
  }
}

const std::vector<simt::Case> cases = {
    {"reverse_without_barrier", [] { run(reverse_without_barrier); }},
    {"overwrite_without_barrier", [] { run(overwrite_without_barrier); }},
    {"overwrite_what_all_read", [] { run(overwrite_what_all_read); }},
    {"overwrite_what_warps_have_read", [] { run(overwrite_what_warps_have_read); }},
    {"rotate_without_syncwarp", [] { run(rotate_without_syncwarp, 1, 32, 128); }},
    {"rotate_after_shuffle", [] { run(rotate_after_shuffle, 1, 32, 128); }},
    {"rotate_after_half_a_syncwarp", [] { run(rotate_after_half_a_syncwarp, 1, 32, 128); }},
    {"exchange_between_warps_with_syncwarp", [] { run(exchange_between_warps_with_syncwarp); }},
    {"blocks_write_one_element", [] { run(blocks_write_one_element, 2); }},
    {"blocks_hand_over", [] { run(blocks_hand_over, 2, 32); }},
    {"blocks_read_what_one_writes", [] { run(blocks_read_what_one_writes, 3, 4); }},
    {"add_without_atomic", [] { run(add_without_atomic); }},
    {"add_and_read", [] { run(add_and_read); }},
    {"add_before_it_is_set", [] { run(add_before_it_is_set); }},
    {"read_while_a_warp_adds", [] { run(read_while_a_warp_adds); }},
    {"read_when_the_own_warp_has_added", [] { run(read_when_the_own_warp_has_added); }},
    {"set_while_others_add", [] { run(set_while_others_add); }},
};

}  // namespace

int main(int count, char** words) { return simt::run_cases(count, words, cases); }
