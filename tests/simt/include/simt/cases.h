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

// False for a text that names no order.
inline bool choose_order(const std::string& text) {
  char* end = nullptr;
  const unsigned long seed = std::strtoul(text.c_str(), &end, 10);
  if (text == "forward" || text == "reverse") {
    set_order(text == "forward" ? Order::forward : Order::reverse);
  } else if (end != text.c_str() && *end == 0) {
    set_order(Order::shuffled, static_cast<unsigned>(seed));
  } else {
    return false;
  }
  return true;
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

inline int fail(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  return 1;
}

// program [--order forward|reverse|SEED] [case...]; without names, all of them. The exit status is 0 if none failed.
inline int run_cases(int count, char** words, const std::vector<Case>& cases) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::vector<std::string> names;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--order") == 0 && i + 1 < count) {
      if (!choose_order(words[++i])) {
        return fail("--order takes forward, reverse or a number to shuffle with, got '" + std::string(words[i]) + "'");
      }
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
    return fail("not every name is a case");
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace simt
