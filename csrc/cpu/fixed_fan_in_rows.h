// The rows of tiles, and what it takes to read many of them: where they lie, and how they are multiplied and added up.

#pragma once

#include "vector.h"

namespace torch_sparse_ops {
namespace {

// A row of a tile, [width], in registers.
template <typename T, int64_t width>
struct Row {
  static constexpr int64_t lanes = width < kLanes<T> ? width : kLanes<T>;
  static constexpr int64_t parts = width / lanes;
  using V = Vector<T, lanes>;
};

// `count` neighbouring locations, read eight bytes at a time.
template <typename Location, int64_t count>
struct Locations {
  static constexpr int64_t bits = 8 * sizeof(Location);
  static constexpr int64_t per_word = 64 / bits < count ? 64 / bits : count;
  uint64_t words[count / per_word];

  explicit ALWAYS_INLINE Locations(const Location* source) {
    UNROLL
    for (int64_t i = 0; i < count / per_word; ++i) {
      words[i] = 0;
      __builtin_memcpy(&words[i], source + i * per_word, per_word * sizeof(Location));
    }
  }

  template <int64_t j>
  ALWAYS_INLINE uint64_t location() const {
    return static_cast<Location>(words[j / per_word] >> j % per_word * bits);
  }
};

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the first location of a word lies in its lowest bits");

// Asks for what lies 8 KiB behind the connections of an output: the hardware follows a stream only to the end of its page.
template <typename T, typename Location>
ALWAYS_INLINE void prefetch_connections(const T* weights, const Location* locations, int64_t fan_in) {
  for (int64_t k = 2048; k < 2048 + fan_in; k += 16) {
    __builtin_prefetch(weights + k);
    __builtin_prefetch(locations + k);
  }
}

// How forward_loop reads the rows of a tile: as values of T. Row p of sums holds the sums of part p of a row.
template <typename T, int64_t width>
struct PlainRows : Row<T, width> {
  using R = Row<T, width>;
  using V = typename R::V;
  using Weight = T;

  template <int64_t sets>
  static ALWAYS_INLINE void add(const void* tile, uint64_t location, V weight, V (*sums)[sets], int64_t set) {
    const T* row = static_cast<const T*>(tile) + location * width;
    UNROLL
    for (int64_t p = 0; p < R::parts; ++p) {
      sums[p][set] += weight * load<R::lanes>(row + p * R::lanes);
    }
  }

  // kGroup connections, in turns to the sets of sums.
  template <int64_t sets, typename Locations>
  static ALWAYS_INLINE void add_group(const void* tile, const Locations& here, const T* weights, V (*sums)[sets]) {
    const V group = repeat_group<T, R::lanes>(load<kGroup<T>>(weights));
    call_with_each(LaneNumbers<kGroup<T>>{}, [&](auto j) __attribute__((always_inline)) {
      add(tile, here.template location<j>(), spread_member<T, j>(group), sums, j % sets);
    });
  }

  template <int64_t sets>
  static ALWAYS_INLINE void add_one(const void* tile, uint64_t location, T weight, V (*sums)[sets]) {
    add(tile, location, spread<R::lanes>(weight), sums, 0);
  }
};

// As bfloat16, which halves what has to come from the cache; weights are bfloat16, too.
template <int64_t width>
struct HalfRow : Row<float, width / 2> {
  static constexpr int64_t parts = width / Row<float, width / 2>::lanes;
  using V = typename Row<float, width / 2>::V;
  using Weight = uint16_t;
};

#if defined(__AVX512BF16__)

// By the instruction that adds the products of two pairs to each sum. A row holds, in turns, four values of its first part
// and four of its second, as the instructions that bring the values of two rows together in pairs take them.
template <int64_t width>
struct HalfRows : HalfRow<width> {
  using R = HalfRow<width>;
  using V = typename R::V;
  using Words = Vector<uint16_t, 2 * R::lanes>;
  static_assert(R::parts == 2);

  template <int64_t first, int... i>
  static ALWAYS_INLINE Words pair_up(Words a, Words b, std::integer_sequence<int, i...>) {
    constexpr int words = 2 * R::lanes;
    return __builtin_shufflevector(a, b, (i / 8 * 8 + int{first} + i % 8 / 2 + i % 2 * words)...);
  }

  static ALWAYS_INLINE V add_products(V sums, Words rows, Bits<R::lanes> weights) {
    if constexpr (sizeof(V) == 64) {
      return reinterpret_bits<V>(_mm512_dpbf16_ps(
          reinterpret_bits<__m512>(sums), reinterpret_bits<__m512bh>(rows), reinterpret_bits<__m512bh>(weights)));
    } else if constexpr (sizeof(V) == 32) {
      return reinterpret_bits<V>(_mm256_dpbf16_ps(
          reinterpret_bits<__m256>(sums), reinterpret_bits<__m256bh>(rows), reinterpret_bits<__m256bh>(weights)));
    } else {
      return reinterpret_bits<V>(_mm_dpbf16_ps(
          reinterpret_bits<__m128>(sums), reinterpret_bits<__m128bh>(rows), reinterpret_bits<__m128bh>(weights)));
    }
  }

  template <int64_t sets>
  static ALWAYS_INLINE void add_pair(Words a, Words b, uint32_t weights, V (*sums)[sets], int64_t set) {
    const auto spread_weights = spread<R::lanes>(weights);
    sums[0][set] = add_products(sums[0][set], pair_up<0>(a, b, LaneNumbers<2 * R::lanes>{}), spread_weights);
    sums[1][set] = add_products(sums[1][set], pair_up<4>(a, b, LaneNumbers<2 * R::lanes>{}), spread_weights);
  }

  static ALWAYS_INLINE Words load_row(const void* tile, uint64_t location) {
    return load<2 * R::lanes>(static_cast<const uint16_t*>(tile) + location * width);
  }

  template <int64_t sets, typename Locations>
  static ALWAYS_INLINE void add_group(const void* tile, const Locations& here, const uint16_t* weights, V (*sums)[sets]) {
    uint32_t pairs[2];
    __builtin_memcpy(pairs, weights, sizeof(pairs));
    add_pair(
        load_row(tile, here.template location<0>()), load_row(tile, here.template location<1>()), pairs[0], sums, 0);
    add_pair(
        load_row(tile, here.template location<2>()), load_row(tile, here.template location<3>()), pairs[1], sums, sets - 1);
  }

  template <int64_t sets>
  static ALWAYS_INLINE void add_one(const void* tile, uint64_t location, uint16_t weight, V (*sums)[sets]) {
    add_pair(load_row(tile, location), Words{}, weight, sums, 0);
  }

  template <int... i>
  static ALWAYS_INLINE Words order(Words words, std::integer_sequence<int, i...>) {
    return __builtin_shufflevector(words, words, (i / 8 * 8 + i % 4 * 2 + i % 8 / 4)...);
  }

  // rows[columns][width] from floats that are bfloat16 numbers.
  static void pack(const float* block, int64_t columns, void* rows) {
    constexpr int64_t lanes = R::lanes;
    for (int64_t i = 0; i < columns * width; i += width) {
      const auto low = reinterpret_bits<Bits<lanes>>(load<lanes>(block + i));
      const auto high = reinterpret_bits<Bits<lanes>>(load<lanes>(block + i + lanes));
      const auto words = reinterpret_bits<Words>(low >> 16 | (high & 0xFFFF0000));
      store<2 * lanes>(static_cast<uint16_t*>(rows) + i, order(words, LaneNumbers<2 * lanes>{}));
    }
  }
};

#else

// A 32-bit word holds two values that lie a vector apart, so that a shift and a mask turn a vector of words into two parts
// of floats in their natural order.
template <int64_t width>
struct HalfRows : HalfRow<width> {
  using R = HalfRow<width>;
  using V = typename R::V;

  template <int64_t sets>
  static ALWAYS_INLINE void add(const void* tile, uint64_t location, V weight, V (*sums)[sets], int64_t set) {
    const uint32_t* row = static_cast<const uint32_t*>(tile) + location * (width / 2);
    UNROLL
    for (int64_t p = 0; p < R::parts; p += 2) {
      const Bits<R::lanes> words = load<R::lanes>(row + p / 2 * R::lanes);
      sums[p][set] += weight * reinterpret_bits<V>(words << 16);
      sums[p + 1][set] += weight * reinterpret_bits<V>(words & 0xFFFF0000);
    }
  }

  template <int64_t sets, typename Locations>
  static ALWAYS_INLINE void add_group(const void* tile, const Locations& here, const uint16_t* weights, V (*sums)[sets]) {
    const V group = repeat_group<float, R::lanes>(Bfloat16::widen<4>(load<4>(weights)));
    call_with_each(LaneNumbers<4>{}, [&](auto j) __attribute__((always_inline)) {
      add(tile, here.template location<j>(), spread_member<float, j>(group), sums, j % sets);
    });
  }

  template <int64_t sets>
  static ALWAYS_INLINE void add_one(const void* tile, uint64_t location, uint16_t weight, V (*sums)[sets]) {
    add(tile, location, spread<R::lanes>(reinterpret_bits<float>(uint32_t{weight} << 16)), sums, 0);
  }

  // rows[columns][width] from floats that are bfloat16 numbers.
  static void pack(const float* block, int64_t columns, void* rows) {
    constexpr int64_t lanes = R::lanes;
    uint32_t* target = static_cast<uint32_t*>(rows);
    for (int64_t i = 0; i < columns * width; i += 2 * lanes) {
      const auto low = reinterpret_bits<Bits<lanes>>(load<lanes>(block + i));
      const auto high = reinterpret_bits<Bits<lanes>>(load<lanes>(block + i + lanes));
      store<lanes>(target + i / 2, low >> 16 | (high & 0xFFFF0000));
    }
  }
};

#endif

}  // namespace
}  // namespace torch_sparse_ops
