// What the environment decides, for every device.

#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace torch_sparse_ops {

// Whether the environment waives the check of locations.
inline bool trusts_locations() {
  static const bool trusts = [] {
    constexpr const char* name = "TORCH_SPARSE_OPS_CHECK_LOCATIONS";
    const char* text = std::getenv(name);
    const std::string value = text == nullptr ? "1" : text;
    if (value != "0" && value != "1") {
      throw std::runtime_error(std::string(name) + ": received " + value + ", accepted is 1 (check, as unset) or 0 (trust)");
    }
    return value == "0";
  }();
  return trusts;
}

}  // namespace torch_sparse_ops
