// What the harness has to know of the program that it is part of.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace simt {

struct Range {
  uintptr_t begin, end;
  bool holds(uintptr_t address) const { return address - begin < end - begin; }
};

struct Variable {
  std::string name;
  uintptr_t begin;
  size_t bytes;
};

struct Program {
  Range image;                         // code, constants and variables
  std::vector<Variable> shared;        // the variables that are __shared__, in this thread of the operating system
};

Program read_program();

}  // namespace simt
