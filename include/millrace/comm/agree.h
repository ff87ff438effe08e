#pragma once
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "millrace/comm/group.h"
#include "millrace/core/error.h"

// Work that any rank may fail at, so that all continue or none.
namespace millrace {

// What agree() throws: every rank of `group` throws the same at the same place.
class AgreedError : public Error {
 public:
  AgreedError(const Error& error, Group group) : Error(error), group_(std::move(group)) {}

  const Group& group() const { return group_; }

 private:
  Group group_;
};

// An error that another rank has reported to this one; that rank prints it and ends the run.
class RelayedError : public Error {
 public:
  using Error::Error;
};

// Throws on every rank if any rank brings an error: that of the lowest such rank, whose world rank is named unless it
// is rank 0 of the group. An error of a rank's own node (comm/fault.h) is also written to its fault file. Collective.
void agree(const Group& group, const std::optional<Error>& error);

// The exception that is being handled, as an Error. Exceptions of the file system, and a thread that the system
// refuses, become Exit::io; other foreign ones what translate_foreign_errors makes of them, else a bug.
Error present_error();

// Runs `f` on every rank; when it throws on some, all throw the error of the lowest of these. `f` must not communicate:
// a rank that fails in it would leave the others waiting.
template <class F>
auto on_all(const Group& group, F&& f) {
  using Result = std::invoke_result_t<F>;
  std::conditional_t<std::is_void_v<Result>, std::monostate, std::optional<Result>> result;
  std::optional<Error> error;
  try {
    if constexpr (std::is_void_v<Result>) {
      f();
    } else {
      result.emplace(f());
    }
  } catch (...) {
    error = present_error();
  }
  agree(group, error);
  if constexpr (!std::is_void_v<Result>) return std::move(*result);
}

// Runs `f` on rank 0 alone; its error is thrown on all ranks.
template <class F>
void on_root(const Group& group, F&& f) {
  on_all(group, [&] {
    if (group.is_root()) f();
  });
}

// Runs `f` on rank 0 alone and returns its result, a bool or a string, on all ranks. Its error is thrown on all ranks.
template <class F>
auto broadcast_from_root(const Group& group, F&& f) {
  std::invoke_result_t<F> known{};
  on_root(group, [&] { known = f(); });
  if constexpr (std::is_same_v<decltype(known), bool>) {
    return group.any(known);
  } else {
    static_assert(std::is_same_v<decltype(known), std::string>);
    return group.broadcast(std::move(known));
  }
}

}  // namespace millrace
