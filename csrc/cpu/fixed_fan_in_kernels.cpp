// The kernels of the fixed fan-in operators, compiled once per instruction set: CMakeLists.txt gives the flags and, as
// CAPABILITY, the name. Formulas stand in ../fixed_fan_in.h, inner loops in fixed_fan_in_loops.h.

#include "fixed_fan_in_backward.h"
#include "fixed_fan_in_forward.h"

namespace torch_sparse_ops {
namespace {

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
