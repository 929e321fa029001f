// The choice of the instruction set.

#include "capability.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace torch_sparse_ops {
namespace {

constexpr const char* kVariable = "TORCH_SPARSE_OPS_CPU_CAPABILITY";

struct Name {
  const char* name;
  Capability capability;
};

constexpr Name kNames[] = {
    {"baseline", Capability::baseline},
    {"avx2", Capability::avx2},
    {"avx512", Capability::avx512},
    {"avx512_bf16", Capability::avx512_bf16}};
// What torch's own variable may hold on x86-64; torch itself warns of anything else.
constexpr Name kTorchNames[] = {
    {"default", Capability::baseline}, {"avx2", Capability::avx2}, {"avx512", Capability::avx512_bf16}};

Capability detect() {
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool avx512_bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  return avx512_bf16 ? Capability::avx512_bf16 : avx512 ? Capability::avx512 : avx2 ? Capability::avx2 : Capability::baseline;
#else
  return Capability::baseline;
#endif
}

Capability read_cap() {
  const char* text = std::getenv(kVariable);
  if (text == nullptr || *text == '\0') {
    return Capability::avx512_bf16;
  }
  for (const Name& row : kNames) {
    if (std::string(text) == row.name) {
      return row.capability;
    }
  }
  throw std::runtime_error(
      std::string(kVariable) + ": received " + text + ", accepted is baseline, avx2, avx512 or avx512_bf16 (the highest to use)");
}

Capability read_torch_cap() {
  const char* text = std::getenv("ATEN_CPU_CAPABILITY");
  for (const Name& row : kTorchNames) {
    if (text != nullptr && std::string(text) == row.name) {
      return row.capability;
    }
  }
  return Capability::avx512_bf16;
}

}  // namespace

Capability cpu_capability() {
  static const Capability choice = std::min({detect(), read_cap(), read_torch_cap()});
  return choice;
}

}  // namespace torch_sparse_ops
