// Kernels that are right: their results, in every order of threads.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <numeric>

#include "simt/buffer.h"
#include "simt/cases.h"

namespace {

using simt::Buffer;
using simt::require;

constexpr unsigned full = 0xFFFFFFFF;

template <typename T>
std::vector<T> count_to(size_t size) {
  std::vector<T> values;
  for (size_t i = 0; i < size; ++i) {
    values.push_back(T(static_cast<int>(i)));
  }
  return values;
}

// ---------------------------------------------------------------- shared memory and barriers

template <typename T>
__global__ void sum_blocks(const T* values, int count, T* sums) {
  __shared__ T partial[8];
  T sum = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    sum += values[i];
  }
  for (int lanes = warpSize / 2; lanes > 0; lanes /= 2) {
    sum += __shfl_xor_sync(full, sum, lanes);
  }
  if (threadIdx.x % warpSize == 0) {
    partial[threadIdx.x / warpSize] = sum;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = std::accumulate(partial, partial + blockDim.x / warpSize, T(0));
  }
}

template <typename T>
void sums() {
  const Buffer<T> values("values", count_to<T>(5000)), sums("sums", 3);
  simt::launch(sum_blocks<T>, 3, 256, 0, values.data(), 5000, sums.data());
  const std::vector<T> found = sums.values();
  require(std::accumulate(found.begin(), found.end(), T(0)) == T(4999 * 2500), "0 + 1 + ... + 4999");
}

__global__ void transpose_tiles(const float* from, int rows, int columns, float* to) {
  auto tile = reinterpret_cast<float(*)[33]>(simt::dynamic_shared<float>());
  int row = blockIdx.y * 32 + threadIdx.y, column = blockIdx.x * 32 + threadIdx.x;
  for (int step = 0; step < 32; step += blockDim.y) {
    if (row + step < rows && column < columns) {
      tile[threadIdx.y + step][threadIdx.x] = from[(row + step) * columns + column];
    }
  }
  __syncthreads();
  row = blockIdx.x * 32 + threadIdx.y, column = blockIdx.y * 32 + threadIdx.x;
  for (int step = 0; step < 32; step += blockDim.y) {
    if (row + step < columns && column < rows) {
      to[(row + step) * rows + column] = tile[threadIdx.x][threadIdx.y + step];
    }
  }
}

void transposition() {
  constexpr int rows = 45, columns = 70;
  const Buffer<float> from("from", count_to<float>(rows * columns)), to("to", rows * columns);
  simt::launch(transpose_tiles, dim3(3, 2), dim3(32, 8), 33 * 32 * sizeof(float), from.data(), rows, columns, to.data());
  const std::vector<float> found = to.values();
  for (int i = 0; i < rows * columns; ++i) {
    require(found[i % columns * rows + i / columns] == static_cast<float>(i), "element " + std::to_string(i));
  }
}

__global__ void scan_block(const int* values, int* sums) {
  __shared__ int totals[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = values[threadIdx.x];
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(full, sum, step);
    sum += lane >= step ? below : 0;
  }
  if (lane == 31) {
    totals[warp] = sum;
  }
  __syncthreads();
  for (int before = 0; before < warp; ++before) {
    sum += totals[before];
  }
  sums[threadIdx.x] = sum;
}

void scan() {
  const Buffer<int> values("values", count_to<int>(1024)), sums("sums", 1024);
  simt::launch(scan_block, 1, 1024, 0, values.data(), sums.data());
  const std::vector<int> found = sums.values();
  for (int i = 0; i < 1024; ++i) {
    require(found[i] == i * (i + 1) / 2, "sum up to " + std::to_string(i));
  }
}

// Each round reads what the last one wrote, in shared memory and in the block's part of global memory.
__global__ void smooth_rounds(const int* from, int rounds, int* scratch, int* to) {
  __shared__ int tile[96];
  const unsigned i = threadIdx.x, next = (i + 1) % 96;
  int* own = scratch + blockIdx.x * 96;
  int value = from[i];
  for (int round = 0; round < rounds; ++round) {
    tile[i] = value;
    own[i] = value;
    __syncthreads();
    value += tile[next] - own[i] + own[(next + 1) % 96];
    __syncthreads();
  }
  to[blockIdx.x * 96 + i] = value;
}

void rounds() {
  const Buffer<int> from("from", count_to<int>(96)), scratch("scratch", 192), to("to", 192);
  simt::launch(smooth_rounds, 2, 96, 0, from.data(), 3, scratch.data(), to.data());
  std::vector<int> expected = count_to<int>(96);
  for (int round = 0; round < 3; ++round) {
    const std::vector<int> last = expected;
    for (int i = 0; i < 96; ++i) {
      expected[i] = last[(i + 1) % 96] + last[(i + 2) % 96];
    }
  }
  const std::vector<int> found = to.values();
  require(std::equal(expected.begin(), expected.end(), found.begin()), "block 0");
  require(std::equal(expected.begin(), expected.end(), found.begin() + 96), "block 1");
}

// Lanes pass values on through shared memory, with __syncwarp of parts of the warp between.
__global__ void rotate_in_parts(const int* from, int* to) {
  __shared__ int tile[32];
  const unsigned lane = threadIdx.x, first = lane / 8 * 8, mask = 0xFFu << first;
  int value = from[lane];
  for (int round = 0; round < 3; ++round) {
    tile[lane] = value;
    __syncwarp(mask);
    value = tile[first + (lane + 1) % 8];
    __syncwarp(mask);
  }
  to[lane] = value;
}

void rotation() {
  const Buffer<int> from("from", count_to<int>(32)), to("to", 32);
  simt::launch(rotate_in_parts, 1, 32, 0, from.data(), to.data());
  const std::vector<int> found = to.values();
  for (int i = 0; i < 32; ++i) {
    require(found[i] == i / 8 * 8 + (i + 3) % 8, "lane " + std::to_string(i));
  }
}

__global__ void fill_shared(int count, unsigned char* out) {
  unsigned char* bytes = simt::dynamic_shared<unsigned char>();
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    bytes[i] = static_cast<unsigned char>(i % 251);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    *out = bytes[count - 1];
  }
}

void much_shared_memory() {
  constexpr int bytes = 227 << 10;
  const Buffer<unsigned char> out("out", 1);
  require(cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess, "allowed");
  simt::launch(fill_shared, 1, 64, bytes, bytes, out.data());
  require(out.values()[0] == (bytes - 1) % 251, "the last byte");
}

// ---------------------------------------------------------------- shuffles and votes

template <typename T>
__global__ void shuffle_all(const T* values, T* results) {
  const T value = values[threadIdx.x];
  const unsigned lane = threadIdx.x;
  T* own = results + 8 * lane;
  own[0] = __shfl_sync(full, value, 5);
  own[1] = __shfl_sync(full, value, lane + 1);
  own[2] = __shfl_sync(full, value, 3, 8);
  own[3] = __shfl_up_sync(full, value, 3);
  own[4] = __shfl_down_sync(full, value, 3);
  own[5] = __shfl_down_sync(full, value, 3, 16);
  own[6] = __shfl_xor_sync(full, value, 9);
  own[7] = __shfl_xor_sync(full, value, 9, 8);
}

template <typename T>
void shuffles() {
  const Buffer<T> values("values", count_to<T>(32)), results("results", 256);
  simt::launch(shuffle_all<T>, 1, 32, 0, values.data(), results.data());
  const std::vector<T> found = results.values();
  for (int lane = 0; lane < 32; ++lane) {
    const int expected[] = {5, (lane + 1) % 32, lane / 8 * 8 + 3, lane < 3 ? lane : lane - 3, lane > 28 ? lane : lane + 3,
                            lane % 16 > 12 ? lane : lane + 3, lane ^ 9, lane % 16 < 8 ? lane : lane ^ 9};
    for (int i = 0; i < 8; ++i) {
      require(found[8 * lane + i] == T(expected[i]), "lane " + std::to_string(lane) + ", shuffle " + std::to_string(i));
    }
  }
}

__global__ void vote_all(unsigned* warp_votes, int* block_votes) {
  const bool odd = threadIdx.x % 2 == 1, first = threadIdx.x == 0;
  unsigned* own = warp_votes + 4 * threadIdx.x;
  own[0] = __ballot_sync(full, odd);
  own[1] = __any_sync(full, first);
  own[2] = __all_sync(full, !first);
  own[3] = __popc(__activemask());
  int* counts = block_votes + 3 * threadIdx.x;
  counts[0] = __syncthreads_count(odd);
  counts[1] = __syncthreads_or(first);
  counts[2] = __syncthreads_and(!first);
}

void votes() {
  const Buffer<unsigned> warp_votes("warp votes", 4 * 64);
  const Buffer<int> block_votes("block votes", 3 * 64);
  simt::launch(vote_all, 1, 64, 0, warp_votes.data(), block_votes.data());
  const auto in_warp = warp_votes.values();
  const auto in_block = block_votes.values();
  for (unsigned thread = 0; thread < 64; ++thread) {
    const bool first_warp = thread < 32;
    const std::vector<unsigned> own(&in_warp[4 * thread], &in_warp[4 * thread] + 4);
    require(own == std::vector<unsigned>{0xAAAAAAAA, first_warp, !first_warp, 1}, "warp votes");
    const std::vector<int> counts(&in_block[3 * thread], &in_block[3 * thread] + 3);
    require(counts == std::vector<int>{32, 1, 0}, "block votes");
  }
}

// ---------------------------------------------------------------- atomics and order

template <typename T>
__global__ void add_all(const T* values, T* sum, T* most) {
  __shared__ T partial;
  if (threadIdx.x == 0) {
    partial = 0;
  }
  __syncthreads();
  atomicAdd(&partial, values[blockIdx.x * blockDim.x + threadIdx.x]);
  __syncthreads();
  if (threadIdx.x == 0) {
    atomicAdd(sum, partial);
  }
  if constexpr (std::is_integral_v<T>) {
    atomicMax(most, values[blockIdx.x * blockDim.x + threadIdx.x]);
  }
}

template <typename T>
void atomic_sums() {
  const Buffer<T> values("values", count_to<T>(300)), sum("sum", std::vector<T>{0}), most("most", std::vector<T>{0});
  simt::launch(add_all<T>, 3, 100, 0, values.data(), sum.data(), most.data());
  require(sum.values()[0] == T(299 * 150), "sum");
  require(most.values()[0] == T(std::is_integral_v<T> ? 299 : 0), "most");
}

__global__ void multiply_all(const float* values, unsigned* product) {
  unsigned seen = atomicCAS(product, 0u, 0u), expected;
  do {
    expected = seen;
    seen = atomicCAS(product, expected, __float_as_uint(__uint_as_float(expected) * values[threadIdx.x]));
  } while (seen != expected);
}

void atomic_product() {
  const Buffer<float> values("values", std::vector<float>{1, 2, 3, 4, 5, 6});
  const Buffer<unsigned> product("product", std::vector<unsigned>{__float_as_uint(1)});
  simt::launch(multiply_all, 1, 6, 0, values.data(), product.data());
  require(product.values()[0] == __float_as_uint(720), "6!");
}

__global__ void line_up(unsigned* next, unsigned* place) { place[threadIdx.x] = atomicAdd(next, 1u); }

std::vector<unsigned> places(simt::Order order, unsigned seed = 0) {
  simt::set_order(order, seed);
  const Buffer<unsigned> next("next", std::vector<unsigned>{0}), place("place", 64);
  simt::launch(line_up, 1, 64, 0, next.data(), place.data());
  simt::set_order(simt::Order::forward);
  return place.values();
}

void orders() {
  const std::vector<unsigned> forward = places(simt::Order::forward);
  require(forward == count_to<unsigned>(64), "forward");
  require(places(simt::Order::reverse) == std::vector<unsigned>(forward.rbegin(), forward.rend()), "reverse");
  const std::vector<unsigned> shuffled = places(simt::Order::shuffled, 1);
  require(shuffled != forward && shuffled == places(simt::Order::shuffled, 1), "the same seed, the same order");
  require(shuffled != places(simt::Order::shuffled, 2), "another seed");
}

__global__ void wait_alone() {
  if (threadIdx.x == 77) {
    __syncthreads();
  }
}

void again_after_a_failure() {
  for (int round = 0; round < 2; ++round) {
    bool failed = false;
    try {
      simt::launch(wait_alone, 1, 128, 0);
    } catch (const simt::Failure&) {
      failed = true;
    }
    require(failed, "the barrier is not reached by all");
    scan();
  }
}

const std::vector<simt::Case> cases = {
    {"sums_float", sums<float>},
    {"sums_double", sums<double>},
    {"sums_int64", sums<long long>},
    {"transposition", transposition},
    {"scan", scan},
    {"rounds", rounds},
    {"rotation", rotation},
    {"much_shared_memory", much_shared_memory},
    {"shuffles_char", shuffles<char>},
    {"shuffles_int", shuffles<int>},
    {"shuffles_half", shuffles<__half>},
    {"shuffles_double", shuffles<double>},
    {"votes", votes},
    {"atomic_sums_int", atomic_sums<int>},
    {"atomic_sums_unsigned", atomic_sums<unsigned>},
    {"atomic_sums_unsigned64", atomic_sums<unsigned long long>},
    {"atomic_sums_float", atomic_sums<float>},
    {"atomic_sums_double", atomic_sums<double>},
    {"atomic_product", atomic_product},
    {"orders", orders},
    {"again_after_a_failure", again_after_a_failure},
};

}  // namespace

int main(int count, char** words) { return simt::run_cases(count, words, cases); }
