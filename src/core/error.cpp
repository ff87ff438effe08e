#include "millrace/core/error.h"

#include <cerrno>
#include <cstring>

#include "millrace/core/files.h"

namespace millrace {

namespace {

std::string cure(int code) {
  switch (code) {
    case ENOSPC:
      return "the disk is full: free some space, or write to another file system";
    case EDQUOT:
      return "the disk quota is used up: free some space, or write to another file system";
    case EFBIG:
      return "the file is larger than this shell or file system allows: see `ulimit -f`";
    case EACCES:
    case EPERM:
      return "check who owns the path and its permissions";
    case EROFS:
      return "the file system is mounted read-only: choose another path";
    case ENOENT:
      return "check the path; its directory must exist";
    case ENOTDIR:
      return "a part of the path is a file, not a directory";
    case EMFILE:
    case ENFILE:
      return "too many open files: raise `ulimit -n`";
    case EIO:
    case ESTALE:
      return "the storage reports an error: check its health and the kernel log";
    default:
      return {};
  }
}

}  // namespace

void fail_errno(const char* what, const fs::path& path) {
  const int code = errno;
  throw Error(Exit::io, fmt::format("{} {}: {}", what, path.string(), std::strerror(code)), cure(code));
}

}  // namespace millrace
