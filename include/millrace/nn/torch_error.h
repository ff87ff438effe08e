#pragma once
#include <optional>
#include <string_view>

#include "millrace/core/error.h"

namespace millrace {

// The exception that is being handled, when it is one of LibTorch or std::bad_alloc: Error(usage) that says which keys
// need less memory, or Error(suspect_node) for a GPU that failed, and for a GPU or host that has too little in the
// middle of a training. Called in a catch block.
std::optional<Error> present_torch_error();

// Whether LibTorch's words mean that a GPU, or a GPU or the host, has too little memory, where the kind of its
// exception does not tell.
bool tells_of_full_gpu(std::string_view message);
bool tells_of_too_little_memory(std::string_view message);

}  // namespace millrace
