// The LLTM cell without its matrix product: what every device computes, and in which memory.
//
//   gates       [batch, 3, state]  input gate i, output gate o and candidate c, side by side
//   everything else                [batch, state]
//
//   forward:    i = sigmoid(i'), o = sigmoid(o'), c = elu(c')     where ' marks the matrix product, overwritten in place
//               new_cell = cell + i c,  new_hidden = o tanh(new_cell)
//   backward:   the derivatives of the activations follow from their values, so that nothing else has to be kept.
//
// All arrays are contiguous. There is no torch here: nvcc reads this file, and takes minutes over torch's headers.

#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define LLTM_FUNCTION __host__ __device__ inline
#else
#define LLTM_FUNCTION inline
#endif

namespace lltm {

template <typename T>
struct Forward {
  int64_t batch, state;
  T* gates;                 // in: products plus bias; out: activations
  const T* cell;
  T* new_hidden;
  T* new_cell;
  void* stream;             // of the device; null on the CPU
};

template <typename T>
struct Backward {
  int64_t batch, state;
  const T* grad_new_hidden;
  const T* grad_new_cell;
  const T* gates;           // the activations
  const T* new_cell;
  T* grad_gates;            // of the products
  T* grad_cell;
  void* stream;
};

// Element s of row b.
template <typename T>
LLTM_FUNCTION void forward_element(const Forward<T>& a, int64_t b, int64_t s) {
  T* gates = a.gates + 3 * b * a.state + s;
  const int64_t at = b * a.state + s;
  const T input = T(1) / (T(1) + std::exp(-gates[0]));
  const T output = T(1) / (T(1) + std::exp(-gates[a.state]));
  const T product = gates[2 * a.state];
  const T candidate = product > T(0) ? product : std::expm1(product);
  const T new_cell = a.cell[at] + input * candidate;
  gates[0] = input;
  gates[a.state] = output;
  gates[2 * a.state] = candidate;
  a.new_cell[at] = new_cell;
  a.new_hidden[at] = output * std::tanh(new_cell);
}

template <typename T>
LLTM_FUNCTION void backward_element(const Backward<T>& a, int64_t b, int64_t s) {
  const T* gates = a.gates + 3 * b * a.state + s;
  T* grad_gates = a.grad_gates + 3 * b * a.state + s;
  const int64_t at = b * a.state + s;
  const T input = gates[0], output = gates[a.state], candidate = gates[2 * a.state];
  const T squashed = std::tanh(a.new_cell[at]);
  const T grad_hidden = a.grad_new_hidden[at];
  const T grad_cell = a.grad_new_cell[at] + grad_hidden * output * (T(1) - squashed * squashed);
  grad_gates[0] = grad_cell * candidate * input * (T(1) - input);
  grad_gates[a.state] = grad_hidden * squashed * output * (T(1) - output);
  grad_gates[2 * a.state] = grad_cell * input * (candidate > T(0) ? T(1) : candidate + T(1));
  a.grad_cell[at] = grad_cell;
}

// One device's functions. A device file registers its own at load time, so that the list of sources alone says which
// devices a build serves.
template <typename T>
struct Kernels {
  void (*forward)(const Forward<T>&);
  void (*backward)(const Backward<T>&);
};

enum class Device { cpu, cuda };

template <typename T>
Kernels<T>& kernels(Device device);

template <typename T>
struct Registration {
  Registration(Device device, Kernels<T> own) { kernels<T>(device) = own; }
};

}  // namespace lltm
