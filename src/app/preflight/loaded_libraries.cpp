#include "preflight/loaded_libraries.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstring>
#include <filesystem>

namespace millrace::preflight {
namespace {

std::string hex(const unsigned char* bytes, std::size_t count) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

// Empty when the notes hold none.
std::string find_build_id(const char* notes, std::size_t bytes) {
  const auto padded = [](std::size_t length) { return (length + 3) / 4 * 4; };
  for (std::size_t at = 0; at + sizeof(ElfW(Nhdr)) <= bytes;) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes + at, sizeof header);
    const char* const name = notes + at + sizeof header;
    const char* const value = name + padded(header.n_namesz);
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0)
      return hex(reinterpret_cast<const unsigned char*>(value), header.n_descsz);
    at += sizeof header + padded(header.n_namesz) + padded(header.n_descsz);
  }
  return {};
}

std::string identity_of(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& part = object.dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    auto id = find_build_id(reinterpret_cast<const char*>(object.dlpi_addr + part.p_vaddr), part.p_memsz);
    if (!id.empty()) return id;
  }
  std::error_code error;
  const auto size = std::filesystem::file_size(object.dlpi_name, error);
  return error ? "unknown" : fmt::format("{} bytes", size);
}

int add_object(dl_phdr_info* object, std::size_t, void* result) {
  const std::filesystem::path path = object->dlpi_name;  // empty: the program; without a slash: the kernel's part
  if (path.has_parent_path())
    (*static_cast<std::map<std::string, std::string>*>(result))[path.filename().string()] = identity_of(*object);
  return 0;
}

}  // namespace

std::map<std::string, std::string> loaded_libraries() {
  std::map<std::string, std::string> libraries;
  dl_iterate_phdr(add_object, &libraries);
  return libraries;
}

}  // namespace millrace::preflight
