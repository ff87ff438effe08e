#include "millrace/comm/agree.h"

#include <cerrno>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "millrace/comm/fault.h"
#include "millrace/comm/foreign_errors.h"
#include "millrace/comm/world.h"
#include "millrace/core/json_text.h"
#include "millrace/core/storage_error.h"

namespace millrace {
namespace {

ForeignError foreign_error = nullptr;

// In our words, with the cure.
Error of_path(const std::filesystem::filesystem_error& error) {
  if (error.path1().empty()) return {Exit::io, error.what()};
  try {
    errno = error.code().value();
    fail_errno("cannot access", error.path1());
  } catch (const Error& told) {
    return told;
  }
}

// std::thread's, whose words name no thread.
bool is_for_want_of_threads(const std::system_error& error) {
  return error.code() == std::errc::resource_unavailable_try_again;
}

}  // namespace

void agree(const Group& group, const std::optional<Error>& error) {
  // What all throw names no host for the next start to leave out.
  if (error && error->exit() == Exit::suspect_node) fault::write_own(*error);
  if (!group.any(error.has_value())) return;
  const auto described =
      error ? nlohmann::json{static_cast<int>(error->exit()), error->what(), error->hint(), world_rank()}
            : nlohmann::json();
  const auto all = group.all_gather_strings(dump_any(described));
  for (int rank = 0; rank < group.size(); ++rank) {
    const auto entry = nlohmann::json::parse(all[rank]);
    if (entry.is_null()) continue;
    // Rank 0 does what is done once for all, and what all do it does as well: naming it would tell nothing.
    const std::string where = rank > 0 ? fmt::format("rank {}: ", entry[3].get<int>()) : "";
    throw AgreedError({static_cast<Exit>(entry[0].get<int>()), where + entry[1].get<std::string>(), entry[2]}, group);
  }
}

void translate_foreign_errors(ForeignError translate) {
  foreign_error = translate;
}

Error present_error() {
  try {
    throw;
  } catch (const Error& error) {
    return error;
  } catch (const std::filesystem::filesystem_error& error) {
    return of_path(error);
  } catch (const std::system_error& error) {
    if (!is_for_want_of_threads(error)) return bug(error.what());
    return Error(Exit::io, "cannot start a thread",
                 "there are too many processes or too little memory for it: see `ulimit -u`, `ulimit -v`, or the "
                 "container's limit of pids");
  } catch (const std::exception& error) {
    const auto known = foreign_error ? foreign_error() : std::nullopt;
    if (known && known->is_of_this_node) fault::blame_this_rank();
    if (known) return known->error;
    return bug(error.what());
  }
}

}  // namespace millrace
