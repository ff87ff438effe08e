#include "preflight/loaded_libraries.h"

#include <link.h>

#include <filesystem>

#include "millrace/core/hash.h"

namespace millrace::preflight {
namespace {

// The notes hold the build id that the linker has made of the contents, where it was asked to.
std::string build_of(const dl_phdr_info& object) {
  Hasher128 hasher;
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& part = object.dlpi_phdr[i];
    if (part.p_type == PT_NOTE)
      hasher.update(reinterpret_cast<const void*>(object.dlpi_addr + part.p_vaddr), part.p_memsz);
  }
  std::error_code error;
  const auto size = std::filesystem::file_size(object.dlpi_name, error);
  return hasher.digest().hex() + std::to_string(error ? 0 : size);
}

int add_object(dl_phdr_info* object, std::size_t, void* result) {
  const std::filesystem::path path = object->dlpi_name;  // empty: the program; without a slash: the kernel's part
  if (path.has_parent_path())
    (*static_cast<std::map<std::string, std::string>*>(result))[path.filename().string()] = build_of(*object);
  return 0;
}

}  // namespace

std::map<std::string, std::string> loaded_libraries() {
  std::map<std::string, std::string> libraries;
  dl_iterate_phdr(add_object, &libraries);
  return libraries;
}

}  // namespace millrace::preflight
