#pragma once
#include <filesystem>
#include <string>
#include <system_error>

#include "millrace/core/error.h"

namespace millrace {

// Storage or network failed while something was read. That says nothing about the bytes: they may come when they are
// asked for again, which damage never does (data.retry_for).
class StorageError : public Error {
 public:
  // `name`: what was read; `why`: EIO, or the words of a transfer.
  StorageError(std::string name, std::string why, const std::string& message, std::string hint = {})
      : Error(Exit::io, message, std::move(hint)), name_(std::move(name)), why_(std::move(why)) {}

  const std::string& name() const { return name_; }
  const std::string& why() const { return why_; }

 private:
  std::string name_, why_;
};

// EIO, ESTALE, ETIMEDOUT...: not what a path that is wrong or closed to this user gives.
bool is_storage_fault(int code);
// "EIO" for EIO.
std::string errno_name(int code);
// Throws the StorageError that `code` stands for; does nothing for success and for everything else.
void check_storage(const std::error_code& code, const std::filesystem::path& path);

}  // namespace millrace
