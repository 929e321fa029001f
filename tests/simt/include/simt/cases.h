// A program of named cases: main() in one line.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "execution.h"

namespace simt {

struct Case {
  std::string name;
  void (*run)();
};

// Ends a case that found what it should not.
inline void require(bool holds, const std::string& what) {
  if (!holds) {
    throw std::runtime_error(what);
  }
}

inline void choose_order(const char* text) {
  const std::string name(text);
  if (name == "forward" || name == "reverse") {
    return set_order(name == "forward" ? Order::forward : Order::reverse);
  }
  char* end = nullptr;
  const unsigned long seed = std::strtoul(text, &end, 10);
  require(end != text && *end == 0, "--order takes forward, reverse or a number to shuffle with, got '" + name + "'");
  set_order(Order::shuffled, static_cast<unsigned>(seed));
}

inline bool run_case(const Case& one) {
  try {
    one.run();
    return true;
  } catch (const std::exception& error) {
    std::printf("FAILED %s: %s\n", one.name.c_str(), error.what());
    return false;
  }
}

// program [--order forward|reverse|SEED] [case...]; without names, all of them. The exit status is 0 if none failed.
inline int run_cases(int count, char** words, const std::vector<Case>& cases) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::vector<std::string> names;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--order") == 0 && i + 1 < count) {
      choose_order(words[++i]);
    } else {
      names.push_back(words[i]);
    }
  }
  int passed = 0, failed = 0;
  for (const Case& one : cases) {
    bool wanted = names.empty();
    for (const std::string& name : names) {
      wanted = wanted || name == one.name;
    }
    if (wanted) {
      ++(run_case(one) ? passed : failed);
    }
  }
  if (passed + failed < static_cast<int>(names.size()) || passed + failed == 0) {
    std::printf("FAILED: not every name is a case\n");
    return 1;
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace simt
