// Barriers, shuffles and votes under CUDA's names.
#pragma once

#include <cstring>

#include "execution.h"

namespace simt {

enum class Shuffle { index, up, down, exclusive_or };

// Which lane's value `lane` gets in its segment of `width` lanes; its own where there is no such lane.
constexpr unsigned source_lane(Shuffle kind, unsigned lane, unsigned operand, unsigned width) {
  const unsigned first = lane & ~(width - 1), last = first + width - 1;
  switch (kind) {
    case Shuffle::index:
      return first | (operand & (width - 1));
    case Shuffle::up:
      return lane < first + operand ? lane : lane - operand;
    case Shuffle::down:
      return lane + operand > last ? lane : lane + operand;
    default:
      return (lane ^ operand) > last ? lane : lane ^ operand;
  }
}

// Values travel as bits: a call that is not inlined must not take or return classes (runtime/hooks.cpp says why).
SIMT_UNWATCHED inline uint64_t shuffle(const char* name, Shuffle kind, unsigned mask, uint64_t bits, unsigned operand,
                                       int width, Place place) {
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    refuse(name, "the width must be a power of two, at most 32", place);
  }
  return warp_exchange(name, mask, bits, source_lane(kind, lane_index(), operand, width), place).value;
}

template <typename T>
T shuffle_value(const char* name, Shuffle kind, unsigned mask, T value, unsigned operand, int width, Place place) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle(name, kind, mask, bits, operand, width, place);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace simt

#define SIMT_HERE ::simt::Place place = ::simt::Place::here()

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, SIMT_HERE) {
  return simt::shuffle_value("__shfl_sync", simt::Shuffle::index, mask, value, lane, width, place);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_HERE) {
  return simt::shuffle_value("__shfl_up_sync", simt::Shuffle::up, mask, value, delta, width, place);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SIMT_HERE) {
  return simt::shuffle_value("__shfl_down_sync", simt::Shuffle::down, mask, value, delta, width, place);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SIMT_HERE) {
  return simt::shuffle_value("__shfl_xor_sync", simt::Shuffle::exclusive_or, mask, value, lanes, width, place);
}

inline unsigned __ballot_sync(unsigned mask, int vote, SIMT_HERE) {
  return simt::warp_exchange("__ballot_sync", mask, vote != 0, simt::lane_index(), place).ballot;
}
inline int __any_sync(unsigned mask, int vote, SIMT_HERE) {
  return simt::warp_exchange("__any_sync", mask, vote != 0, simt::lane_index(), place).ballot != 0;
}
inline int __all_sync(unsigned mask, int vote, SIMT_HERE) {
  return simt::warp_exchange("__all_sync", mask, vote != 0, simt::lane_index(), place).ballot == mask;
}
// CUDA promises no more than that the caller is among them.
inline unsigned __activemask() { return 1u << simt::lane_index(); }

// Shuffles and votes order no memory; this does.
inline void __syncwarp(unsigned mask = 0xFFFFFFFF, SIMT_HERE) { simt::warp_barrier(mask, place); }

inline void __syncthreads(SIMT_HERE) { simt::block_barrier("__syncthreads", false, place); }
inline int __syncthreads_or(int vote, SIMT_HERE) {
  return simt::block_barrier("__syncthreads_or", vote != 0, place).ones != 0;
}
inline int __syncthreads_and(int vote, SIMT_HERE) {
  const simt::Votes votes = simt::block_barrier("__syncthreads_and", vote != 0, place);
  return votes.ones == votes.threads;
}
inline int __syncthreads_count(int vote, SIMT_HERE) {
  return simt::block_barrier("__syncthreads_count", vote != 0, place).ones;
}

inline void __trap(SIMT_HERE) { simt::refuse("__trap", "called", place); }
#undef SIMT_HERE
