// On which GPUs a list of architectures runs, and what is said of the others.
#include "architectures.h"

#include <cstdio>

namespace {

using torch_sparse_ops::require_architecture;
using torch_sparse_ops::runs_on;

struct Row {
  const char* architectures;
  int major, minor;
  bool expected;
};

constexpr const char* kAll = "75-real,80-real,86-real,89-real,90-real,100-real,120";
constexpr Row kRows[] = {
    {kAll, 7, 0, false},        {kAll, 7, 5, true},           {kAll, 8, 0, true},           {kAll, 8, 7, true},
    {kAll, 9, 0, true},         {kAll, 10, 0, true},          {kAll, 10, 3, true},          {kAll, 11, 0, false},
    {kAll, 12, 0, true},        {kAll, 12, 1, true},          {kAll, 13, 0, true},          {"80-real", 9, 0, false},
    {"80-virtual", 9, 0, true}, {"80-virtual", 7, 5, false},  {"86-real", 8, 0, false},     {"86", 8, 9, true},
};

bool names_what_was_found() {
  try {
    require_architecture(kAll, 7, 0);
  } catch (const std::runtime_error& error) {
    const std::string text(error.what());
    return text.find("built for the architectures 75-real,80-real") != std::string::npos &&
        text.find("your GPU is sm_70") != std::string::npos;
  }
  return false;
}

}  // namespace

int main() {
  int failed = names_what_was_found() ? 0 : 1;
  for (const Row& row : kRows) {
    if (runs_on(row.architectures, row.major, row.minor) != row.expected) {
      std::printf("FAILED: %s on sm_%d%d\n", row.architectures, row.major, row.minor);
      ++failed;
    }
  }
  std::printf("%d failed\n", failed);
  return failed;
}
