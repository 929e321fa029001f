// Which instruction set the kernels of this process use: the best that processor and system support, unless capped by
// TORCH_SPARSE_OPS_CPU_CAPABILITY or by torch's ATEN_CPU_CAPABILITY. Decided once, at first use.

#pragma once

#include <cstdint>

namespace torch_sparse_ops {

enum class Capability : int64_t { baseline, avx2, avx512, avx512_bf16 };

Capability cpu_capability();

}  // namespace torch_sparse_ops
