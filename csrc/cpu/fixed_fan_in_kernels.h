// What the kernels of the fixed fan-in operators offer to fixed_fan_in.cpp: one table of functions per instruction set.
//
// The kernels stand in fixed_fan_in_kernels.cpp, which is compiled once per instruction set. They take raw pointers and
// sizes, run on one thread and include no torch header. Every function is given a share of the work that depends on the
// shape alone.

#pragma once

#include <cstdint>

namespace torch_sparse_ops {

enum class Value : uint8_t { float32, float64, float16, bfloat16 };
enum class Index : uint8_t { int16, uint16, int32, int64 };

// The batch is cut into tiles. A tile holds `rows` entries, from `first` on, as [in_features][width] floats (doubles for
// float64), where entries from `rows` to `width` are zero. Tiles lie one behind the other: `place` is the sum of the widths
// of those before it.
struct Tile {
  int64_t first;
  int64_t rows;
  int64_t width;  // 1, 4, 8, 16 or 32
  int64_t place;
};

constexpr int64_t kBlock = 64;  // outputs that are computed before they are written
constexpr int64_t kGradBlock = 128;  // outputs whose gradient is read before it is used
constexpr int64_t kStreamedBytes = 4 << 20;  // matrices of this size are read from memory, and written past the caches
constexpr int64_t kMaxWidth = 32;  // of a tile of floats
constexpr int64_t kMaxDoubleWidth = 16;

struct Layer {
  const void* weights;    // [out_features][fan_in]
  const void* locations;  // [out_features][fan_in]
  int64_t in_features;
  int64_t out_features;
  int64_t fan_in;
  Value value;
  Index index;
  bool checked;    // whether locations are known to lie in range
  bool half_rows;  // whether tiles of bfloat16 are packed as such, in the first half of their place; for forward only
};

// A range of outputs for a range of tiles.
struct ForwardTask {
  const void* packed;
  const void* bias;  // [out_features] or null
  void* result;      // [batch][out_features]
  const Tile* first_tile;
  const Tile* last_tile;
  int64_t first;
  int64_t last;
  bool streaming;  // whether the result is written past the caches
};

// A range of outputs for a range of tiles, which may be only some of all tiles: sums over the batch start at zero in the
// task with the first ones, and become gradients in the task with the last ones.
struct BackwardTask {
  const void* grad_output;  // [batch][out_features]
  const void* packed;       // may be null if grad_weights is
  void* partial;            // packed tiles of this task's own gradient of features, or null
  void* grad_weights;       // [out_features][fan_in], or null
  void* grad_bias;          // [out_features], or null
  void* weights_sums;       // float or double; grad_weights itself where it is of that type; null: kept in scratch
  void* bias_sums;          // the same for grad_bias
  const Tile* first_tile;
  const Tile* last_tile;
  int64_t first;
  int64_t last;
  bool starts;
  bool ends;
  bool prefetches;  // grad_output, which then comes from memory
};

struct FixedFanInKernels {
  // Bytes that forward and backward need as scratch; nothing where values and locations are used as they are.
  int64_t (*count_scratch)(const Layer& layer);
  // Columns [first, last) of a tile from features[batch][in_features].
  void (*pack)(const Layer& layer, const Tile& tile, const void* features, int64_t first, int64_t last, void* packed);
  // Both return false if a location is out of range, and then leave the results undefined.
  bool (*forward)(const Layer& layer, const ForwardTask& task, void* scratch);
  bool (*backward)(const Layer& layer, const BackwardTask& task, void* scratch);
  // Rows of a tile of grad_features[batch][in_features] from `parts` copies, `copy` elements apart and added in order, for
  // columns [first, last).
  void (*sum_partials)(
      const Layer& layer, const Tile& tile, int64_t first, int64_t last, const void* partials, int64_t parts, int64_t copy,
      void* grad_features);
  // Whether locations[first, last) lie in [0, in_features).
  bool (*locations_valid)(const Layer& layer, int64_t first, int64_t last);
};

// For each instruction set that the library was built for: sums in float, sums in double.
extern const FixedFanInKernels fixed_fan_in_baseline[2];
#if defined(__x86_64__)
extern const FixedFanInKernels fixed_fan_in_avx2[2];
extern const FixedFanInKernels fixed_fan_in_avx512[2];
extern const FixedFanInKernels fixed_fan_in_avx512_bf16[2];
#endif

}  // namespace torch_sparse_ops
