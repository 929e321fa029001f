// The kernels of the fixed fan-in operators, compiled once per instruction set: CMakeLists.txt gives the flags and, as
// CAPABILITY, the name. Formulas stand in ../fixed_fan_in.h, inner loops in fixed_fan_in_loops.h.
//
// Only values of type float and double reach the inner loops. 16-bit values are widened while features are packed, and
// weights block by block on the way; results are rounded once, when they are written. So the number of loops is that of
// the widths, not widths times types.
//
// Results of a block of outputs are collected as [outputs][width] in the first-level cache and leave it transposed, so
// that whole cache lines of the batch-major result are written.

#include "fixed_fan_in_kernels.h"

#include "fixed_fan_in_loops.h"

namespace torch_sparse_ops {
namespace {

constexpr int64_t kStepConnections = 4096;   // connections that are widened at once: scratch stays in the L1 cache
constexpr int64_t kChunkConnections = 24576;  // connections that meet all tiles in turn: they stay in the L2 cache

template <typename Number>
ALWAYS_INLINE Number smaller(Number a, Number b) {
  return a < b ? a : b;
}

// ---------------------------------------------------------------- widening and narrowing

template <typename Format>
void widen_loop(const uint16_t* source, int64_t count, float* target) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store<lanes>(target + i, Format::template widen<lanes>(load<lanes>(source + i)));
  }
  if (i < count) {
    uint16_t last[lanes] = {};
    float wide[lanes];
    __builtin_memcpy(last, source + i, (count - i) * sizeof(uint16_t));
    store<lanes>(wide, Format::template widen<lanes>(load<lanes>(last)));
    __builtin_memcpy(target + i, wide, (count - i) * sizeof(float));
  }
}

template <typename Format, bool streaming>
void narrow_loop(const float* source, int64_t count, uint16_t* target) {
  constexpr int64_t lanes = kLanes<float>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const auto values = Format::template narrow<lanes>(load<lanes>(source + i));
    if constexpr (streaming) {
      stream<lanes>(target + i, values);
    } else {
      store<lanes>(target + i, values);
    }
  }
  if (i < count) {
    float last[lanes] = {};
    uint16_t narrow[lanes];
    __builtin_memcpy(last, source + i, (count - i) * sizeof(float));
    store<lanes>(narrow, Format::template narrow<lanes>(load<lanes>(last)));
    __builtin_memcpy(target + i, narrow, (count - i) * sizeof(uint16_t));
  }
}

constexpr int64_t size_of(Value value) { return value == Value::float64 ? 8 : value == Value::float32 ? 4 : 2; }
constexpr int64_t size_of(Index index) { return index == Index::int64 ? 8 : index == Index::int32 ? 4 : 2; }
constexpr bool is_narrow(Value value) { return size_of(value) == 2; }

ALWAYS_INLINE const void* advance(const void* pointer, int64_t bytes) { return static_cast<const char*>(pointer) + bytes; }
ALWAYS_INLINE void* advance(void* pointer, int64_t bytes) { return static_cast<char*>(pointer) + bytes; }

void widen(Value value, const void* source, int64_t count, float* target) {
  const auto loop = value == Value::bfloat16 ? widen_loop<Bfloat16> : widen_loop<Float16>;
  loop(static_cast<const uint16_t*>(source), count, target);
}

// `streaming` asks for stores past the caches; the target must then be aligned to a register.
void narrow(Value value, const float* source, int64_t count, void* target, bool streaming) {
  const auto loop = value == Value::bfloat16 ? (streaming ? narrow_loop<Bfloat16, true> : narrow_loop<Bfloat16, false>)
                                             : (streaming ? narrow_loop<Float16, true> : narrow_loop<Float16, false>);
  loop(source, count, static_cast<uint16_t*>(target));
}

void widen(Value, const void*, int64_t, double*) {}
void narrow(Value, const double*, int64_t, void*, bool) {}

// The values from `first` on of an array, as they lie there or widened into `scratch`.
template <typename T>
const T* read_values(Value value, const void* values, int64_t first, int64_t count, T* scratch) {
  const void* source = advance(values, first * size_of(value));
  if (!is_narrow(value)) {
    return static_cast<const T*>(source);
  }
  widen(value, source, count, scratch);
  return scratch;
}

// ---------------------------------------------------------------- locations

template <typename Location>
bool is_below(const void* locations, int64_t first, int64_t last, uint64_t limit) {
  const Location* from = static_cast<const Location*>(locations);
  constexpr int64_t lanes = kLanes<Location>;
  const auto bound = static_cast<Location>(limit - 1);
  auto bad = Vector<Location, lanes>{} > bound;
  int64_t i = first;
  for (; i + lanes <= last; i += lanes) {
    bad |= load<lanes>(from + i) > bound;
  }
  int64_t any = 0;
  const auto words = reinterpret_bits<Vector<int64_t, kLanes<int64_t>>>(bad);
  for (int64_t w = 0; w < kLanes<int64_t>; ++w) {
    any |= words[w];
  }
  for (; i < last; ++i) {
    any |= from[i] > bound;
  }
  return any == 0;
}

// As unsigned numbers negative ones are large. What the type cannot hold as a positive number is out of range, too.
bool locations_valid(const Layer& layer, int64_t first, int64_t last) {
  const auto size = static_cast<uint64_t>(layer.in_features);
  if (size == 0) {
    return first == last;
  }
  switch (layer.index) {
    case Index::int16:
      return is_below<uint16_t>(layer.locations, first, last, smaller(size, uint64_t{1} << 15));
    case Index::uint16:
      return is_below<uint16_t>(layer.locations, first, last, smaller(size, uint64_t{1} << 16));
    case Index::int32:
      return is_below<uint32_t>(layer.locations, first, last, smaller(size, uint64_t{1} << 31));
    default:
      return is_below<uint64_t>(layer.locations, first, last, size);
  }
}

template <typename Location>
void convert_locations(const void* source, int64_t count, uint32_t* target) {
  const Location* from = static_cast<const Location*>(source);
  for (int64_t i = 0; i < count; ++i) {
    target[i] = static_cast<uint32_t>(from[i]);
  }
}

// Locations from `first` on, as 32-bit numbers.
const uint32_t* read_locations(const Layer& layer, int64_t first, int64_t count, uint32_t* scratch) {
  const void* source = advance(layer.locations, first * size_of(layer.index));
  if (layer.index == Index::int32) {
    return static_cast<const uint32_t*>(source);
  }
  const auto convert = layer.index == Index::int64 ? convert_locations<uint64_t> : convert_locations<uint16_t>;
  convert(source, count, scratch);
  return scratch;
}

// ---------------------------------------------------------------- tables of loops

template <typename T>
struct Loops {
  void (*transpose)(
      const T* source, int64_t source_stride, int64_t rows, int64_t present, int64_t columns, T* target,
      int64_t target_stride, bool streaming);
  void (*forward[4])(  // 32-bit locations, 16-bit locations; the same for half rows, where they exist
      const void* tile, const T* weights, const void* locations, const T* bias, int64_t fan_in, int64_t outputs, T* block);
  void (*pack_halves)(const T* block, int64_t columns, void* rows);
  void (*backward[3])(  // by Gradients
      const T* tile, const T* grads, const T* weights, const uint32_t* locations, int64_t fan_in, int64_t outputs,
      T* partial, T* grad_weights);
};

constexpr int64_t kHalfRowWidth = 8;  // of the narrowest tiles that have half rows

template <typename T, int64_t width>
constexpr Loops<T> make_loops() {
  Loops<T> loops = {
      transpose_loop<T, Row<T, width>::lanes>,
      {forward_loop<T, PlainRows<T, width>, uint32_t>, forward_loop<T, PlainRows<T, width>, uint16_t>},
      nullptr,
      {backward_loop<T, width, Gradients::features>, backward_loop<T, width, Gradients::weights>,
       backward_loop<T, width, Gradients::both>}};
  if constexpr (width >= kHalfRowWidth && std::is_same_v<T, float>) {
    loops.forward[2] = forward_loop<T, HalfRows<width>, uint32_t>;
    loops.forward[3] = forward_loop<T, HalfRows<width>, uint16_t>;
    loops.pack_halves = HalfRows<width>::pack;
  }
  return loops;
}

// For a batch of one.
template <typename T>
constexpr Loops<T> make_row_loops() {
  return {
      transpose_loop<T, 1>,
      {dot_loop<T, uint32_t>, dot_loop<T, uint16_t>},
      nullptr,
      {scatter_loop<T, Gradients::features>, scatter_loop<T, Gradients::weights>, scatter_loop<T, Gradients::both>}};
}

constexpr Loops<float> kFloatLoops[] = {make_row_loops<float>(), make_loops<float, 4>(),  make_loops<float, 8>(),
                                        make_loops<float, 16>(), make_loops<float, 32>(), make_loops<float, 64>()};
constexpr Loops<double> kDoubleLoops[] = {
    make_row_loops<double>(), make_loops<double, 4>(), make_loops<double, 8>(), make_loops<double, 16>()};

constexpr int64_t find_width(int64_t width) {
  return width == 1 ? 0 : width == 4 ? 1 : width == 8 ? 2 : width == 16 ? 3 : width == 32 ? 4 : 5;
}

template <typename T>
const Loops<T>& find_loops(const Tile& tile) {
  if constexpr (std::is_same_v<T, double>) {
    return kDoubleLoops[find_width(tile.width)];
  } else {
    return kFloatLoops[find_width(tile.width)];
  }
}

bool has_half_rows(const Layer& layer, const Tile& tile) {
  return layer.half_rows && layer.value == Value::bfloat16 && tile.width >= kHalfRowWidth;
}

// ---------------------------------------------------------------- blocks: at most kBlock columns of batch-major matrices

// block[columns][width] of a tile from a batch-major matrix, which starts at the block's first column.
template <typename T>
void load_block(Value value, const Tile& tile, const void* matrix, int64_t stride, int64_t columns, T* block) {
  const void* source = advance(matrix, tile.first * stride * size_of(value));
  const T* rows = static_cast<const T*>(source);
  int64_t rows_stride = stride;
  T wide[kMaxWidth * kBlock];
  if (is_narrow(value)) {
    for (int64_t r = 0; r < tile.rows; ++r) {
      widen(value, advance(source, r * stride * size_of(value)), columns, wide + r * kBlock);
    }
    rows = wide;
    rows_stride = kBlock;
  }
  find_loops<T>(tile).transpose(rows, rows_stride, tile.width, tile.rows, columns, block, tile.width, false);
}

ALWAYS_INLINE bool is_aligned(const void* pointer, int64_t stride_bytes) {
  return (reinterpret_cast<uintptr_t>(pointer) | static_cast<uintptr_t>(stride_bytes)) % kRegisterBytes == 0;
}

// The opposite. Matrices that do not stay in the caches anyway are written past them.
template <typename T>
void store_block(
    Value value, const Tile& tile, const T* block, int64_t columns, void* matrix, int64_t stride, bool streaming) {
  void* target = advance(matrix, tile.first * stride * size_of(value));
  const auto transpose = find_loops<T>(tile).transpose;
  streaming = streaming && is_aligned(target, stride * size_of(value));
  if (!is_narrow(value)) {
    transpose(block, tile.width, columns, columns, tile.rows, static_cast<T*>(target), stride, streaming);
    return;
  }
  T wide[kMaxWidth * kBlock];
  transpose(block, tile.width, columns, columns, tile.rows, wide, kBlock, false);
  for (int64_t r = 0; r < tile.rows; ++r) {
    narrow(value, wide + r * kBlock, columns, advance(target, r * stride * size_of(value)), streaming);
  }
}

template <typename T>
void pack(const Layer& layer, const Tile& tile, const void* features, int64_t first, int64_t last, void* packed) {
  T* target = static_cast<T*>(packed) + tile.place * layer.in_features;
  const bool halves = has_half_rows(layer, tile);
  T block[kMaxWidth * kBlock];
  for (int64_t c = first; c < last; c += kBlock) {
    const int64_t columns = smaller(kBlock, last - c);
    load_block(
        layer.value, tile, advance(features, c * size_of(layer.value)), layer.in_features, columns,
        halves ? block : target + c * tile.width);
    if (halves) {
      find_loops<T>(tile).pack_halves(block, columns, advance(static_cast<void*>(target), c * tile.width * 2));
    }
  }
}

// total[count] = the sum of `parts` arrays that lie `copy` elements apart, added in order.
template <typename T>
void add_copies(const T* copies, int64_t parts, int64_t copy, int64_t count, T* total) {
  constexpr int64_t lanes = kLanes<T>;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    Vector<T, lanes> sum = load<lanes>(copies + i);
    for (int64_t part = 1; part < parts; ++part) {
      sum += load<lanes>(copies + i + part * copy);
    }
    store<lanes>(total + i, sum);
  }
  for (; i < count; ++i) {
    total[i] = copies[i];
    for (int64_t part = 1; part < parts; ++part) {
      total[i] += copies[i + part * copy];
    }
  }
}

template <typename T>
void sum_partials(
    const Layer& layer, const Tile& tile, int64_t first, int64_t last, const void* partials, int64_t parts, int64_t copy,
    void* grad_features) {
  const T* total = static_cast<const T*>(partials) + tile.place * layer.in_features;
  T block[kMaxWidth * kBlock];
  for (int64_t c = first; c < last; c += kBlock) {
    const int64_t columns = smaller(kBlock, last - c);
    add_copies(total + c * tile.width, parts, copy, columns * tile.width, block);
    store_block(
        layer.value, tile, block, columns, advance(grad_features, c * size_of(layer.value)), layer.in_features, false);
  }
}

// ---------------------------------------------------------------- forward

int64_t step_outputs(const Layer& layer) {
  const int64_t outputs = kStepConnections / (layer.fan_in + 1);
  return outputs < 1 ? 1 : smaller(outputs, kBlock);
}

// The results of outputs [first, last), at most a block, for one tile; as many of them at once as scratch holds.
template <typename T>
bool compute_block(
    const Layer& layer, const ForwardTask& task, const Tile& tile, int64_t first, int64_t last, void* scratch, T* block) {
  T bias[kBlock] = {};
  const T* offsets = bias;
  if (task.bias != nullptr) {
    offsets = read_values(layer.value, task.bias, first, last - first, bias);
  }
  const T* features = static_cast<const T*>(task.packed) + tile.place * layer.in_features;
  const int64_t step = step_outputs(layer);
  const bool is_short = size_of(layer.index) == 2;
  T* wide = static_cast<T*>(scratch);
  uint32_t* converted = reinterpret_cast<uint32_t*>(wide + step * layer.fan_in);
  for (int64_t o = first; o < last; o += step) {
    const int64_t outputs = smaller(step, last - o);
    const int64_t begin = o * layer.fan_in;
    const int64_t count = outputs * layer.fan_in;
    if (!layer.checked && &tile == task.first_tile && !locations_valid(layer, begin, begin + count)) {
      return false;
    }
    const T* weights = read_values(layer.value, layer.weights, begin, count, wide);
    const void* locations =
        is_short ? advance(layer.locations, begin * 2) : read_locations(layer, begin, count, converted);
    find_loops<T>(tile).forward[is_short + 2 * has_half_rows(layer, tile)](
        features, weights, locations, offsets + (o - first), layer.fan_in, outputs, block + (o - first) * tile.width);
  }
  return true;
}

template <typename T>
bool forward(const Layer& layer, const ForwardTask& task, void* scratch) {
  T block[kBlock * kMaxWidth];
  for (const Tile* tile = task.first_tile; tile != task.last_tile; ++tile) {
    for (int64_t o = task.first; o < task.last; o += kBlock) {
      const int64_t last = smaller(o + kBlock, task.last);
      if (!compute_block(layer, task, *tile, o, last, scratch, block)) {
        return false;
      }
      store_block(
          layer.value, *tile, block, last - o, advance(task.result, o * size_of(layer.value)), layer.out_features,
          task.streaming);
    }
  }
  finish_streaming();
  return true;
}

// ---------------------------------------------------------------- backward

constexpr int64_t kChunkOutputs = 16 * kBlock;

int64_t chunk_outputs(const Layer& layer) {
  const int64_t outputs = kChunkConnections / (layer.fan_in + 1);
  return outputs < kBlock ? outputs + 1 : smaller(outputs / kBlock * kBlock, kChunkOutputs);
}

template <typename T>
void fill_zero(T* target, int64_t count) {
  __builtin_memset(target, 0, count * sizeof(T));
}

// What a chunk of outputs needs: its connections, and its sums over the batch, where they lie or in scratch.
template <typename T>
struct Chunk {
  int64_t first;
  int64_t outputs;
  const T* weights;
  const uint32_t* locations;
  T* weights_sums;  // null if they are not wanted
  T* bias_sums;     // the same
};

template <typename T>
T* choose_sums(const void* gradient, void* sums, int64_t first, T* scratch) {
  return gradient == nullptr ? nullptr : sums == nullptr ? scratch : static_cast<T*>(sums) + first;
}

template <typename T>
Chunk<T> open_chunk(
    const Layer& layer, const BackwardTask& task, int64_t first, int64_t outputs, void* scratch, T* bias_scratch) {
  const int64_t begin = first * layer.fan_in;
  const int64_t count = outputs * layer.fan_in;
  const int64_t most = chunk_outputs(layer) * layer.fan_in;
  T* wide = static_cast<T*>(scratch);
  T* weights_scratch = wide + most;
  uint32_t* converted = reinterpret_cast<uint32_t*>(weights_scratch + most);
  const Chunk<T> chunk{
      first, outputs, read_values(layer.value, layer.weights, begin, count, wide),
      read_locations(layer, begin, count, converted),
      choose_sums(task.grad_weights, task.weights_sums, begin, weights_scratch),
      choose_sums(task.grad_bias, task.bias_sums, first, bias_scratch)};
  if (task.starts && chunk.weights_sums != nullptr) {
    fill_zero(chunk.weights_sums, count);
  }
  if (task.starts && chunk.bias_sums != nullptr) {
    fill_zero(chunk.bias_sums, outputs);
  }
  return chunk;
}

template <typename T>
void write_values(Value value, const T* sums, int64_t first, int64_t count, void* target) {
  void* to = advance(target, first * size_of(value));
  if (is_narrow(value)) {
    narrow(value, sums, count, to, false);
  } else if (to != sums) {
    __builtin_memcpy(to, sums, count * sizeof(T));
  }
}

template <typename T>
void close_chunk(const Layer& layer, const BackwardTask& task, const Chunk<T>& chunk) {
  if (task.ends && chunk.weights_sums != nullptr) {
    write_values(
        layer.value, chunk.weights_sums, chunk.first * layer.fan_in, chunk.outputs * layer.fan_in, task.grad_weights);
  }
  if (task.ends && chunk.bias_sums != nullptr) {
    write_values(layer.value, chunk.bias_sums, chunk.first, chunk.outputs, task.grad_bias);
  }
}

template <typename T>
T* offset_or_null(T* pointer, int64_t offset) {
  return pointer == nullptr ? nullptr : pointer + offset;
}

// sums[outputs] += the sums over grads[outputs][width].
template <typename T>
void add_bias_gradient(const T* grads, const Tile& tile, int64_t outputs, T* sums) {
  for (int64_t o = 0; o < outputs; ++o) {
    T sum = 0;
    for (int64_t r = 0; r < tile.rows; ++r) {
      sum += grads[o * tile.width + r];
    }
    sums[o] += sum;
  }
}

// Adds what one tile contributes to the gradients of a chunk. Returns false if a location is out of range; the first tile
// looks at them, block by block, just before they are used.
template <typename T>
bool add_tile(const Layer& layer, const BackwardTask& task, const Tile& tile, const Chunk<T>& chunk) {
  const auto gradients = task.partial == nullptr ? Gradients::weights
      : task.grad_weights == nullptr             ? Gradients::features
                                                 : Gradients::both;
  const auto loop = find_loops<T>(tile).backward[static_cast<int>(gradients)];
  const int64_t offset = tile.place * layer.in_features;
  T grads[kBlock * kMaxWidth];
  for (int64_t o = 0; o < chunk.outputs; o += kBlock) {
    const int64_t outputs = smaller(kBlock, chunk.outputs - o);
    const int64_t begin = (chunk.first + o) * layer.fan_in;
    if (!layer.checked && &tile == task.first_tile && !locations_valid(layer, begin, begin + outputs * layer.fan_in)) {
      return false;
    }
    load_block(
        layer.value, tile, advance(task.grad_output, (chunk.first + o) * size_of(layer.value)), layer.out_features,
        outputs, grads);
    if (task.grad_bias != nullptr) {
      add_bias_gradient(grads, tile, outputs, chunk.bias_sums + o);
    }
    if (task.partial != nullptr || task.grad_weights != nullptr) {
      loop(
          offset_or_null(static_cast<const T*>(task.packed), offset), grads, chunk.weights + o * layer.fan_in,
          chunk.locations + o * layer.fan_in, layer.fan_in, outputs,
          offset_or_null(static_cast<T*>(task.partial), offset),
          offset_or_null(chunk.weights_sums, o * layer.fan_in));
    }
  }
  return true;
}

template <typename T>
bool backward(const Layer& layer, const BackwardTask& task, void* scratch) {
  for (const Tile* tile = task.first_tile; task.partial != nullptr && tile != task.last_tile; ++tile) {
    fill_zero(static_cast<T*>(task.partial) + tile->place * layer.in_features, tile->width * layer.in_features);
  }
  const int64_t most = chunk_outputs(layer);
  T bias_scratch[kChunkOutputs];
  for (int64_t o = task.first; o < task.last; o += most) {
    const int64_t outputs = smaller(most, task.last - o);
    const Chunk<T> chunk = open_chunk(layer, task, o, outputs, scratch, bias_scratch);
    for (const Tile* tile = task.first_tile; tile != task.last_tile; ++tile) {
      if (!add_tile(layer, task, *tile, chunk)) {
        return false;
      }
    }
    close_chunk(layer, task, chunk);
  }
  return true;
}

// ---------------------------------------------------------------- the table

int64_t count_scratch(const Layer& layer) {
  if (!is_narrow(layer.value) && layer.index == Index::int32) {
    return 0;
  }
  const int64_t value_bytes = layer.value == Value::float64 ? 8 : 4;
  return chunk_outputs(layer) * layer.fan_in * (2 * value_bytes + static_cast<int64_t>(sizeof(uint32_t)));
}

template <typename T>
constexpr FixedFanInKernels kTable = {count_scratch, pack<T>, forward<T>, backward<T>, sum_partials<T>, locations_valid};

}  // namespace

#define TABLE_NAME(capability) fixed_fan_in_##capability
#define TABLE(capability) TABLE_NAME(capability)

const FixedFanInKernels TABLE(CAPABILITY)[2] = {kTable<float>, kTable<double>};

}  // namespace torch_sparse_ops
