#include "program.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>

namespace simt {
namespace {

struct Loaded {
  Range image{UINTPTR_MAX, 0};
  uintptr_t thread_storage = 0;
};

int note_segments(dl_phdr_info* info, size_t, void* result) {
  Loaded& loaded = *static_cast<Loaded*>(result);
  loaded.thread_storage = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_LOAD) {
      const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
      loaded.image.begin = std::min(loaded.image.begin, begin);
      loaded.image.end = std::max(loaded.image.end, begin + segment.p_memsz);
    }
  }
  return 1;                            // the program itself comes first, its libraries after
}

std::string demangle(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> plain(abi::__cxa_demangle(name, nullptr, nullptr, &status), std::free);
  return status == 0 ? plain.get() : name;
}

// The symbol table says where in the thread's storage each variable is, and how large.
std::vector<Variable> list_thread_variables(const std::vector<char>& file, uintptr_t storage) {
  const auto at = [&](size_t offset) { return file.data() + offset; };
  const auto& header = *reinterpret_cast<const ElfW(Ehdr)*>(at(0));
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(at(header.e_shoff));
  std::vector<Variable> variables;
  for (int i = 0; i < header.e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB) {
      continue;
    }
    const char* names = at(sections[sections[i].sh_link].sh_offset);
    const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(at(sections[i].sh_offset));
    for (size_t j = 0; j < sections[i].sh_size / sizeof(*symbols); ++j) {
      if (ELF64_ST_TYPE(symbols[j].st_info) == STT_TLS && symbols[j].st_shndx != SHN_UNDEF) {
        variables.push_back({demangle(names + symbols[j].st_name), storage + symbols[j].st_value, symbols[j].st_size});
      }
    }
  }
  return variables;
}

}  // namespace

Program read_program() {
  Loaded loaded;
  dl_iterate_phdr(note_segments, &loaded);
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::vector<char> file{std::istreambuf_iterator<char>(stream), {}};
  return {loaded.image, list_thread_variables(file, loaded.thread_storage)};
}

}  // namespace simt
