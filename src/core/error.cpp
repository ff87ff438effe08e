#include "millrace/core/error.h"

#include "millrace/core/secrets.h"

namespace millrace {

Error::Error(Exit exit, const std::string& message, const std::string& hint)
    : std::runtime_error(without_secrets(message)), exit_(exit), hint_(without_secrets(hint)) {}

Error about_key(std::string_view key, const Error& error) {
  return {error.exit(), fmt::format("{}: {}", key, error.what()), error.hint()};
}

}  // namespace millrace
