// Bytes that kernels move, counted: each case knows the number.
#include <cuda_runtime.h>

#include <cstring>

#include "simt/buffer.h"
#include "simt/cases.h"

namespace {

using simt::Buffer;
using simt::require;
using simt::Traffic;

constexpr size_t size = 4096;

void require_traffic(const Traffic& found, const Traffic& expected, const std::string& what) {
  const auto compare = [&](const char* name, uint64_t got, uint64_t wanted) {
    require(!simt::watched || got == wanted,
            what + ", " + name + ": " + std::to_string(got) + " bytes instead of " + std::to_string(wanted));
  };
  compare("requested", found.requested, expected.requested);
  compare("moved", found.moved, expected.moved);
  compare("per block", found.per_block, expected.per_block);
  compare("per launch", found.per_launch, expected.per_launch);
}

struct Memory {
  Buffer<float> in{"in", std::vector<float>(size, 1)}, out{"out", size};

  template <typename... Arguments>
  void launch(void (*kernel)(const float*, float*, Arguments...), dim3 grid, dim3 block, Arguments... arguments) const {
    simt::launch(kernel, grid, block, 0, in.data(), out.data(), arguments...);
  }
};

__device__ unsigned place() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void copy_strided(const float* in, float* out, int stride, int offset) {
  out[place()] = in[place() * stride + offset];
}

void coalesced() {
  const Memory memory;
  memory.launch(copy_strided, 4, 64, 1, 0);
  require_traffic(memory.in.loads(), {1024, 1024, 1024, 1024}, "loads");
  require_traffic(memory.out.stores(), {1024, 1024, 1024, 1024}, "stores");
  require_traffic(memory.in.stores(), {}, "stores to the input");
  require_traffic(memory.out.loads(), {}, "loads of the output");
}

void strided() {
  const Memory memory;
  memory.launch(copy_strided, 4, 64, 8, 0);
  require_traffic(memory.in.loads(), {1024, 8192, 8192, 8192}, "loads");
}

void shifted() {
  const Memory memory;
  memory.launch(copy_strided, 4, 64, 1, 1);
  // Five sectors a warp instead of four; the one between two warps or blocks is counted for both.
  require_traffic(memory.in.loads(), {1024, 8 * 160, 4 * 288, 1056}, "loads");
}

void broadcast() {
  const Memory memory;
  memory.launch(copy_strided, 4, 64, 0, 3);
  require_traffic(memory.in.loads(), {1024, 8 * 32, 4 * 32, 32}, "loads");
}

__global__ void copy_vectors(const float* in, float* out) {
  const float4 four = reinterpret_cast<const float4*>(in)[place()];
  reinterpret_cast<float4*>(out)[place()] = make_float4(four.x + 1, four.y, four.z, four.w);
}

void vectors() {
  const Memory memory;
  memory.launch(copy_vectors, 2, 32);
  require_traffic(memory.in.loads(), {1024, 1024, 1024, 1024}, "loads");
  require_traffic(memory.out.stores(), {1024, 1024, 1024, 1024}, "stores");
}

__global__ void sum_one_component(const float* in, float* out) {
  const float4 four = reinterpret_cast<const float4*>(in)[place()];
  out[place()] = four.y;
}

void whole_vector_for_one_component() {
  const Memory memory;
  memory.launch(sum_one_component, 1, 32);
  require_traffic(memory.in.loads(), {512, 512, 512, 512}, "loads");
}

struct alignas(16) Pack {
  short values[8];
};

__global__ void copy_packs(const float* in, float* out) {
  Pack pack = reinterpret_cast<const Pack*>(in)[place()];
  for (short& value : pack.values) {
    value = static_cast<short>(value + 1);
  }
  reinterpret_cast<Pack*>(out)[place()] = pack;
}

void packs() {
  const Memory memory;
  memory.launch(copy_packs, 1, 64);
  require_traffic(memory.in.loads(), {1024, 1024, 1024, 1024}, "loads");
  require_traffic(memory.out.stores(), {1024, 1024, 1024, 1024}, "stores");
}

__global__ void copy_bytes(const float* in, float* out) {
  float own[4];
  std::memcpy(own, in + 4 * place(), sizeof(own));
  own[0] += 1;
  std::memcpy(out + 4 * place(), own, sizeof(own));
}

void bytes() {
  const Memory memory;
  memory.launch(copy_bytes, 1, 32);
  require_traffic(memory.in.loads(), {512, 512, 512, 512}, "loads");
  require_traffic(memory.out.stores(), {512, 512, 512, 512}, "stores");
}

__global__ void sum_rows(const float* in, float* out, int width) {
  float sum = 0;
  for (int i = 0; i < width; ++i) {
    sum += in[place() * width + i];
  }
  out[place()] = sum;
}

void rows_by_thread() {
  const Memory memory;
  memory.launch(sum_rows, 1, 32, 8);
  // In each of 8 rounds every lane is in another sector.
  require_traffic(memory.in.loads(), {1024, 8 * 1024, 1024, 1024}, "loads");
}

__global__ void sum_triangle(const float* in, float* out) {
  float sum = 0;
  for (unsigned i = 0; i <= threadIdx.x; ++i) {
    sum += in[32 * i];
  }
  out[place()] = sum;
}

void lanes_that_stop_early() {
  const Memory memory;
  memory.launch(sum_triangle, 1, 32);
  // Round i reads one address, by the 32 - i lanes that are still there.
  require_traffic(memory.in.loads(), {4 * 33 * 16, 32 * 32, 32 * 32, 32 * 32}, "loads");
}

__global__ void read_twice(const float* in, float* out) {
  const float first = in[place()];
  __syncwarp();
  out[place()] = first + in[31 - place()];
}

void again_after_a_barrier() {
  const Memory memory;
  memory.launch(read_twice, 1, 32);
  require_traffic(memory.in.loads(), {256, 256, 128, 128}, "loads");
}

__global__ void read_in_rounds(const float* in, float* out) {
  float sum = 0;
  for (unsigned round = 0; round < 2; ++round) {
    for (unsigned i = 0; i <= threadIdx.x % 2; ++i) {
      sum += in[32 * (2 * round + i)];
    }
    __syncwarp();
  }
  out[place()] = sum;
}

void lanes_that_meet_again() {
  const Memory memory;
  memory.launch(read_in_rounds, 1, 32);
  // Four addresses, each read by one instruction: after the barrier nobody is ahead.
  require_traffic(memory.in.loads(), {2 * 48 * 4, 4 * 32, 4 * 32, 4 * 32}, "loads");
}

__global__ void read_in_branches(const float* in, float* out) {
  out[place()] = place() % 2 == 0 ? in[place()] : -in[place()] * 2;
}

void branches() {
  const Memory memory;
  memory.launch(read_in_branches, 1, 32);
  require_traffic(memory.out.stores(), {128, 128, 128, 128}, "stores");
}

__global__ void read_table(const float* in, float* out, int rounds) {
  float sum = 0;
  for (int round = 0; round < rounds; ++round) {
    sum += in[threadIdx.x];
    __syncthreads();
  }
  out[place()] = sum;
}

void caches() {
  const Memory memory;
  memory.launch(read_table, 3, 64, 5);
  require_traffic(memory.in.loads(), {15 * 256, 15 * 256, 3 * 256, 256}, "loads");
  memory.launch(read_table, 3, 64, 5);
  require_traffic(memory.in.loads(), {30 * 256, 30 * 256, 6 * 256, 512}, "loads of two launches");
}

__global__ void add_up(const float* in, float* out) { atomicAdd(out, in[place()]); }

void atomics() {
  const Memory memory;
  const Buffer<float> sum("sum", std::vector<float>{0});
  simt::launch(add_up, 2, 64, 0, memory.in.data(), sum.data());
  require_traffic(sum.atomics(), {512, 4 * 32, 2 * 32, 32}, "atomics");
  require_traffic(sum.loads(), {}, "loads");
  require_traffic(sum.stores(), {}, "stores");
}

// ---------------------------------------------------------------- shared memory

void require_shared(uint64_t accesses, uint64_t wavefronts) {
  const simt::SharedTraffic found = simt::shared_traffic();
  require(!simt::watched || (found.accesses == accesses && found.wavefronts == wavefronts),
          std::to_string(found.accesses) + " accesses in " + std::to_string(found.wavefronts) + " wavefronts instead of " +
              std::to_string(accesses) + " in " + std::to_string(wavefronts));
}

template <typename T>
__global__ void write_shared(const float*, float*, int stride) {
  T* tile = simt::dynamic_shared<T>();
  const T zero{};
  tile[threadIdx.x * stride] = zero;
}

template <typename T>
void write_shared_with(int stride) {
  const Memory memory;
  simt::launch(write_shared<T>, 2, 64, 64 * sizeof(T) * stride, memory.in.data(), memory.out.data(), stride);
}

void banks() {
  write_shared_with<float>(1);
  require_shared(4, 4);
  write_shared_with<float>(2);
  require_shared(4, 8);
  write_shared_with<float>(33);
  require_shared(4, 4);
  write_shared_with<float>(32);
  require_shared(4, 4 * 32);
  write_shared_with<short>(1);
  require_shared(4, 4);
  write_shared_with<float4>(1);
  require_shared(4, 16);
}

__global__ void read_one_word(const float*, float* out) {
  __shared__ float word;
  if (threadIdx.x == 0) {
    word = 1;
  }
  __syncthreads();
  out[threadIdx.x] = word;
}

void one_word_for_all() {
  const Memory memory;
  memory.launch(read_one_word, 1, 64);
  require_shared(3, 3);
}

const std::vector<simt::Case> cases = {
    {"coalesced", coalesced},
    {"strided", strided},
    {"shifted", shifted},
    {"broadcast", broadcast},
    {"vectors", vectors},
    {"whole_vector_for_one_component", whole_vector_for_one_component},
    {"packs", packs},
    {"bytes", bytes},
    {"rows_by_thread", rows_by_thread},
    {"lanes_that_stop_early", lanes_that_stop_early},
    {"again_after_a_barrier", again_after_a_barrier},
    {"lanes_that_meet_again", lanes_that_meet_again},
    {"branches", branches},
    {"caches", caches},
    {"atomics", atomics},
    {"banks", banks},
    {"one_word_for_all", one_word_for_all},
};

}  // namespace

int main(int count, char** words) { return simt::run_cases(count, words, cases); }
