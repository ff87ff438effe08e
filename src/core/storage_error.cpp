#include "millrace/core/storage_error.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace millrace {

namespace {

std::string cure(int code) {
  switch (code) {
    case ENOSPC:
      return "the disk is full, or its inodes are used up (`df -i`): free some space, or write to another file system";
    case EDQUOT:
      return "the disk quota is used up: free some space, or write to another file system";
    case EFBIG:
      return "the file is larger than this shell or file system allows: see `ulimit -f`";
    case EACCES:
    case EPERM:
      return "check who owns the path and its permissions";
    case ENOKEY:
    case EKEYEXPIRED:
    case EKEYREVOKED:
    case EKEYREJECTED:
      return "the ticket for this file system has run out: see `klist`";
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

bool is_refusal(int code) {
  switch (code) {
    case EACCES:
    case EPERM:
    case ENOKEY:
    case EKEYEXPIRED:
    case EKEYREVOKED:
    case EKEYREJECTED:
      return true;
    default:
      return false;
  }
}

// What files and sockets answer. glibc knows names from 2.32 on; LibTorch's wheel runs from 2.28 on.
constexpr std::pair<int, const char*> errno_names[] = {{E2BIG, "E2BIG"},
                                                       {EACCES, "EACCES"},
                                                       {EAGAIN, "EAGAIN"},
                                                       {EALREADY, "EALREADY"},
                                                       {EBADF, "EBADF"},
                                                       {EBADMSG, "EBADMSG"},
                                                       {EBUSY, "EBUSY"},
                                                       {ECANCELED, "ECANCELED"},
                                                       {ECOMM, "ECOMM"},
                                                       {ECONNABORTED, "ECONNABORTED"},
                                                       {ECONNREFUSED, "ECONNREFUSED"},
                                                       {ECONNRESET, "ECONNRESET"},
                                                       {EDEADLK, "EDEADLK"},
                                                       {EDQUOT, "EDQUOT"},
                                                       {EEXIST, "EEXIST"},
                                                       {EFAULT, "EFAULT"},
                                                       {EFBIG, "EFBIG"},
                                                       {EHOSTDOWN, "EHOSTDOWN"},
                                                       {EHOSTUNREACH, "EHOSTUNREACH"},
                                                       {EHWPOISON, "EHWPOISON"},
                                                       {EILSEQ, "EILSEQ"},
                                                       {EINPROGRESS, "EINPROGRESS"},
                                                       {EINTR, "EINTR"},
                                                       {EINVAL, "EINVAL"},
                                                       {EIO, "EIO"},
                                                       {EISDIR, "EISDIR"},
                                                       {EKEYEXPIRED, "EKEYEXPIRED"},
                                                       {EKEYREJECTED, "EKEYREJECTED"},
                                                       {EKEYREVOKED, "EKEYREVOKED"},
                                                       {ELOOP, "ELOOP"},
                                                       {EMFILE, "EMFILE"},
                                                       {EMLINK, "EMLINK"},
                                                       {ENAMETOOLONG, "ENAMETOOLONG"},
                                                       {ENETDOWN, "ENETDOWN"},
                                                       {ENETRESET, "ENETRESET"},
                                                       {ENETUNREACH, "ENETUNREACH"},
                                                       {ENFILE, "ENFILE"},
                                                       {ENOBUFS, "ENOBUFS"},
                                                       {ENODATA, "ENODATA"},
                                                       {ENODEV, "ENODEV"},
                                                       {ENOENT, "ENOENT"},
                                                       {ENOKEY, "ENOKEY"},
                                                       {ENOLCK, "ENOLCK"},
                                                       {ENOLINK, "ENOLINK"},
                                                       {ENOMEM, "ENOMEM"},
                                                       {ENONET, "ENONET"},
                                                       {ENOSPC, "ENOSPC"},
                                                       {ENOSYS, "ENOSYS"},
                                                       {ENOTCONN, "ENOTCONN"},
                                                       {ENOTDIR, "ENOTDIR"},
                                                       {ENOTEMPTY, "ENOTEMPTY"},
                                                       {ENOTUNIQ, "ENOTUNIQ"},
                                                       {ENXIO, "ENXIO"},
                                                       {EOPNOTSUPP, "EOPNOTSUPP"},
                                                       {EOVERFLOW, "EOVERFLOW"},
                                                       {EPERM, "EPERM"},
                                                       {EPIPE, "EPIPE"},
                                                       {EPROTO, "EPROTO"},
                                                       {EPROTONOSUPPORT, "EPROTONOSUPPORT"},
                                                       {EREMCHG, "EREMCHG"},
                                                       {EREMOTEIO, "EREMOTEIO"},
                                                       {EROFS, "EROFS"},
                                                       {ESHUTDOWN, "ESHUTDOWN"},
                                                       {ESPIPE, "ESPIPE"},
                                                       {ESTALE, "ESTALE"},
                                                       {ETIME, "ETIME"},
                                                       {ETIMEDOUT, "ETIMEDOUT"},
                                                       {ETXTBSY, "ETXTBSY"},
                                                       {EUCLEAN, "EUCLEAN"},
                                                       {EUSERS, "EUSERS"},
                                                       {EXDEV, "EXDEV"}};

}  // namespace

void fail_errno(const char* what, const std::filesystem::path& path) {
  const int code = errno;
  const std::string message = fmt::format("{} {}: {}", what, path.string(), std::strerror(code));
  if (is_refusal(code)) throw RefusedError(path.string(), errno_name(code), message, cure(code));
  if (is_storage_fault(code)) throw StorageError(path.string(), errno_name(code), message, cure(code));
  throw AccessError(path.string(), errno_name(code), message, cure(code));
}

// File systems have many words for being away; those for a path that is wrong, or that leads to another kind of thing,
// are few.
bool is_storage_fault(int code) {
  switch (code) {
    case 0:
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EINVAL:
    case EILSEQ:
    case ESPIPE:
    case EUCLEAN:  // of this one file, for good: the file system has found it damaged
    case EBADMSG:
    case EBADF:  // mistakes of ours
    case EFAULT:
    case E2BIG:
      return false;
    default:
      return true;
  }
}

std::string errno_name(int code) {
  for (const auto& [known, name] : errno_names)
    if (known == code) return name;
  return fmt::format("errno {}", code);
}

void fail_shortened(const std::filesystem::path& path) {
  const std::string why = "was made shorter while it was read";
  throw StorageError(path.string(), why, fmt::format("{} {}", path.string(), why));
}

void check_storage(const std::error_code& code, const std::filesystem::path& path) {
  const bool is_errno = code.category() == std::generic_category() || code.category() == std::system_category();
  if (!is_errno || !is_storage_fault(code.value())) return;
  errno = code.value();
  fail_errno("cannot look at", path);
}

}  // namespace millrace
