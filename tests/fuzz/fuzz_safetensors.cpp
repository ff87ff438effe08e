#include "millrace/core/error.h"
#include "millrace/io/safetensors.h"

// Any bytes give a table whose every tensor lies inside the file, or an Error(io).
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  try {
    const auto header = millrace::parse_safetensors(file, "fuzz");
    for (const auto& tensor : header.tensors) {
      if (tensor.begin > tensor.end || tensor.end > size - header.data_offset) __builtin_trap();
    }
  } catch (const millrace::Error& error) {
    if (error.exit() != millrace::Exit::io) __builtin_trap();
  }
  return 0;
}
