// The CUDA kernels of examples/lltm against the cell's definition in float64, and the bytes that they move.
#include "../../examples/lltm/lltm_cuda.cu"

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "simt/buffer.h"
#include "simt/cases.h"

namespace lltm {

template <typename T>
Kernels<T>& kernels(Device device) {
  static std::map<Device, Kernels<T>> table;
  return table[device];
}

}  // namespace lltm

namespace {

using simt::Buffer;
using simt::require;

struct Shape {
  int64_t batch, state;
};

template <typename T>
std::vector<T> draw(size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(size);
  for (T& value : values) {
    value = static_cast<T>(normal(generator));
  }
  return values;
}

// Largest difference over the largest expected value, in units of the type's precision.
template <typename T>
void require_close(const std::vector<T>& found, const std::vector<double>& expected, const char* what) {
  double difference = 0, most = 1;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference = std::max(difference, std::fabs(found[i] - expected[i]));
    most = std::max(most, std::fabs(expected[i]));
    require(std::isfinite(found[i]), std::string(what) + ": element " + std::to_string(i) + " is not finite");
  }
  require(difference <= 8 * most * std::numeric_limits<T>::epsilon(),
          std::string(what) + ": off by " + std::to_string(difference / most / std::numeric_limits<T>::epsilon()) + " epsilon");
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// ---------------------------------------------------------------- one cell and its memory

template <typename T>
struct Cell {
  size_t size;                                        // elements
  Buffer<T> gates, cell, new_hidden, new_cell;
  Buffer<T> grad_new_hidden, grad_new_cell, grad_gates, grad_cell;
  lltm::Forward<T> forward;
  lltm::Backward<T> backward;

  Cell(Shape shape, const std::vector<T>& products)
      : size(static_cast<size_t>(shape.batch * shape.state)),
        gates("gates", products),
        cell("cell", draw<T>(size, 2)),
        new_hidden("new_hidden", size),
        new_cell("new_cell", size),
        grad_new_hidden("grad_new_hidden", draw<T>(size, 3)),
        grad_new_cell("grad_new_cell", draw<T>(size, 4)),
        grad_gates("grad_gates", 3 * size),
        grad_cell("grad_cell", size),
        forward{shape.batch, shape.state, gates.data(), cell.data(), new_hidden.data(), new_cell.data(), nullptr},
        backward{shape.batch, shape.state, grad_new_hidden.data(), grad_new_cell.data(), gates.data(),
                 new_cell.data(), grad_gates.data(), grad_cell.data(), nullptr} {}
};

template <typename T>
void check_forward(const Cell<T>& cell, Shape shape, const std::vector<T>& products) {
  std::vector<double> gates(3 * cell.size), new_cell(cell.size), new_hidden(cell.size);
  const std::vector<T> old = cell.cell.values();
  for (size_t i = 0; i < cell.size; ++i) {
    const size_t state = static_cast<size_t>(shape.state), gate = i / state * 3 * state + i % state;
    gates[gate] = sigmoid(products[gate]);
    gates[gate + state] = sigmoid(products[gate + state]);
    const double x = products[gate + 2 * state];
    gates[gate + 2 * state] = x > 0 ? x : std::expm1(x);
    new_cell[i] = old[i] + gates[gate] * gates[gate + 2 * state];
    new_hidden[i] = gates[gate + state] * std::tanh(new_cell[i]);
  }
  require_close(cell.gates.values(), gates, "gates");
  require_close(cell.new_cell.values(), new_cell, "new_cell");
  require_close(cell.new_hidden.values(), new_hidden, "new_hidden");
}

// The derivatives by the products, in terms of the products: the kernel goes by the activations.
template <typename T>
void check_backward(const Cell<T>& cell, Shape shape, const std::vector<T>& products) {
  std::vector<double> grad_gates(3 * cell.size), grad_cell(cell.size);
  const std::vector<T> new_cell = cell.new_cell.values(), by_hidden = cell.grad_new_hidden.values(),
                       by_cell = cell.grad_new_cell.values();
  for (size_t i = 0; i < cell.size; ++i) {
    const size_t state = static_cast<size_t>(shape.state), gate = i / state * 3 * state + i % state;
    const double in = products[gate], out = products[gate + state], x = products[gate + 2 * state];
    const double slope = 1 / std::pow(std::cosh(static_cast<double>(new_cell[i])), 2);       // of tanh
    grad_cell[i] = by_cell[i] + by_hidden[i] * sigmoid(out) * slope;
    grad_gates[gate] = grad_cell[i] * (x > 0 ? x : std::expm1(x)) * sigmoid(in) * sigmoid(-in);
    grad_gates[gate + state] = by_hidden[i] * std::tanh(static_cast<double>(new_cell[i])) * sigmoid(out) * sigmoid(-out);
    grad_gates[gate + 2 * state] = grad_cell[i] * sigmoid(in) * (x > 0 ? 1 : std::exp(x));
  }
  require_close(cell.grad_cell.values(), grad_cell, "grad_cell");
  require_close(cell.grad_gates.values(), grad_gates, "grad_gates");
}

template <typename T>
void check(Shape shape, const std::vector<T>& products) {
  const Cell<T> cell(shape, products);
  lltm::kernels<T>(lltm::Device::cuda).forward(cell.forward);
  check_forward(cell, shape, products);
  lltm::kernels<T>(lltm::Device::cuda).backward(cell.backward);
  check_backward(cell, shape, products);
}

// ---------------------------------------------------------------- cases

template <typename T>
void shapes() {
  for (const Shape shape : {Shape{1, 1}, {2, 5}, {7, 33}, {64, 128}, {300, 17}, {0, 6}, {3, 0}, {257, 1}, {1, 1000}}) {
    check<T>(shape, draw<T>(static_cast<size_t>(3 * shape.batch * shape.state), 1));
  }
}

template <typename T>
void large_gates() {
  std::vector<T> products;
  for (int i = -30; i < 30; ++i) {
    products.push_back(static_cast<T>(30 * i));
  }
  check<T>({4, 5}, products);
}

// Fewer threads than elements: each takes several.
template <typename T>
void grid_stride() {
  const Shape shape{37, 29};
  const std::vector<T> products = draw<T>(static_cast<size_t>(3 * shape.batch * shape.state), 1);
  const Cell<T> cell(shape, products);
  simt::launch(lltm::forward_kernel<T>, 2, 64, 0, cell.forward);
  check_forward(cell, shape, products);
  simt::launch(lltm::backward_kernel<T>, 2, 64, 0, cell.backward);
  check_backward(cell, shape, products);
}

template <typename... Buffers>
uint64_t moved(const Buffers&... buffers) {
  return (0 + ... + (buffers.loads().moved + buffers.stores().moved));
}

// Rows of whole sectors: every byte is moved once, and no other.
template <typename T>
void traffic() {
  if (!simt::watched) {
    return;
  }
  const Shape shape{9, 96};
  const Cell<T> cell(shape, draw<T>(3 * 9 * 96, 1));
  lltm::kernels<T>(lltm::Device::cuda).forward(cell.forward);
  const uint64_t forward = moved(cell.gates, cell.cell, cell.new_hidden, cell.new_cell);
  require(forward == 9 * cell.size * sizeof(T), "forward moves " + std::to_string(forward) + " bytes");
  lltm::kernels<T>(lltm::Device::cuda).backward(cell.backward);
  const uint64_t all = forward + moved(cell.grad_new_hidden, cell.grad_new_cell, cell.grad_gates, cell.grad_cell);
  const uint64_t kept = (3 + 1) * cell.size * sizeof(T);        // gates and new_cell, read again
  require(moved(cell.gates, cell.cell, cell.new_hidden, cell.new_cell) == forward + kept, "backward reads what was kept once");
  require(all - forward + kept == 10 * cell.size * sizeof(T), "backward moves " + std::to_string(all - forward + kept) + " bytes");
}

const std::vector<simt::Case> cases = {
    {"shapes_float32", shapes<float>},           {"shapes_float64", shapes<double>},
    {"large_gates_float32", large_gates<float>}, {"large_gates_float64", large_gates<double>},
    {"grid_stride_float32", grid_stride<float>}, {"grid_stride_float64", grid_stride<double>},
    {"traffic_float32", traffic<float>},         {"traffic_float64", traffic<double>},
};

}  // namespace

int main(int count, char** words) { return simt::run_cases(count, words, cases); }
