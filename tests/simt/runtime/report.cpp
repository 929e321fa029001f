// Words for a Failure.
#include <link.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include "threads.h"

namespace simt {
namespace {

int find_base(dl_phdr_info* info, size_t, void* base) {
  *static_cast<uintptr_t*>(base) = info->dlpi_addr;
  return 1;                            // the program itself comes first
}

struct Source {
  std::string function, line;
};

Source find_source(uintptr_t code) {
  uintptr_t base = 0;
  dl_iterate_phdr(find_base, &base);
  char command[96];
  std::snprintf(command, sizeof(command), "addr2line -Cfse /proc/%d/exe 0x%zx", static_cast<int>(getpid()), code - base);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command, "r"), pclose);
  char function[1024] = "?", line[1024] = "?";
  if (!pipe || std::fgets(function, sizeof(function), pipe.get()) == nullptr ||
      std::fgets(line, sizeof(line), pipe.get()) == nullptr) {
    return {"code at " + std::to_string(code - base), "? (no addr2line)"};
  }
  line[std::strcspn(line, "\n ")] = 0;
  function[std::strcspn(function, "\n")] = 0;
  return {function, line};
}

std::string describe_index(uint3 index) {
  return "(" + std::to_string(index.x) + ", " + std::to_string(index.y) + ", " + std::to_string(index.z) + ")";
}

}  // namespace

std::string describe(Place place) {
  const char* slash = std::strrchr(place.file, '/');
  return std::string(slash == nullptr ? place.file : slash + 1) + ":" + std::to_string(place.line);
}

std::string describe_thread(unsigned number) { return "thread " + describe_index(threads[number].index); }

std::string describe_block(uint3 index) { return "block " + describe_index(index); }

std::string describe_code(const void* address) {
  return find_source(reinterpret_cast<uintptr_t>(address) - 1).line;               // it was a return address
}

std::string describe_kernel(const void* kernel) { return find_source(reinterpret_cast<uintptr_t>(kernel)).function; }

}  // namespace simt
