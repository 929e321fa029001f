// Which GPUs the library runs on. CMake gives the list as TORCH_SPARSE_OPS_CUDA_ARCHITECTURES, in its own notation: 80-real
// is machine code for 8.0, 120 machine code and PTX.

#pragma once

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

namespace torch_sparse_ops {

// Machine code runs on later minor versions of its major version, PTX on everything later.
inline bool runs_on(const std::string& architectures, int64_t major, int64_t minor) {
  std::istringstream items(architectures);
  for (std::string item; std::getline(items, item, ',');) {
    const int64_t number = std::stoll(item);
    const std::string kind = item.substr(std::to_string(number).size());
    const bool same_major = number / 10 == major && number % 10 <= minor;
    if ((kind != "-virtual" && same_major) || (kind != "-real" && number <= 10 * major + minor)) {
      return true;
    }
  }
  return false;
}

// Throws on a GPU that the library holds nothing for.
inline void require_architecture(const std::string& architectures, int64_t major, int64_t minor) {
  if (!runs_on(architectures, major, minor)) {
    throw std::runtime_error(
        "torch_sparse_ops: built for the architectures " + architectures + ", your GPU is sm_" + std::to_string(major) +
        std::to_string(minor) + "; build the package with CMAKE_CUDA_ARCHITECTURES=" + std::to_string(major) +
        std::to_string(minor));
  }
}

}  // namespace torch_sparse_ops
