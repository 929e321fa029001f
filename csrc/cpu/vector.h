// Vectors of the compiler (GCC and Clang), wide as the registers of the instruction set that the file is compiled for.
//
// One source serves every instruction set: what a Vector<T, lanes> costs is decided by the flags of the file. Everything
// here lives in an anonymous namespace, so that code of a wide instruction set cannot be linked in place of plain code.

#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define ALWAYS_INLINE inline __attribute__((always_inline))

// Before a loop whose number of rounds is known to the compiler: arrays of vectors that it indexes then stay in registers.
#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

namespace torch_sparse_ops {
namespace {

#if defined(__AVX512F__)
constexpr int64_t kRegisterBytes = 64;
#elif defined(__AVX__)
constexpr int64_t kRegisterBytes = 32;
#else
constexpr int64_t kRegisterBytes = 16;
#endif

template <typename T>
constexpr int64_t kLanes = kRegisterBytes / sizeof(T);

// `memory` may lie at any multiple of an element and alias the elements.
template <typename T, int64_t lanes>
struct VectorTypes {
  typedef T value __attribute__((vector_size(lanes * sizeof(T))));
  typedef T memory __attribute__((vector_size(lanes * sizeof(T)), aligned(sizeof(T)), may_alias));
};

template <typename T>
struct VectorTypes<T, 1> {
  using value = T;
  using memory = T;
};

template <typename T, int64_t lanes>
using Vector = typename VectorTypes<T, lanes>::value;

template <typename To, typename From>
ALWAYS_INLINE To reinterpret_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof(To));
  return to;
}

template <int64_t lanes, typename T>
ALWAYS_INLINE Vector<T, lanes> load(const T* source) {
  return *reinterpret_cast<const typename VectorTypes<T, lanes>::memory*>(source);
}

template <int64_t lanes, typename T>
ALWAYS_INLINE void store(T* target, Vector<T, lanes> vector) {
  *reinterpret_cast<typename VectorTypes<T, lanes>::memory*>(target) = vector;
}

// A store past the caches, of a whole register, for results that are not read soon: the line need not be fetched first.
// Without such an instruction it is a plain store. finish_streaming comes before another thread is told of the result.
template <int64_t lanes, typename T>
ALWAYS_INLINE void stream(T* target, Vector<T, lanes> vector) {
#if defined(__x86_64__)
  if constexpr (sizeof(vector) == 16) {
    _mm_stream_ps(reinterpret_cast<float*>(target), reinterpret_bits<__m128>(vector));
    return;
  }
#endif
#if defined(__AVX__)
  if constexpr (sizeof(vector) == 32) {
    _mm256_stream_ps(reinterpret_cast<float*>(target), reinterpret_bits<__m256>(vector));
    return;
  }
#endif
#if defined(__AVX512F__)
  if constexpr (sizeof(vector) == 64) {
    _mm512_stream_ps(reinterpret_cast<float*>(target), reinterpret_bits<__m512>(vector));
    return;
  }
#endif
  store<lanes>(target, vector);
}

ALWAYS_INLINE void finish_streaming() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// Whether any lane of a comparison's result is true.
template <typename V>
ALWAYS_INLINE bool any_lane(V truth) {
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    const auto bits = reinterpret_bits<__m512i>(truth);
    return _mm512_test_epi32_mask(bits, bits) != 0;
  }
#endif
#if defined(__AVX__)
  if constexpr (sizeof(V) == 32) {
    const auto bits = reinterpret_bits<__m256i>(truth);
    return _mm256_testz_si256(bits, bits) == 0;
  }
#endif
#if defined(__x86_64__)
  if constexpr (sizeof(V) == 16) {
    return _mm_movemask_epi8(reinterpret_bits<__m128i>(truth)) != 0;
  }
#endif
  constexpr int64_t words = sizeof(V) / sizeof(int64_t);
  const auto bits = reinterpret_bits<Vector<int64_t, words>>(truth);
  int64_t any = 0;
  UNROLL
  for (int64_t i = 0; i < words; ++i) {
    any |= bits[i];
  }
  return any != 0;
}

// ---------------------------------------------------------------- loops over numbers that the compiler has to know

template <int64_t lanes>
using LaneNumbers = std::make_integer_sequence<int, static_cast<int>(lanes)>;

template <int64_t number>
using Number = std::integral_constant<int64_t, number>;

template <typename Function, int... i>
ALWAYS_INLINE void call_with_each(std::integer_sequence<int, i...>, const Function& function) {
  (function(Number<i>{}), ...);
}

// ---------------------------------------------------------------- scalars spread over a vector

// How many neighbouring scalars share a load: those of 16 bytes. Within so many, spreading one over its group is a cheap
// instruction everywhere, where a load for each scalar would compete with the loads of rows.
template <typename T>
constexpr int64_t kGroup = 16 / sizeof(T);

// A group over and over. The compiler's own shuffles go through the stack where they widen.
template <typename T, int64_t lanes>
ALWAYS_INLINE Vector<T, lanes> repeat_group(Vector<T, kGroup<T>> group) {
  using V = Vector<T, lanes>;
#if defined(__AVX512F__)
  if constexpr (sizeof(V) == 64) {
    return reinterpret_bits<V>(_mm512_broadcast_f32x4(reinterpret_bits<__m128>(group)));
  } else
#endif
#if defined(__AVX__)
  if constexpr (sizeof(V) == 32) {
    return reinterpret_bits<V>(_mm256_broadcast_ps(reinterpret_cast<const __m128*>(&group)));
  } else
#endif
  {
    static_assert(sizeof(V) == sizeof(group), "a vector of this instruction set");
    return group;
  }
}

template <typename T, int64_t member, typename V, int... lane>
ALWAYS_INLINE V spread_lane(V groups, std::integer_sequence<int, lane...>) {
  constexpr int size = kGroup<T>;
  return __builtin_shufflevector(groups, groups, (lane / size * size + int{member})...);
}

// One member of every group, all over its group.
template <typename T, int64_t member, typename V>
ALWAYS_INLINE V spread_member(V groups) {
  return spread_lane<T, member>(groups, LaneNumbers<sizeof(V) / sizeof(T)>{});
}

template <int64_t lanes, typename T>
ALWAYS_INLINE Vector<T, lanes> spread(T scalar) {
  return Vector<T, lanes>{} + scalar;
}

// ---------------------------------------------------------------- exchange of lanes between two vectors

// Of two vectors, one behind the other: every second value, of each group by itself, if `within` groups; or every second
// group. These are the cheapest of all exchanges between vectors.
template <typename T, bool within, int odd, typename V, int... lane>
ALWAYS_INLINE V every_second(V first, V second, std::integer_sequence<int, lane...>) {
  constexpr int lanes = sizeof...(lane);
  constexpr int size = kGroup<T>;
  constexpr auto place = [](int i) {
    const int taken = i % size * 2 + odd;
    return within ? i / size * size + taken % size + taken / size * lanes : (i / size * 2 + odd) * size + i % size;
  };
  return __builtin_shufflevector(first, second, place(lane)...);
}

// Transposes rows[lanes][lanes]: groups in squares by themselves, then the square of groups.
template <typename T, int64_t lanes, int64_t done = 1>
ALWAYS_INLINE void transpose(Vector<T, lanes>* rows) {
  if constexpr (done < lanes) {
    constexpr bool within = done < kGroup<T>;
    Vector<T, lanes> moved[lanes];
    UNROLL
    for (int64_t r = 0; r < lanes / 2; ++r) {
      moved[r] = every_second<T, within, 0>(rows[2 * r], rows[2 * r + 1], LaneNumbers<lanes>{});
      moved[r + lanes / 2] = every_second<T, within, 1>(rows[2 * r], rows[2 * r + 1], LaneNumbers<lanes>{});
    }
    transpose<T, lanes, 2 * done>(moved);
    UNROLL
    for (int64_t r = 0; r < lanes; ++r) {
      rows[r] = moved[r];
    }
  }
}

// The vector whose lane j is the sum over the lanes of vector(j), for j < lanes. Vectors are asked for in the order in
// which they are added, so that only log2(lanes) of them are alive at once. In between, a vector holds several sums of each
// of `count` vectors.
template <typename T, int64_t lanes, int64_t count = lanes, int64_t first = 0, typename Function>
ALWAYS_INLINE Vector<T, lanes> sum_lanes(const Function& vector) {
  if constexpr (count == 1) {
    return vector(Number<first>{});
  } else {
    constexpr bool within = count <= kGroup<T>;
    const auto low = sum_lanes<T, lanes, count / 2, first>(vector);
    const auto high = sum_lanes<T, lanes, count / 2, first + count / 2>(vector);
    return every_second<T, within, 0>(low, high, LaneNumbers<lanes>{}) +
        every_second<T, within, 1>(low, high, LaneNumbers<lanes>{});
  }
}

// ---------------------------------------------------------------- 16-bit floating point, as its bits

template <int64_t lanes>
using Bits = Vector<uint32_t, lanes>;

struct Bfloat16 {
  template <int64_t lanes>
  static ALWAYS_INLINE Vector<float, lanes> widen(Vector<uint16_t, lanes> value) {
    return reinterpret_bits<Vector<float, lanes>>(__builtin_convertvector(value, Bits<lanes>) << 16);
  }

  // To nearest, ties to even. A NaN stays one: its payload may not be rounded up to infinity.
  template <int64_t lanes>
  static ALWAYS_INLINE Vector<uint16_t, lanes> narrow(Vector<float, lanes> value) {
    const auto bits = reinterpret_bits<Bits<lanes>>(value);
    const Bits<lanes> rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    const Bits<lanes> result = (bits & 0x7FFFFFFF) > 0x7F800000 ? (bits >> 16) | 0x40 : rounded;
    return __builtin_convertvector(result, Vector<uint16_t, lanes>);
  }
};

struct Float16 {
#if defined(__AVX512F__)
  template <int64_t lanes>
  static ALWAYS_INLINE Vector<float, lanes> widen(Vector<uint16_t, lanes> value) {
    return reinterpret_bits<Vector<float, lanes>>(_mm512_cvtph_ps(reinterpret_bits<__m256i>(value)));
  }

  template <int64_t lanes>
  static ALWAYS_INLINE Vector<uint16_t, lanes> narrow(Vector<float, lanes> value) {
    const auto result = _mm512_cvtps_ph(reinterpret_bits<__m512>(value), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return reinterpret_bits<Vector<uint16_t, lanes>>(result);
  }
#elif defined(__F16C__)
  template <int64_t lanes>
  static ALWAYS_INLINE Vector<float, lanes> widen(Vector<uint16_t, lanes> value) {
    return reinterpret_bits<Vector<float, lanes>>(_mm256_cvtph_ps(reinterpret_bits<__m128i>(value)));
  }

  template <int64_t lanes>
  static ALWAYS_INLINE Vector<uint16_t, lanes> narrow(Vector<float, lanes> value) {
    const auto result = _mm256_cvtps_ph(reinterpret_bits<__m256>(value), _MM_FROUND_TO_NEAREST_INT);
    return reinterpret_bits<Vector<uint16_t, lanes>>(result);
  }
#else
  // Exponent and mantissa are moved into place and the exponent's offset is corrected by a multiplication, which is exact
  // and covers subnormal values too. Infinities and NaN take the largest exponent.
  template <int64_t lanes>
  static ALWAYS_INLINE Vector<float, lanes> widen(Vector<uint16_t, lanes> value) {
    using Floats = Vector<float, lanes>;
    const Bits<lanes> bits = __builtin_convertvector(value, Bits<lanes>);
    const Bits<lanes> moved = (bits & 0x7FFF) << 13;
    const auto scaled = reinterpret_bits<Bits<lanes>>(reinterpret_bits<Floats>(moved) * 0x1p112f);
    const Bits<lanes> magnitude = moved >= 0x0F800000 ? moved | 0x7F800000 : scaled;
    return reinterpret_bits<Floats>(magnitude | ((bits & 0x8000) << 16));
  }

  // To nearest, ties to even. Below 2^-14 the addition of 0.5 leaves the subnormal result, rounded, in the lowest bits.
  template <int64_t lanes>
  static ALWAYS_INLINE Vector<uint16_t, lanes> narrow(Vector<float, lanes> value) {
    using Floats = Vector<float, lanes>;
    const auto bits = reinterpret_bits<Bits<lanes>>(value);
    const Bits<lanes> magnitude = bits & 0x7FFFFFFF;
    const Bits<lanes> normal = (magnitude + 0xC8000FFF + ((magnitude >> 13) & 1)) >> 13;
    const Bits<lanes> subnormal = reinterpret_bits<Bits<lanes>>(reinterpret_bits<Floats>(magnitude) + 0.5f) - 0x3F000000;
    const Bits<lanes> finite = magnitude < 0x38800000 ? subnormal : normal;
    const Bits<lanes> special = magnitude > 0x7F800000 ? Bits<lanes>{} + 0x7E00 : Bits<lanes>{} + 0x7C00;
    const Bits<lanes> result = (magnitude >= 0x47800000 ? special : finite) | ((bits >> 16) & 0x8000);
    return __builtin_convertvector(result, Vector<uint16_t, lanes>);
  }
#endif
};

}  // namespace
}  // namespace torch_sparse_ops
