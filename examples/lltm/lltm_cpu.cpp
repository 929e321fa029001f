// LLTM on the CPU: rows are divided among torch's own threads. They are reached through torch's C interface, so that the
// extension brings no OpenMP runtime of its own.

#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "lltm.h"

namespace lltm {
namespace {

constexpr int64_t elements_per_thread = 2048;      // below this, starting a thread costs more than it saves

template <typename Arguments, typename Element>
void for_each_element(const Arguments& a, const Element& element) {
  const int64_t rows_per_thread = std::max<int64_t>(1, elements_per_thread / std::max<int64_t>(1, a.state));
  torch::stable::parallel_for(0, a.batch, rows_per_thread, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t s = 0; s < a.state; ++s) {
        element(a, b, s);
      }
    }
  });
}

template <typename T>
void forward(const Forward<T>& arguments) {
  for_each_element(arguments, forward_element<T>);
}

template <typename T>
void backward(const Backward<T>& arguments) {
  for_each_element(arguments, backward_element<T>);
}

const Registration<float> registered_float(Device::cpu, {forward<float>, backward<float>});
const Registration<double> registered_double(Device::cpu, {forward<double>, backward<double>});

}  // namespace
}  // namespace lltm
