#pragma once
#include <filesystem>
#include <string>
#include <system_error>

#include "millrace/core/error.h"

namespace millrace {

// A file, an object or an address could not be opened, read or fetched. That says nothing about the bytes, so it is
// never damage. Thrown as it is, not as a StorageError, if nothing has that name or it is another thing than before.
class AccessError : public Error {
 public:
  // `name`: what was read; `why`: ENOENT, or the words of a transfer.
  AccessError(std::string name, std::string why, const std::string& message, const std::string& hint = {})
      : Error(Exit::io, message, hint), name_(std::move(name)), why_(std::move(why)) {}

  const std::string& name() const { return name_; }
  const std::string& why() const { return why_; }
  // Its hint, followed by `more`.
  std::string hint_and(const std::string& more) const { return hint().empty() ? more : hint() + "; " + more; }

 private:
  std::string name_, why_;
};

// Storage or network failed: the bytes may come when they are asked for again (data.retry_for).
class StorageError : public AccessError {
 public:
  using AccessError::AccessError;
};

// Access was refused: by permissions, by credentials, which run out and are renewed, or by the answer of a store.
class RefusedError : public StorageError {
 public:
  using StorageError::StorageError;
};

// Whether an error tells of damaged bytes (an archive or a list may still be read up to them), and not of storage that
// keeps them away or of a mistake of ours.
inline bool is_damage(const Error& error) {
  return error.exit() == Exit::io && dynamic_cast<const AccessError*>(&error) == nullptr;
}

// Whether an errno makes a StorageError: all do, refusals too, but those of a wrong path (ENOENT, ENOTDIR...).
bool is_storage_fault(int code);
// "EIO" for EIO.
std::string errno_name(int code);
// Throws an error because `what` of `path` failed with errno: the message names the path and what to do (ENOSPC,
// EDQUOT, EACCES...). A StorageError if errno is such a fault, else an AccessError.
[[noreturn]] void fail_errno(const char* what, const std::filesystem::path& path);
// Throws the StorageError of a file that has become shorter since it was opened. NOTE [Cut short]: such a file was
// changed while it was read, which says nothing about the bytes that are there: opened again, it shows what it is now.
// A file that is shorter than its own contents say is damaged.
[[noreturn]] void fail_shortened(const std::filesystem::path& path);
// Throws the StorageError that `code` stands for; does nothing for success and for everything else.
void check_storage(const std::error_code& code, const std::filesystem::path& path);

}  // namespace millrace
